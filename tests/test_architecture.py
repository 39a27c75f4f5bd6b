"""Hold the rules of ARCHITECTURE.md by reading every import, those inside functions included."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("orch", "orchestrator", "backends", "dashboards")
HEAVY = {
    "torch",
    "transformers",
    "mlflow",
    "lm_eval",
    "hydra",
    "omegaconf",
    "optuna",
    "plotly",
    "pandas",
    "scipy",
    "matplotlib",
    "submitit",
    "numpy",
    "rich",
    "tree_sitter",
}

LAYERS = (
    ("errors",),
    ("estimators",),
    ("settings",),
    ("records", "identity", "files", "redaction"),
    ("metrics", "scoring", "kl"),
    ("library",),
    ("plugins",),
    ("environments",),
    ("data", "spec"),
    ("rundir",),
    ("launch",),
    ("testing",),
    ("evaluate",),
    ("runs",),
    ("sharing",),
    ("tracking",),
    ("audit", "probes"),
    ("imports",),
    ("prove",),
    ("analysis",),
    ("report",),
    ("search", "site"),
    ("dashboards",),
    ("pipeline",),
    ("orch",),
    ("cli",),
)
"""A package imports packages above it in this table, and itself; nothing else."""

AT_ROOT = {
    "errors",
    "estimators",
    "settings",
    "records",
    "identity",
    "files",
    "redaction",
    "plugins",
    "rundir",
}

BACKEND_MAY_IMPORT = {
    "errors",
    "estimators",
    "settings",
    "records",
    "identity",
    "files",
    "metrics",
    "scoring",
    "kl",
    "library",
    "data",
}
"""Packages of orchestrator that a library's folder may import."""


def modules() -> Iterator[tuple[str, Path]]:
    for root in SHIPPED:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


ALL = dict(modules())
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in ALL.items()}


def imports(tree: ast.AST) -> set[str]:
    """Return our modules that an import statement names, wherever it stands in the file."""
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                named.add(whole if whole in ALL else node.module)
    return named & ALL.keys()


GRAPH = {name: imports(tree) for name, tree in TREES.items()}


def package(module: str) -> str:
    """Return `kl` for orchestrator.kl.estimators, `backends` and `dashboards` for those."""
    parts = module.split(".")
    return parts[1] if parts[0] == "orchestrator" and len(parts) > 1 else parts[0]


def test_packages_import_one_way() -> None:
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    wrong = []
    for module, used in GRAPH.items():
        own = package(module)
        if own in ("orchestrator", "__main__", "backends"):
            continue  # the entry points; a backend has rules of its own, below
        assert own in level, f"{own} has no place in LAYERS and ARCHITECTURE.md"
        for other in map(package, used):
            if other in (own, "orchestrator"):
                continue
            if other not in level or level[other] >= level[own]:
                wrong.append(f"{module} imports {other}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_backends_import_what_a_backend_may() -> None:
    wrong = []
    for module, used in GRAPH.items():
        if not module.startswith("backends."):
            continue
        own = ".".join(module.split(".")[:2])
        for other in used:
            ours = other == "orchestrator" or package(other) in BACKEND_MAY_IMPORT
            if not other.startswith(own) and other != "backends" and not ours:
                wrong.append(f"{module} imports {other}")
    assert not wrong, "\n".join(sorted(wrong))


def test_no_module_imports_another_in_a_circle() -> None:
    """`orchestrator` itself is the public interface, which loads what is asked of it."""
    graph = {name: used - {"orchestrator", name} for name, used in GRAPH.items()}
    for start in graph:
        stack, seen = [(start, [start])], {start}
        while stack:
            at, way = stack.pop()
            for step in graph[at]:
                assert step != start, f"circle: {' -> '.join([*way, step])}"
                if step not in seen:
                    seen.add(step)
                    stack.append((step, [*way, step]))


def test_the_root_holds_few_modules() -> None:
    loose = {path.stem for path in (ROOT / "orchestrator").glob("*.py")}
    assert loose - {"__init__", "__main__"} <= AT_ROOT


def test_a_public_class_exists_once() -> None:
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def test_the_formatter_lays_out_every_line() -> None:
    marker = re.compile(r"#\s*fmt:\s*(off|skip)")
    for folder in (*SHIPPED, "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != Path(__file__):
                assert not marker.search(path.read_text(encoding="utf-8")), path


def test_an_ignored_type_has_its_reason_beside_it() -> None:
    marker = re.compile(r"#\s*type:\s*ignore(?:\[[^]]*\])?(.*)")
    for folder in (*SHIPPED, "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                match = marker.search(line)
                assert match is None or match[1].strip("# ()"), f"{path}: {line}"


VAGUE = {"found", "told", "made", "seen", "there", "here"}


def test_locals_are_named_by_what_they_hold() -> None:
    vague = {
        f"{module}:{node.lineno} {name}"
        for module, tree in TREES.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if (name := _bound_name(node)) in VAGUE
    }
    assert not vague, "\n".join(sorted(vague))


def _bound_name(node: ast.AST) -> str:
    """Return the name that a node binds as a variable or parameter; empty for another node."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for name in sorted({package(module) for module in ALL} - {"orchestrator", "__main__"}):
        assert f"`{name}" in page, f"ARCHITECTURE.md does not name {name}"


@pytest.mark.parametrize("name", ["launch", "probes", "analysis", "audit", "kl"])
def test_a_hard_package_has_a_page_of_its_own(name: str) -> None:
    assert (ROOT / "orchestrator" / name / "README.md").is_file()


def loaded_by(*argv: str) -> set[str]:
    """Return the top-level packages that running `orch ARGV` to its end imports."""
    code = (
        "import sys\nfrom orchestrator.cli import main\n"
        f"sys.argv = ['orch', *{list(argv)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sorted({m.partition('.')[0] for m in sys.modules}))"
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
