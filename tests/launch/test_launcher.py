"""This machine and a real cluster pass the contract that any launcher must pass."""

import pytest

from orchestrator.launch.launcher import Launcher
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.slurm.submit import SlurmLauncher
from orchestrator.rundir import RunFolder
from tests.launch.contract import LauncherContract
from tests.launch.slurm.conftest import Site
from tests.launch.slurm.conftest import site as site


class TestLocal(LauncherContract):
    @pytest.fixture
    def launcher(self, folder: RunFolder, fake: object) -> Launcher:
        return LocalLauncher(folder, workers=2)


@pytest.mark.slurm
class TestSlurm(LauncherContract):
    @pytest.fixture
    def launcher(self, site: Site) -> Launcher:
        return SlurmLauncher(site.folder, site.options)
