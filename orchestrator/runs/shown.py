"""One cell with its launch, as `orch show` prints it: of a spec, or from the runs folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.files import read_object
from orchestrator.library import neighbour
from orchestrator.records import Cell, LaunchPlan, Site, Spec
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import cell_named, find_cell, open_experiment


class ShownCell(NamedTuple):
    """A cell with its launch plan."""

    cell: Cell
    plan: LaunchPlan
    folder: RunFolder
    site: Site
    declared: Cell
    """The cell as the spec declares it; a rehearsal's own is another."""
    note: str = ""
    """What this machine does in the place of the plan, in a sentence; empty: this very launch."""


def of_spec(
    spec: str, name: str | None, overrides: Sequence[str] = (), where: Sequence[str] = ()
) -> ShownCell:
    """Return a cell of a spec, launched or not, by its id or slug, or the one that filters select.

    Of a rehearsal that was not launched, the launch is that of the library which the spec declares.
    """
    experiment = open_experiment(spec, overrides)
    folder, site = experiment.folder, experiment.spec.site
    cell = cell_named(name or "", experiment.chosen(where).cells)
    declared = next((c for c in experiment.declared if c.settings == cell.declared), cell)
    try:
        plan = _plan(cell, folder)
        if plan.backend == declared.settings.backend.name or folder.cell(cell).attempts():
            return ShownCell(cell, plan, folder, site, declared)
        note = f"`orch run` rehearses the cell with {plan.backend} here, as there is no cluster"
    except UnsupportedSetting as error:
        if declared is cell:
            raise
        note = f"this machine cannot rehearse the cell: {error}"
    return ShownCell(cell, _plan(declared, folder), folder, site, declared, note)


def of_runs(name: str, runs_dir: Path) -> ShownCell:
    """Return a launched cell, by its id or slug, from any experiment of the runs folder."""
    folder, cell = find_cell(name, runs_dir)
    spec = read_object(Spec, folder.spec)
    return ShownCell(cell, _plan(cell, folder), folder, spec.site if spec else Site(), cell)


def _plan(cell: Cell, folder: RunFolder) -> LaunchPlan:
    cell_dir = folder.cell(cell)
    attempts = cell_dir.attempts()
    paths = cell_dir.paths(attempts[-1]) if attempts else cell_dir.first_paths()
    return neighbour.translated(plugins.load(cell.settings.backend.name), cell, paths)
