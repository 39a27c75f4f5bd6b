"""An experiment: a spec, its cells at the scale of the site, and their folder."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.errors import RunFolderError, SelectionError, did_you_mean
from orchestrator.files import read_object
from orchestrator.launch.local import gpus_of_cell
from orchestrator.launch.node.gpus import machine_gpus
from orchestrator.launch.slurm.cluster import has_controller
from orchestrator.records import Cell, Site, Spec
from orchestrator.rundir import RunFolder
from orchestrator.runs.state import read_state
from orchestrator.settings import Resources
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse
from orchestrator.spec.select import matches, none_selected, parse
from orchestrator.spec.shipped import shipped_names

LaunchKind = Literal["local", "slurm", "ray"]
"""Where cells are trained; local: on this machine, at either scale."""
Scale = Literal["micro", "full"]


@dataclass(frozen=True)
class Experiment:
    """A spec with its cells and folder."""

    spec: Spec
    declared: tuple[Cell, ...]
    """The number of cells in the spec. A rehearsal may have fewer. Empty after a selection."""
    cells: tuple[Cell, ...]
    where: LaunchKind
    folder: RunFolder
    scale: Scale
    """The scale at which the cells are run."""

    def chosen(self, terms: Sequence[str]) -> "Experiment":
        """Return the experiment with the cells that `--where` selects. Raise SelectionError if none
        is left. States are read from the run directories."""
        if not terms:
            return self

        selection = parse(terms)
        needs_state = any("state" in term for term in terms)
        cells = tuple(
            cell
            for cell in self.cells
            if matches(
                selection, cell, read_state(self.folder.cell(cell)).state if needs_state else None
            )
        )
        if not cells:
            raise SelectionError(
                f"{none_selected(terms, self.cells, self.spec.name)}\n"
                "`orch plan` without -w lists them"
            )
        return replace(self, cells=cells, declared=())


def open_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a spec and expand it for the site at which it runs. Write nothing."""
    spec = load(Path(path), overrides)
    declared = expand(spec)
    where = site_of(spec)
    scale: Scale = "full"
    if where == "local":
        declared, scale = _on_this_machine(declared, spec.site)
    cells = at_scale(declared, scale)
    folder = RunFolder.of(spec.site.runs_dir, spec.name, scale)
    folder.check()
    return Experiment(spec, tuple(declared), tuple(cells), where, folder, scale)


def _on_this_machine(cells: list[Cell], site: Site) -> tuple[list[Cell], Scale]:
    """Return the cells laid out on this machine's GPUs, and the scale at which they train.

    Cells that ask for more GPUs than are here keep their layout: `doubts` refuses to run them.
    """
    gpus = machine_gpus() if site.kind != "local" else ()
    most = max(map(gpus_of_cell, cells), default=0)
    if site.kind == "local" or (site.kind == "auto" and not 0 < most <= len(gpus)):
        return cells, "micro"
    layouts: dict[Resources, Resources] = {}
    for cell in cells:
        count = gpus_of_cell(cell)
        if 0 < count <= len(gpus):
            changes = {"num_nodes": 1, "gpus_per_node": count, "gpu": gpus[0].name}
            layouts[cell.resources] = cell.resources.but(**changes)
    return [
        cell.but(resources=layouts.get(cell.resources, cell.resources)) for cell in cells
    ], "full"


def at_scale(cells: Sequence[Cell], scale: Scale) -> Sequence[Cell]:
    """Return the cells as they run at a site.

    At micro scale, every cell is rehearsed. At full scale, cells run as declared. Only cells of the
    embedded trainer are rehearsals at every scale.
    """
    if scale == "micro":
        return rehearse(cells)
    declared = [cell for cell in cells if cell.scale == "full"]
    return declared + rehearse(cell for cell in cells if cell.scale == "micro")


def site_of(spec: Spec) -> LaunchKind:
    """Return where the cells run: `auto` is SLURM where its controller answers, else this machine.

    Raise EnvironmentFault for `auto` where a cluster is configured and does not answer.
    """
    kind = spec.site.kind
    if kind == "auto":
        return "slurm" if has_controller() else "local"
    return "local" if kind == "gpus" else kind


def saved_experiments(runs_dir: Path) -> list[Experiment]:
    """Return every experiment with a folder below `runs_dir`, as it was when it last ran."""
    _check_readable(runs_dir)
    experiments = []
    for marker in sorted(runs_dir.glob("*/spec.json")):
        folder = RunFolder(marker.parent.absolute())
        folder.check()
        spec = read_object(Spec, marker)
        if spec is None:
            continue
        scale: Scale = "micro" if folder.experiment.endswith(".micro") else "full"
        cells = tuple(cell_dir.read_cell() for cell_dir in folder.cells())
        where: LaunchKind = "local" if scale == "micro" else site_of(spec)
        if scale == "full" and spec.site.kind == "auto" and not machine_gpus():
            where = "slurm"  # its cells were submitted where a cluster answered
        experiments.append(Experiment(spec, cells, cells, where, folder, scale))
    return experiments


def is_spec(name: str) -> bool:
    """Return True for the path of a spec, or the name of a shipped one."""
    return name.endswith((".yaml", ".yml")) or name in shipped_names()


def launched_cells(
    name: str, overrides: Sequence[str], where: Sequence[str], runs_dir: Path
) -> list[tuple[RunFolder, Cell]]:
    """Return the cells that began of those that a spec has, filters among them; or one, by its id
    (or the start of it) or its slug. Raise SelectionError if there is none."""
    if not is_spec(name):
        return [find_cell(name, runs_dir)]
    experiment = open_experiment(name, overrides).chosen(where)
    begun = [cell for cell in experiment.cells if experiment.folder.cell(cell).attempts()]
    if not begun:
        run = shlex.join(["orch", "run", name, *overrides])
        raise SelectionError(f"no cell of {name} has begun; `{run}` trains them")
    return [(experiment.folder, cell) for cell in begun]


def find_cell(name: str, runs_dir: Path) -> tuple[RunFolder, Cell]:
    """Return a launched cell by its id (or the start of it) or its slug, in any experiment."""
    _check_readable(runs_dir)
    hits = [
        (RunFolder(cell_dir.parent.parent.absolute()), cell_dir)
        for cell_dir in sorted(runs_dir.glob("*/cells/*"))
        if cell_dir.name.rpartition("-")[2].startswith(name)
        or name in (cell_dir.name, cell_dir.name.rpartition("-")[0])
    ]
    if not hits:
        near = did_you_mean(name, {path.name for path in runs_dir.glob("*/cells/*")})
        raise SelectionError(
            f"no launched cell is called '{name}' below {runs_dir}{near}; `orch plan SPEC -v` "
            "lists those of a spec, and `orch show SPEC CELL` shows one that is not launched yet"
        )
    if len(hits) > 1:
        listed = "\n".join(f"  {path.name}  ({folder.experiment})" for folder, path in hits[:10])
        raise SelectionError(f"'{name}' names {len(hits)} cells; give more of the id:\n{listed}")
    folder, path = hits[0]
    return folder, next(c for c in folder.cells() if c.path.name == path.name).read_cell()


def _check_readable(runs_dir: Path) -> None:
    """Raise RunFolderError for a folder that may not be listed: it would seem empty."""
    if runs_dir.is_dir() and not os.access(runs_dir, os.R_OK | os.X_OK):
        raise RunFolderError(
            f"{runs_dir}: permission denied: make it readable, or name another with --runs-dir"
        )


def cell_named(name: str, cells: Sequence[Cell]) -> Cell:
    """Return one of these cells by its id (or the start of it) or its slug."""
    hits = [c for c in cells if c.id.startswith(name) or name in (c.slug, c.directory)]
    if len(hits) != 1:
        alike = hits or [c for c in cells if name in c.directory] or list(cells)
        some = ", ".join(f"{c.slug} ({c.id})" for c in alike[:5])
        what = "is no cell of this spec" if not hits else f"names {len(hits)} cells: give one"
        raise SelectionError(f"{f'{name!r} ' * bool(name)}{what}; for instance: {some}")
    return hits[0]
