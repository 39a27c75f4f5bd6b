"""The launchers of orch: the launcher of a site, and the launcher of a cell.

Commands get their launcher from this module. To add a launcher, add an entry to both functions.
"""

from collections.abc import Iterator, Sequence

from orchestrator.launch.launcher import Launcher
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.slurm.submit import SlurmLauncher
from orchestrator.records import Cell, Site
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import slurm_options


def launcher_of(site: Site, where: str, folder: RunFolder) -> Launcher:
    """Return the launcher of a site. where: the site's kind, with `auto` already decided.

    Raise EnvironmentFault for options that the launcher does not accept.
    """
    if where == "slurm":
        return SlurmLauncher(folder, slurm_options(site.options))
    return LocalLauncher(folder, site.workers)


def holders(cells: Sequence[Cell], folder: RunFolder) -> Iterator[tuple[Launcher, list[Cell]]]:
    """Yield each launcher that has some of these cells, together with the cells.

    A cell whose last attempt has an order was submitted to a cluster. This machine has the others.
    The site file, which may have changed since, is not used.
    """
    sent = {cell.id for cell in cells if folder.cell(cell).is_submitted()}
    for launcher, own_cells in (
        (SlurmLauncher(folder), [cell for cell in cells if cell.id in sent]),
        (LocalLauncher(folder), [cell for cell in cells if cell.id not in sent]),
    ):
        if own_cells:
            yield launcher, own_cells
