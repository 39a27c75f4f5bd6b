"""Count the lines of each feature: `python -m docs.tools.size [CHECKOUT]...`.

Each Python file that git tracks counts once, for the first feature with a pattern that matches its
path. Patterns name former places too, so that checkouts of before and after stand side by side.
Files below tests/ are a column of their own.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

_TABLE = """
laboratory: orchestrator/lab/ exact/* __init__.py orchestrator/report/ laboratory.py
  orchestrator/kl/ laboratory.py objectives.py derivation.py surrogates.py questions.py probe.py
  montecarlo.py figures.py shares.py tests/kl/ test_laboratory.py test_objectives.py test_probe.py
  test_surrogates.py test_questions.py test_montecarlo.py test_figure.py test_ensemble.py
  enumeration.py second.py
adopt a release: orchestrator/ lab/adopt/* library/adopted.py cli/adopt.py backends/
  */lab/adoption.py */lab/describe.py */lab/resolve.py tests/ adopt/*
matrix, drift, probes: orchestrator/ lab/probes/* probes/* evidence/* backends/ *probe.py
  *probes.py tests/ probes/* backends/*/test_probes.py
prove, rehearse with the library: orchestrator/ lab/prove/* lab/rehearsal.py lab/launches.py prove/*
  backends/ trl/program.py trl/lab/program.py micro/replay.py micro/lab/* tests/ prove/*
  backends/proven.py backends/*/test_program.py backends/*/test_replay.py
CPU stand-ins: orchestrator/ lab/cpu/* library/cpu/* backends/ */cpu/* *cpu_launch.py */lab/*
  tests/backends/ *cpu*.py */test_real.py real.py *trained.py
audit, shell scripts: orchestrator/ audit/bash/* tests/ audit/*shell*.py
audit, Python and documents: orchestrator/audit/ python.py documents.py
  tests/audit/ test_python.py test_documents.py test_containers.py
audit, what readers share: orchestrator/ audit/reading.py library/reading.py library/key_tables.py
audit, judge and keys and fix: orchestrator/ audit/* analysis/scripts.py
  tests/ audit/* analysis/test_script_pairs.py
audit, read-only libraries: backends/ areal/* ms_swift/* nemo_rl/* open_instruct/* roll/* slime/*
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
translation, all libraries: tests/ backends/* experiments/* plugins/*
contract suites: orchestrator/ testing/*
protocol, manifest, launches: orchestrator/ library/* plugins.py tests/ library/* test_plugins.py
documentation's writers: docs/ * orchestrator/ report/measured.py kl/beyond.py
  tests/ test_docs.py test_site.py test_size.py
KL table, verdicts: orchestrator/ kl/* estimators.py tests/ kl/*
policy losses: orchestrator/ losses/* tests/ losses/*
specs, expansion, selection: orchestrator/ spec/*
  tests/ spec/* test_expand.py test_select.py test_fingerprint.py
Ray jobs: orchestrator/ launch/ray/* tests/ launch/ray/* benchmarks/ ray_jobs.py
SLURM: orchestrator/ launch/slurm/* tests/ launch/slurm/* cluster/*
nodes, Ray: orchestrator/ launch/node/* tests/ launch/node/*
SkyPilot: orchestrator/ launch/skypilot/* tests/ launch/test_skypilot.py
local launch: orchestrator/ launch/* tests/ launch/*
site, doctor, init: orchestrator/ site/* tests/ site/*
evaluation by lm-eval: orchestrator/ evaluate/* harness_tasks/* tests/ evaluate/*
scorer: orchestrator/ scoring/* tests/ scoring/*
environments: orchestrator/ environments/* tests/ environments/*
data: orchestrator/ data/* tests/ data/*
MLflow, own writer and new store: orchestrator/tracking/ bulk.py new_store.py
  tests/tracking/ test_bulk.py test_new_store.py
MLflow: orchestrator/ tracking/* pipeline/beside.py tests/ tracking/*
search: orchestrator/ search/* pipeline/search.py tests/ search/*
sharing of cells: orchestrator/ sharing/* tests/ cli/test_sharing.py
verify: orchestrator/ */repetition.py tests/ */test_repetition.py */test_verify.py
imports of foreign runs: orchestrator/ imports/* analysis/imported.py tests/ imports/*
statistics, claims: orchestrator/ analysis/* tests/ analysis/* test_claims.py
report, figures, page: orchestrator/ report/* charts/* dashboards/ *
  tests/ dashboards/* test_report.py
runs, pipeline: orchestrator/ runs/* pipeline/*
  tests/ runs/* test_comedy.py test_results.py test_scale.py test_on_end.py
commands: orchestrator/ cli/* __main__.py tests/ cli/*
core words, Python interface: ./ bootstrap.py orch/ * backends/ __init__.py orchestrator/
  __init__.py errors.py settings.py records.py identity.py files.py rundir.py version.py metrics/*
  tests/ test_api.py test_rundir.py test_points.py test_zero_gradient.py test_umask.py
  test_bootstrap.py
rules of the tree, packaging: tests/ test_architecture.py test_storeys.py test_wheel.py
benchmarks: benchmarks/ * tests/ test_benchmarks.py
machinery of the tests: tests/ conftest.py command_line.py keeper.py lifeline.py hooks.py syntax.py
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


def main(checkouts: Sequence[str]) -> None:
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
