"""Rehearse a cell with the real library: its own arguments, few train steps, this machine."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lab.cpu import Deviation
from lab.prove.checks import Check, checks, failures, leavings
from lab.prove.proof import NotReplayed, Proof, Run, read_run
from lab.prove.scaled_down import (
    BATCHES,
    ScaledDown,
    cells_of,
    environment_of,
    options_of,
    scaled_down,
    train,
)
from orchestrator import plugins
from orchestrator.errors import OrchError, UnsupportedSetting
from orchestrator.files import remove_tree
from orchestrator.launch.endings import Ending
from orchestrator.records import Cell
from orchestrator.rundir import CellDir


class RealRehearsal(NamedTuple):
    """The result of one rehearsed cell."""

    declared: Cell
    others: tuple[Cell, ...]
    """Declared cells that are the same at small scale."""
    deviations: tuple[Deviation, ...]
    """Every difference from the launch: fields of the cell, then arguments, variables and parts."""
    ending: Ending
    checks: tuple[Check, ...] = ()
    proof: Proof | None = None
    fault: str = ""
    """Why the rehearsal has no proof; empty if it has one."""

    @property
    def troubles(self) -> list[str]:
        """Return a sentence for each failure."""
        return list(failures(self.ending, self.checks, self.proof, self.fault))

    @property
    def holds(self) -> bool:
        """Return True if the cell trained, the proof holds and no check failed."""
        return not self.troubles


class Chosen(NamedTuple):
    """A cell at small scale, with the declared cells that it represents."""

    small: ScaledDown
    declared: tuple[Cell, ...]


def chosen(
    cells: Iterable[Cell], folder: Path, say: Callable[[str], None] = lambda _text: None
) -> list[Chosen]:
    """Return declared cells of libraries at small scale. Cells with one training run become one.

    Leave out, and say, what a library refuses.
    """
    by_name: dict[str, Chosen] = {}
    for cell in cells:
        if cell.scale == "micro":
            continue
        try:
            tiny = scaled_down(cell, folder, batches=BATCHES)
        except UnsupportedSetting as refusal:
            say(f"left out, {cell.slug}: {refusal}")
            continue
        twin = by_name.get(tiny.cell.id)
        by_name[tiny.cell.id] = Chosen(
            twin.small if twin else tiny, (*(twin.declared if twin else ()), cell)
        )
    return list(by_name.values())


def rehearse(
    each: Chosen,
    folder: Path,
    say: Callable[[str], None] = lambda _text: None,
    *,
    patience: float = 1,
) -> RealRehearsal:
    """Train a cell at small scale with its real library. Return its checks and its proof.

    patience: a factor of the limits of time.
    Remove the files of an earlier rehearsal first, because the library would continue from them.
    Raise OrchError if the library cannot run here.
    """
    declared, cell = each.declared[0], each.small.cell
    library = cell.settings.backend.name
    version = cell.settings.backend.version or plugins.load(library).versions[0]
    environment = environment_of(library, version)
    cell_dir = CellDir(folder / "cells" / cell.directory)
    if cell_dir.path.exists():
        remove_tree(cell_dir.path)
    say(f"{declared.slug}: {library} {version} trains {cell.settings.num_train_steps} steps ...")
    launch, ending = train(cell, cell_dir, environment, patience=patience)
    deviations = (*each.small.changes, *launch.deviations)
    outcome = RealRehearsal(declared, each.declared[1:], deviations, ending)
    if ending.state != "succeeded":
        return outcome
    options = options_of(library, version, environment)
    if cell.settings.lora is not None:
        return outcome._replace(checks=tuple(leavings(cell, cell_dir)))
    try:
        run = read_run(cell_dir)
        checked = tuple(checks(run, cell_dir, options))
        outcome = outcome._replace(checks=checked)
        return outcome._replace(proof=run.proof())
    except NotReplayed as error:
        unproven = Check("what the dialect predicts", None, str(error))
        return outcome._replace(checks=(*checked, unproven))
    except OrchError as error:
        return outcome._replace(fault=str(error))


def release_runs(
    library: str,
    version: str,
    folder: Path,
    say: Callable[[str], None],
    *,
    batches: int,
    patience: float = 1,
) -> list[tuple[str, Run]]:
    """Train the cells of a release's proof at small scale. Return their runs, with names.

    batches: the number of rollout batches. patience: as for `rehearse`. Raise OrchError
    if the library cannot run here, or a training fails.
    """
    environment = environment_of(library, version)
    runs = []
    for name, declared in cells_of(library, version):
        cell = scaled_down(declared, folder, batches=batches).cell
        cell_dir = CellDir(folder / "cells" / f"{name}-{cell.id}")
        say(f"{library} {version} trains {name} ...")
        _, ending = train(cell, cell_dir, environment, patience=patience)
        if ending.state != "succeeded":
            log = cell_dir.attempts()[-1].stderr
            raise OrchError(f"{library} {version}, {name}: {ending.message} ({log})")
        runs.append((name, read_run(cell_dir)))
    return runs


def summary(outcomes: Iterable[RealRehearsal]) -> Iterator[str]:
    """Yield a sentence for each failure, with the name of its cell."""
    for each in outcomes:
        yield from (f"{each.declared.slug}: {trouble}" for trouble in each.troubles)
