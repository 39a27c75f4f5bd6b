"""Backends, estimators and tasks are found by themselves; a name given twice is refused."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest
from syntax import parsed

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.library.protocol import MODULES, Backend

Install = Callable[..., Path]

BACKEND = """
from orchestrator.kl.library_semantics import PLAIN, Semantics
from orchestrator.library.protocol import Backend

class Toy(Backend):
    name, versions, capabilities = "toy", ("1",), {}
    translate = parse = None
    def read_metrics(self, attempt_dir): return iter(())
    def find_checkpoints(self, checkpoints_dir): return []
    begun_checkpoints = find_checkpoints
    def semantics(self, version): return Semantics(PLAIN)

BACKEND = Toy()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with these modules and entry points on sys.path."""
    before = set(sys.modules)

    def clear() -> None:
        for name in (
            *("names", "load", "readers", "load_reader", "task_folders"),
            *("_own", "only_read", "_entry_points"),
        ):
            getattr(plugins, name).cache_clear()

    def add(name: str, points: str, **modules: str) -> Path:
        home = tmp_path / name
        for module, text in modules.items():
            (home / module).mkdir(parents=True)
            (home / module / "__init__.py").write_text(text)
        info = home / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(home)
        clear()
        return home

    yield add
    monkeypatch.undo()
    clear()
    for module in set(sys.modules) - before:
        if module.startswith("toy"):
            del sys.modules[module]


def test_every_folder_of_backends_is_found_and_keeps_the_protocol() -> None:
    assert "micro" in plugins.names()
    for name in plugins.names():
        backend = plugins.load(name)
        assert isinstance(backend, Backend)
        assert backend.name == name
        assert backend.title
        assert backend.versions


@pytest.mark.parametrize("library", [name for name in plugins.names() if name != "micro"])
def test_a_function_of_a_module_takes_what_the_method_takes(library: str) -> None:
    backend = plugins.load(library)
    for member in {name for names in MODULES.values() for name in names.values()}:
        method, own = getattr(Backend, member, None), getattr(backend, member)
        if callable(method) and callable(own):
            _, *wanted = signature(method).parameters
            assert list(signature(own).parameters) == wanted, member
            returned = signature(method).return_annotation
            assert signature(own).return_annotation in (returned, *get_args(returned)), member


LIBRARY = re.compile(r"(?<![a-z])verl|openrlhf|skyrl|prime[ _-]?rl", re.IGNORECASE)
MAY_NAME = {
    "spec/starter.py": "the spec that `orch init` writes has to name some backend",
    "estimators.py": "a formula says which library's code it was read in",
    "losses/table.py": "a source says which library's code it was read in",
}


def test_no_core_file_names_a_library() -> None:
    """Docstrings and comments may give a source or an example; code and texts may not."""
    core = Path(plugins.__file__).parent
    naming = set()
    for path, tree in parsed(core.rglob("*.py")).items():
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if id(node) not in docstrings and LIBRARY.search(_text(node)):
                naming.add(str(path.relative_to(core)))
    assert naming == set(MAY_NAME)


def _text(node: ast.AST) -> str:
    """Return the name or the text that a node of the source holds."""
    values = (getattr(node, name, "") for name in ("id", "attr", "name", "arg", "module", "value"))
    return " ".join(value for value in values if isinstance(value, str))


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(EnvironmentFault, match=r"'mikro' is not part .* did you mean 'micro'"):
        plugins.load("mikro")


def test_finding_backends_imports_none_of_them() -> None:
    code = (
        "import sys; from orchestrator import plugins; plugins.names();"
        "assert not [m for m in sys.modules if m.startswith('backends.')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shadowing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from orchestrator import plugins\n"
        "from orchestrator.errors import EnvironmentFault\n"
        "try:\n    plugins.names()\nexcept EnvironmentFault as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "which is not orch's backends/ folder" in done.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("", "exports no BACKEND of a class that inherits .*Backend"),
        (BACKEND.replace('"toy",', '"other",'), "calls itself 'other'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(install: Install, text: str, why: str) -> None:
    install("toy-dist", "[orch.backends]\ntoy = toylib\n", toylib=text)
    with pytest.raises(EnvironmentFault, match=rf"'toy' of toy-dist 1\.0 .*{why}"):
        plugins.load("toy")


def test_an_entry_point_that_is_no_estimator_is_named(install: Install) -> None:
    """One that is, tests/plugins/test_stranger.py explains."""
    install("toy-dist", "[orch.estimators]\nk4 = toyest:WRONG\n", toyest="WRONG = 'k4'\n")
    with pytest.raises(EnvironmentFault, match=r"orch\.estimators"):
        plugins.load_estimators()
