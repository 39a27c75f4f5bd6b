"""One cell with its launch, as `orch show` prints it: of a spec, or from the runs folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.files import parsed, read_json
from orchestrator.library import neighbour
from orchestrator.records import Cell, LaunchPlan, Site, Spec
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.experiment import cell_named, find_cell, open_experiment


class ShownCell(NamedTuple):
    """A cell with its launch plan."""

    cell: Cell
    plan: LaunchPlan
    folder: RunFolder
    site: Site
    rehearses: str = ""
    """What this machine would launch in its place; empty: this very launch."""
    refusal: str = ""
    """Why this machine cannot rehearse the cell; empty if it can."""
    declared: Cell | None = None
    """The cell as the spec declares it, if this one is its rehearsal."""


def of_spec(
    spec: str, name: str | None, overrides: Sequence[str] = (), where: Sequence[str] = ()
) -> ShownCell:
    """Return a cell of a spec, launched or not, by its id or slug, or the one that filters select.

    Of a rehearsal that was not launched, the launch is that of the library which the spec declares.
    """
    experiment = open_experiment(spec, overrides)
    cells = experiment.chosen(where).cells
    cell = cell_named(name or "", cells)
    declared = next((c for c in experiment.declared if c.settings == cell.declared), cell)
    try:
        shown = _shown(cell, experiment.folder, experiment.spec.site)
    except UnsupportedSetting as error:
        if declared is cell:
            raise
        plan = _shown(declared, experiment.folder, experiment.spec.site).plan
        return ShownCell(
            cell, plan, experiment.folder, experiment.spec.site, "", str(error), declared
        )
    is_own = declared.settings.backend.name == shown.plan.backend
    shown = shown._replace(declared=declared)
    if is_own or experiment.folder.cell(cell).attempts():
        return shown
    plan = _shown(declared, experiment.folder, experiment.spec.site).plan
    return shown._replace(plan=plan, rehearses=shown.plan.backend)


def of_runs(name: str, runs_dir: Path) -> ShownCell:
    """Return a launched cell, by its id or slug, from any experiment of the runs folder."""
    folder, cell = find_cell(name, runs_dir)
    spec = read_json(folder.spec)
    return _shown(cell, folder, parsed(Spec, spec, folder.spec).site if spec else Site())


def _shown(cell: Cell, folder: RunFolder, site: Site) -> ShownCell:
    cell_dir = folder.cell(cell)
    attempts = cell_dir.attempts()
    attempt = attempts[-1] if attempts else AttemptDir(cell_dir.path / "attempts" / "1", 1)
    backend = plugins.load(cell.settings.backend.name)
    plan = neighbour.translated(backend, cell, cell_dir.paths(attempt))
    return ShownCell(cell, plan, folder, site)
