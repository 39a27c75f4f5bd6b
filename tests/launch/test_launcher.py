"""This machine and a real cluster pass the contract that any launcher must pass."""

import pytest

from orchestrator.launch.launcher import Launcher
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.slurm.submit import SlurmLauncher
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from tests.launch.contract import Kind, LauncherContract
from tests.launch.kit import make_cell
from tests.launch.slurm.conftest import Site
from tests.launch.slurm.conftest import cluster as cluster
from tests.launch.slurm.conftest import site as site
from tests.launch.slurm.conftest import slurm as slurm

TOLD: dict[Kind, tuple[str, int]] = {
    "quick": ("", 3),
    "long": ("slow", 2000),
    "fails": ("fail", 3),
    "refused": ("refuse", 3),
}


class Fake(LauncherContract):
    """Cells of the fake backend."""

    def cell(self, kind: Kind, seed: int = 0) -> Cell:
        return make_cell(seed, *TOLD[kind])


class TestLocal(Fake):
    @pytest.fixture
    def launcher(self, folder: RunFolder, fake: object) -> Launcher:
        return LocalLauncher(folder, workers=2)


@pytest.mark.slurm
class TestSlurm(Fake):
    @pytest.fixture
    def launcher(self, site: Site) -> Launcher:
        return SlurmLauncher(site.folder, site.options)
