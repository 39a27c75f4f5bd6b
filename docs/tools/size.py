"""Count the lines of each feature: `python -m docs.tools.size [CHECKOUT]...`.

Each Python file that git tracks counts once, for the first feature with a pattern that matches its
path. Patterns name former places too, so that checkouts of before and after stand side by side.
Files below tests/ are a column of their own.

`ceilings.json` beside this file is the ratchet: for each package the most lines and syntax nodes
that it may have (for the documents: words). `tests/test_size.py` holds every package to its row,
and the sums to those of the commit before. `python -m docs.tools.size --lower` lowers each row to
what the package has now; a row is raised by hand, and another lowered in the same commit.
"""

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import reduce
from pathlib import Path
from typing import NamedTuple

_TABLE = """
laboratory: orchestrator/ exact/* lab/exact/* lab/__init__.py report/laboratory.py cli/own.py
  cli/exact.py cli/lab.py tests/ exact/*
  orchestrator/kl/ laboratory.py objectives.py derivation.py surrogates.py questions.py
  figures.py shares.py tests/kl/ test_laboratory.py test_every_form.py
  test_ensemble.py brute.py
adopt a release: orchestrator/ lab/adopt/* library/adopted.py cli/adopt.py backends/
  */lab/adoption.py */lab/describe.py */lab/resolve.py lab/ adopt/* */adoption.py */describe.py
  */resolve.py tests/ adopt/* lab/adopt/* lab/test_release_facts.py
matrix, probes: orchestrator/ lab/probes/* probes/* evidence/* backends/ *probe.py *probes.py
  lab/ probes/* *probes.py __*.py libraries.py skyrl/absent.py
  openrlhf/stood_in.py tests/ probes/* backends/*/test_probes.py lab/probes/* lab/*/test_probes.py
  lab/c*.py lab/verl/test_controller.py
prove, rehearse with the library: orchestrator/ lab/prove/* lab/rehearsal.py prove/*
  backends/ trl/program.py trl/lab/program.py micro/replay.py micro/lab/* lab/ prove/* micro/*
  tests/ prove/* backends/proven.py backends/*/test_program.py backends/*/test_replay.py lab/prove/*
  lab/proven.py
CPU stand-ins: orchestrator/ lab/cpu/* library/cpu/* backends/ */cpu/* *cpu_launch.py */lab/*
  lab/ * tests/backends/ *cpu*.py */test_real.py real.py *trained.py tests/lab/ *
audit, shell scripts: orchestrator/ audit/bash/* tests/ audit/*shell*.py
audit, Python and documents: orchestrator/audit/ python.py documents.py
  tests/audit/ test_python.py test_documents.py test_containers.py
audit, what readers share: orchestrator/ audit/reading.py library/reading.py library/key_tables.py
audit, judge and keys and fix: orchestrator/ audit/*
  tests/ audit/*
audit, read-only libraries: backends/ nemo_rl/* open_instruct/* slime/*
audit, readers of driven libraries: backends/ */audit/* */audit.py */easyr1.py
  tests/backends/trl/ test_audit.py test_defaults.py
evaluation of small policies: orchestrator/evaluate/ small_llama.py shared_rows.py deferred.py
  shards.py backends/micro/ policy_kernels.py tests/evaluate/ test_policy_kernels.py
  test_small_llama.py test_shards.py
embedded trainer: backends/ micro/* docs/tools/ pretrain.py tests/backends/ micro/*
translation, OpenRLHF: backends/ openrlhf/* tests/backends/ openrlhf/*
translation, Prime-RL: backends/ prime_rl/* tests/backends/ prime_rl/*
translation, SkyRL: backends/ skyrl/* tests/backends/ skyrl/*
translation, TRL: backends/ trl/* tests/backends/ trl/*
translation, verl: backends/ verl/* tests/backends/ verl/*
translation, all libraries: tests/ backends/* experiments/* golden/* plugins/* replay/*
contract suites: orchestrator/ testing/*
protocol, manifest, launches: orchestrator/ library/* plugins.py tests/ library/* test_plugins.py
documentation's writers: docs/ * orchestrator/ report/measured.py kl/beyond.py
  tests/ test_docs.py test_one_cell.py test_site.py test_size.py
KL table, verdicts: orchestrator/ kl/* estimators.py tests/ kl/*
policy losses: orchestrator/ losses/* tests/ losses/*
specs, expansion, selection: orchestrator/ spec/*
  tests/ spec/* test_expand.py test_select.py test_fingerprint.py
Ray jobs: orchestrator/ launch/ray/* tests/ launch/ray/* benchmarks/ ray_jobs.py
SLURM: orchestrator/ launch/slurm/* tests/ launch/slurm/* cluster/*
nodes, Ray: orchestrator/ launch/node/* tests/ launch/node/*
local launch: orchestrator/ launch/* tests/ launch/*
site, doctor, init: orchestrator/ site/* tests/ site/*
evaluation by lm-eval: orchestrator/ evaluate/* harness_tasks/* tests/ evaluate/*
scorer: orchestrator/ scoring/* tests/ scoring/*
environments: orchestrator/ environments/* tests/ environments/*
data: orchestrator/ data/* tests/ data/*
MLflow: orchestrator/ tracking/* tests/ tracking/*
search: orchestrator/ search/* pipeline/search.py tests/ search/*
logs of any run: orchestrator/ logs/* tests/ logs/*
statistics, claims: orchestrator/ analysis/* tests/ analysis/* test_claims.py test_outcome.py
report, figures, page: orchestrator/ report/* charts/* dashboards/ *
  tests/ dashboards/* test_report.py
runs, pipeline: orchestrator/ runs/* pipeline/*
  tests/ runs/* test_comedy.py test_results.py
commands: orchestrator/ cli/* __main__.py tests/ cli/*
core words, Python interface: ./ bootstrap.py orch/ * backends/ __init__.py orchestrator/
  __init__.py errors.py settings.py records.py identity.py files.py rundir.py version.py metrics/*
  tests/ test_api.py test_rundir.py test_points.py test_zero_gradient.py
  test_bootstrap.py
rules of the tree, packaging: tests/ test_architecture.py test_wheel.py
benchmarks: benchmarks/ * tests/ test_benchmarks.py
machinery of the tests:
  tests/ conftest.py settings.py command_line.py keeper.py lifeline.py syntax.py
  mutate.py
"""
"""A feature, and the patterns of its files below the folder that stands before them. Patterns are
`fnmatch`'s: `*` crosses folders."""


def _features() -> Iterator[tuple[str, tuple[str, ...]]]:
    for row in _TABLE.replace("\n  ", " ").strip().splitlines():
        feature, _, words = row.partition(": ")
        folder, patterns = "", []
        for word in words.split():
            if word.endswith("/"):
                folder = word.removeprefix("./")
            else:
                patterns.append(folder + word)
        yield feature, tuple(patterns)


FEATURES = dict(_features())


class Lines(NamedTuple):
    """Feature -> lines of its product and of its tests; and the paths that have no feature."""

    product: Counter[str]
    tests: Counter[str]
    unnamed: list[str]


def feature_of(path: str) -> str | None:
    """Return the first feature with a pattern that matches a path, or None."""
    rows = FEATURES.items()
    return next((name for name, globs in rows if any(fnmatch(path, g) for g in globs)), None)


def lines(checkout: Path) -> Lines:
    """Count the Python files that git tracks in a checkout."""
    argv = ["git", "-C", str(checkout), "ls-files", "*.py"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    counts = Lines(Counter(), Counter(), [])
    for path in [path for path in listed if (checkout / path).is_file()]:
        if (feature := feature_of(path)) is None:
            counts.unnamed.append(path)
            continue
        column = counts.tests if path.startswith("tests/") else counts.product
        column[feature] += len((checkout / path).read_bytes().splitlines())
    return counts


CEILINGS = Path(__file__).with_name("ceilings.json")
OUTSIDE = ("tests", "tests/lab", "lab", "docs", "benchmarks", "documents")
"""Packages that are no part of the product."""
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


class Size(NamedTuple):
    """What a package has. Of the documents, `lines` are words, and the rest is 0."""

    lines: int
    nodes: int = 0
    code: int = 0
    """Lines with code: no blank ones, comments and docstrings."""

    def plus(self, other: "Size") -> "Size":
        """Add two sizes up."""
        return Size(*(a + b for a, b in zip(self, other, strict=True)))


def package_of(path: str) -> str:
    """Return the row of the ratchet that a Python file counts for."""
    folders = path.split("/")[:-1]
    if not folders:
        return "bootstrap"
    if folders[0] in ("orchestrator", "backends"):
        return "/".join(folders[:2])
    if folders[:2] == ["tests", "lab"]:
        return "tests/lab"
    return folders[0]


def size_of(source: str) -> Size:
    """Count the lines, the syntax nodes and the lines of code of one Python file."""
    tree = ast.parse(source)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    nodes = list(ast.walk(tree))
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # a docstring, of a field too
                code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return Size(len(source.splitlines()), len(nodes), len(code))


def sizes(checkout: Path) -> dict[str, Size]:
    """Measure each package of a checkout: the files that git tracks, as they are on the disk."""
    argv = ["git", "-C", str(checkout), "ls-files", "*.py", "*.md"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\n")
    found: dict[str, Size] = {}
    for path in filter(None, listed):
        if not (checkout / path).is_file():
            continue
        source = (checkout / path).read_text(encoding="utf-8")
        name = package_of(path) if path.endswith(".py") else "documents"
        each = size_of(source) if path.endswith(".py") else Size(len(source.split()))
        found[name] = found.get(name, Size(0)).plus(each)
    return dict(sorted(found.items()))


def product(found: Mapping[str, Size]) -> Size:
    """Add up the packages of the product."""
    return reduce(Size.plus, (size for name, size in found.items() if name not in OUTSIDE), Size(0))


def ceilings(text: str) -> dict[str, Size]:
    """Read a table of ceilings: package -> lines and nodes."""
    return {name: Size(*row) for name, row in json.loads(text).items()}


def lower() -> None:
    """Write the ceilings: for each package what it has now, but no more than its row said."""
    old = ceilings(CEILINGS.read_text(encoding="utf-8")) if CEILINGS.exists() else {}
    rows = {}
    for name, now in sizes(Path()).items():
        most = old.get(name, now)
        rows[name] = [min(now.lines, most.lines), min(now.nodes, most.nodes)]
    lines = ",\n".join(f"  {json.dumps(name)}: {row}" for name, row in rows.items())
    CEILINGS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Lower the ceilings, or print the tables of checkouts."""
    if list(arguments) == ["--lower"]:
        lower()
        return
    _show_features(arguments)
    print("\n| package |" + "".join(f" {name}: lines | nodes |" for name in arguments))
    print("|---|" + "---|---|" * len(arguments))
    measured = [sizes(Path(checkout)) for checkout in arguments]
    for name in sorted({name for each in measured for name in each}):
        found = (each.get(name, Size(0)) for each in measured)
        print(f"| {name} |" + "".join(f" {each.lines:,} | {each.nodes:,} |" for each in found))
    sums = [product(each) for each in measured]
    print("| **product** |" + "".join(f" {each.lines:,} | {each.nodes:,} |" for each in sums))


def _show_features(checkouts: Sequence[str]) -> None:
    """Print a Markdown table: product and tests of each feature, for each checkout."""
    counts = [lines(Path(checkout)) for checkout in checkouts]
    print("| feature |" + "".join(f" {name} | tests |" for name in checkouts))
    print("|---|" + "---|---|" * len(counts))
    for feature in FEATURES:
        cells = (f" {each.product[feature]:,} | {each.tests[feature]:,} |" for each in counts)
        print(f"| {feature} |" + "".join(cells))
    sums = (f" {each.product.total():,} | {each.tests.total():,} |" for each in counts)
    print("| all |" + "".join(sums))
    for path in sorted({path for each in counts for path in each.unnamed}):
        print(f"of no feature: {path}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:] or ["."])
