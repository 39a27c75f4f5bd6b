"""The launchers of orch: which one a site names, and which one has a cell.

A command takes its launcher from here. One that is added is an entry in each of the two functions.
"""

from collections.abc import Iterator, Sequence

from orchestrator.launch.launcher import Launcher
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.slurm.submit import SlurmLauncher
from orchestrator.records import Cell, Site
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import slurm_options


def launcher_of(site: Site, where: str, folder: RunFolder) -> Launcher:
    """Return the launcher of a site. where: its kind, once `auto` has been settled.

    Raise EnvironmentFault for options that it does not take.
    """
    if where == "slurm":
        return SlurmLauncher(folder, slurm_options(site.options))
    return LocalLauncher(folder, site.workers)


def holders(cells: Sequence[Cell], folder: RunFolder) -> Iterator[tuple[Launcher, list[Cell]]]:
    """Yield each launcher that has some of these cells, with them, whatever the site file names
    now.

    A cell whose last attempt has an order was submitted to a cluster; this machine has the others.
    """
    sent = {cell.id for cell in cells if folder.cell(cell).is_submitted()}
    for launcher, own_cells in (
        (SlurmLauncher(folder), [cell for cell in cells if cell.id in sent]),
        (LocalLauncher(folder), [cell for cell in cells if cell.id not in sent]),
    ):
        if own_cells:
            yield launcher, own_cells
