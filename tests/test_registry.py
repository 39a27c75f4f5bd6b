"""Backends are found by themselves, and a shadowed `backends` package is told in a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.library.protocol import Backend


def test_every_folder_of_backends_is_found_and_keeps_the_protocol() -> None:
    assert "micro" in plugins.names()
    for name in plugins.names():
        backend = plugins.load(name)
        assert isinstance(backend, Backend)
        assert backend.name == name
        assert backend.versions


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(EnvironmentFault, match=r"'mikro' is not part .* did you mean 'micro'"):
        plugins.load("mikro")


def test_finding_backends_imports_none_of_them() -> None:
    code = (
        "import sys; from orchestrator import plugins as registry; registry.names();"
        "assert not [m for m in sys.modules if m.startswith('backends.')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shadowing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from orchestrator import plugins as registry\n"
        "from orchestrator.errors import EnvironmentFault\n"
        "try:\n    registry.names()\nexcept EnvironmentFault as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "which is not orch's backends/ folder" in done.stdout
