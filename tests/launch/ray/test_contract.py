"""A real Ray passes the contract that any launcher must pass."""

import pytest

from orchestrator.launch.launcher import Launcher
from orchestrator.launch.ray.submit import RayLauncher
from orchestrator.records import Cell
from orchestrator.testing.launcher_contract import Kind, LauncherContract
from tests.launch.kit import make_cell
from tests.launch.ray.conftest import Site

TOLD: dict[Kind, tuple[str, int]] = {
    "quick": ("", 3),
    "long": ("slow", 2000),
    "fails": ("fail", 3),
    "refused": ("refuse", 3),
}


@pytest.mark.ray
class TestRay(LauncherContract):
    @pytest.fixture
    def launcher(self, site: Site) -> Launcher:
        return RayLauncher(site.folder, site.options)

    def cell(self, kind: Kind, seed: int = 0) -> Cell:
        return make_cell(seed, *TOLD[kind])
