"""The launchers of orch: the launcher of a site, and the launcher of a cell.

Commands get their launcher from this module. To add a launcher, add an entry to both functions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.launch.launcher import Launcher
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.ray.look import is_ray
from orchestrator.launch.ray.submit import RayLauncher
from orchestrator.launch.slurm.submit import SlurmLauncher
from orchestrator.records import Cell, Site
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import ray_options, slurm_options


def launcher_of(site: Site, where: str, folder: RunFolder) -> Launcher:
    """Return the launcher of a site. where: the site's kind, with `auto` already decided.

    Raise EnvironmentFault for options that the launcher does not accept.
    """
    if where == "slurm":
        return SlurmLauncher(folder, slurm_options(site.options))
    if where == "ray":
        return RayLauncher(folder, ray_options(site.options))
    return LocalLauncher(folder, site.workers, site.options)


def holders(cells: Sequence[Cell], folder: RunFolder) -> Iterator[tuple[Launcher, list[Cell]]]:
    """Yield each launcher that has some of these cells, together with the cells.

    A cell whose last attempt has an order was submitted to a cluster. This machine has the others.
    The site file, which may have changed since, is not used.
    """
    cells_of: dict[str, list[Cell]] = {}
    for cell in cells:
        sent = [attempt for attempt in folder.cell(cell).attempts()[-1:] if attempt.order.exists()]
        place = ("ray" if is_ray(sent[0]) else "slurm") if sent else "local"
        cells_of.setdefault(place, []).append(cell)
    for place, own_cells in sorted(cells_of.items(), reverse=True):
        yield _LAUNCHERS[place](folder), own_cells


_LAUNCHERS: Mapping[str, Callable[[RunFolder], Launcher]] = {
    "slurm": SlurmLauncher,
    "ray": RayLauncher,
    "local": LocalLauncher,
}
