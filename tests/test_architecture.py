"""Hold the rules of ARCHITECTURE.md by reading every import, those inside functions included."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from syntax import parsed

ROOT = Path(__file__).parents[1]
SHIPPED = ("orch", "orchestrator", "backends", "dashboards")
HEAVY = {
    "torch",
    "transformers",
    "mlflow",
    "lm_eval",
    "aiohttp",
    "hydra",
    "omegaconf",
    "optuna",
    "vl_convert",
    "pandas",
    "scipy",
    "submitit",
    "numpy",
    "rich",
    "tree_sitter",
}

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROWS = [re.findall(r"`(\w+)/?`", row) for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)]
LAYERS = ROWS[: ROWS.index(["backends"])]
"""The page's table: a package imports packages of the rows above it, and itself; nothing else."""

SEAMS = {
    ("orchestrator.kl.table", "orchestrator.exact.derivation"): (
        "an estimator of another distribution has no stored verdict"
    ),
}
"""Imports in functions with which a package asks one above it, with the reason."""

(_WORDS,) = re.findall(r"^\| `backends/` .* each imports (.*), and itself", PAGE, re.MULTILINE)
FOR_BACKENDS = set(_WORDS.split(", "))
"""The packages that a library's folder may import, by the page."""

COMMANDS_ABOVE = {"audit", "diagnose", "from_script"}
"""The commands that belong to the audit. Others import these in functions."""


def modules() -> Iterator[tuple[str, Path]]:
    for root in SHIPPED:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


ALL = dict(modules())


@cache
def trees() -> dict[str, ast.Module]:
    """Return every module's syntax tree. Not at import: each process of the tests imports this."""
    return dict(zip(ALL, parsed(ALL.values()).values(), strict=True))


def named(tree: ast.AST) -> set[str]:
    """Return what import statements name, wherever they stand in the file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(node.module if node.module in ALL and whole not in ALL else whole)
    return found


@cache
def graph_of_imports() -> dict[str, set[str]]:
    """Return module -> our modules that it imports."""
    return {name: named(tree) & ALL.keys() for name, tree in trees().items()}


def package(module: str) -> str:
    """Return `kl` for orchestrator.kl.estimators, `backends` and `dashboards` for those."""
    parts = module.split(".")
    return parts[1] if parts[0] == "orchestrator" and len(parts) > 1 else parts[0]


def test_packages_import_one_way() -> None:
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    wrong = []
    for module, used in graph_of_imports().items():
        own = package(module)
        if own in ("orchestrator", "__main__", "backends"):
            continue  # the entry points; a backend has rules of its own, below
        assert own in level, f"{own} has no place in LAYERS and ARCHITECTURE.md"
        for other in (package(name) for name in used if (module, name) not in SEAMS):
            if other == own:
                continue
            if other not in level or level[other] >= level[own]:
                wrong.append(f"{module} imports {other}")
    assert not wrong, "\n".join(sorted(set(wrong)))
    unused = [seam for seam in SEAMS if seam[1] not in graph_of_imports()[seam[0]]]
    assert not unused, f"these seams are gone: {unused}"


def test_backends_import_what_a_backend_may() -> None:
    """Its folder `audit/` may import the audit, and is imported by nothing else of it."""
    wrong = []
    for module, used in graph_of_imports().items():
        if not module.startswith("backends."):
            continue
        own = ".".join(module.split(".")[:2])
        judges = module.startswith(f"{own}.audit")
        for other in used:
            if other.startswith(own):
                allows = judges or not other.startswith(f"{own}.audit")
            else:
                allows = package(other) in FOR_BACKENDS or (judges and package(other) == "audit")
            if not allows:
                wrong.append(f"{module} imports {other}")
    assert not wrong, "\n".join(sorted(wrong))


def test_what_is_not_of_the_audit_is_imported_without_it() -> None:
    """`import orch` and the commands, which come after the audit in the table."""
    commands = {path.stem for path in (ROOT / "orchestrator" / "cli").glob("*.py")}
    names = [f"orchestrator.cli.{name}" for name in commands - COMMANDS_ABOVE - {"__init__"}]
    code = f"import orch, sys, {', '.join(names)}; print('orchestrator.audit' in sys.modules)"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_the_product_does_not_import_the_lab() -> None:
    """Nor in a function: the wheel has no lab."""
    wrong = [name for name, tree in trees().items() if "lab" in map(_top, named(tree))]
    assert not wrong


def _top(name: str) -> str:
    return name.partition(".")[0]


def test_no_module_imports_another_in_a_circle() -> None:
    """Imports in functions count too."""
    graph = {name: used - {name} for name, used in graph_of_imports().items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_root_holds_few_modules() -> None:
    loose = {path.stem for path in (ROOT / "orchestrator").glob("[!_]*.py")}
    assert len(loose) <= 9, "join what is one subject, or move it into the package that it serves"


def test_a_public_class_exists_once() -> None:
    names = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


LATE = {"mlflow", "lm_eval", "datasets", "optuna", "pandas", "vl_convert", "playwright"}
"""Libraries that a file of tests imports in the functions that need them."""


def test_collecting_the_tests_imports_no_heavy_library() -> None:
    """Every process of a test run imports every file of tests."""
    early = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in parsed((ROOT / "tests").rglob("*.py")).items()
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in named(node)
        if _top(name) in LATE or name.startswith("transformers.")
    ]
    assert not early, "import it in the function that needs it"


def test_an_ignored_type_has_its_reason_beside_it() -> None:
    marker = re.compile(r"#\s*type:\s*ignore(?:\[[^]]*\])?(.*)")
    for folder in (*SHIPPED, "lab", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                match = marker.search(line)
                assert match is None or match[1].strip("# ()"), f"{path}: {line}"


@pytest.mark.parametrize("name", ["launch", "exact", "analysis", "audit", "kl"])
def test_a_hard_package_has_a_page_of_its_own(name: str) -> None:
    assert (ROOT / "orchestrator" / name / "README.md").is_file()


def loaded_by(*argv: str) -> set[str]:
    """Return the top-level packages, and orch's own below them, that running `orch ARGV` to its
    end imports."""
    code = (
        "import sys\nfrom orchestrator.cli import main\n"
        f"sys.argv = ['orch', *{list(argv)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "packages = {'.'.join(m.split('.')[:n]) for m in sys.modules for n in (1, 2)}\n"
        "print('LOADED', *sorted(p for p in packages if '.' not in p or p.startswith('orch')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_help_loads_nothing_heavy() -> None:
    assert not loaded_by("--help") & HEAVY


def test_plan_loads_no_trainer_tracker_or_harness() -> None:
    loaded = loaded_by("plan", "experiments/smoke.yaml", "--json")
    assert not loaded & (HEAVY - {"hydra", "omegaconf", "numpy", "rich"})
    unneeded = {"audit", "exact", "analysis", "imports", "report", "tracking", "search"}
    assert not loaded & {f"orchestrator.{name}" for name in unneeded}


def test_nothing_committed_names_a_machine_or_a_registry() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout: nothing says what is committed")
    listed = subprocess.run(
        [git, "ls-files", "-co", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.split("\n")
    needles = ["py" + "pi.org", "/ro" + "ot/", "/wo" + "rk/", "pythonho" + "sted"]
    for name in filter(None, listed):
        path = ROOT / name
        if path.suffix in {".safetensors", ".png", ".pdf"} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not [n for n in needles if n in text], f"{name} names a machine or a registry"
