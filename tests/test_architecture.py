"""The rules of the house, held by reading every import."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("orchestrator", "backends", "dashboards")
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

BACKEND_MAY_IMPORT = {
    "orchestrator.errors",
    "orchestrator.settings",
    "orchestrator.records",
    "orchestrator.library.protocol",
    "orchestrator.metrics.names",
    "orchestrator.identity",
    "orchestrator.metrics.tensorboard",
    "orchestrator.kl.estimators",
    "orchestrator.scoring",
    "orchestrator.data",
    "orchestrator.data.recipe",
    "orchestrator.kl.dialect",
    "orchestrator.kl.differences",
    "orchestrator.audit",
    "orchestrator.library.launches",
}

LAYERS = ["errors", "settings", "records"]


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path) -> Iterator[str]:
    """Every module an import statement names, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> set[str]:
    known = {name for name, _ in modules()}
    return {name for name in imports(path) if name in known}


ALL = list(modules())


@pytest.mark.parametrize(("name", "path"), ALL, ids=[n for n, _ in ALL])
def test_imports_go_one_way(name: str, path: Path) -> None:
    used = ours(path)
    if not name.startswith("orchestrator.cli") and name != "orchestrator.__main__":
        assert not {m for m in used if m.startswith(("orchestrator.cli", "dashboards"))} or (
            name.startswith("dashboards")
            and not {m for m in used if m.startswith("orchestrator.cli")}
        ), f"{name} imports the command line or the dashboards"
    if name.startswith("orchestrator") and name != "orchestrator.plugins":
        assert not {m for m in used if m.startswith("backends")}, f"{name} names a backend"
    if name.startswith("backends."):
        own = ".".join(name.split(".")[:2])
        foreign = {
            m
            for m in used
            if not m.startswith(own)
            and m not in BACKEND_MAY_IMPORT | {"orchestrator", "backends", "orchestrator.kl"}
        }
        assert not foreign, f"{name} may not import {foreign}"
    for level, layer in enumerate(LAYERS):
        if name == f"orchestrator.{layer}":
            allowed = {"orchestrator"} | {f"orchestrator.{below}" for below in LAYERS[:level]}
            assert used <= allowed, f"{name} may import only {allowed}, not {used - allowed}"


def test_no_module_imports_another_in_a_circle() -> None:
    graph = {name: top_level(path) for name, path in ALL}
    for start in graph:
        stack, seen = [(start, [start])], set()
        while stack:
            at, way = stack.pop()
            for step in graph.get(at, ()):
                assert step != start, f"import circle: {' -> '.join([*way, step])}"
                if step not in seen:
                    seen.add(step)
                    stack.append((step, [*way, step]))


def top_level(path: Path) -> set[str]:
    """Modules of ours imported when this one is; imports inside functions are not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = {name for name, _ in ALL}
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" for a in node.names} & known or {node.module}
    return found & known


def loaded_by(*argv: str) -> set[str]:
    """Top-level packages imported by running `orch ARGV` to its end."""
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
    assert git
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
