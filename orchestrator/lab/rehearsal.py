"""A rehearsal with the real library: a few train steps of cells, of a script, of a program."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from orchestrator.errors import OrchError
from orchestrator.lab.prove import program, real
from orchestrator.lab.prove.program import ProgramRehearsal
from orchestrator.lab.prove.real import RealRehearsal
from orchestrator.pipeline.messages import say
from orchestrator.runs.experiment import Experiment

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
"""Suffixes of launch scripts, which are read as `orch audit` reads them."""
Part = TypeVar("Part")


def is_foreign(path: Path) -> bool:
    """Return True for a launch script or a Python program; False for a spec."""
    return path.suffix in (*SCRIPTS, program.SUFFIX)


def rehearse_cells(
    chosen: Experiment, most: int, show: Callable[[RealRehearsal], None], *, processes: bool
) -> list[RealRehearsal]:
    """Train declared cells with their real libraries. Return the results.

    most: the largest number of different trainings. show: called with each result. Raise OrchError
    if no cell has a library.
    """
    home = chosen.folder.path.with_name(f"{chosen.folder.experiment}.real")
    trainings = real.chosen(chosen.cells, home)
    say(f"{len(chosen.cells)} cells are {len(trainings)} different trainings at small scale")
    if not trainings:
        raise OrchError(
            "no chosen cell has a library: those of the embedded trainer need no --real"
        )
    return _rehearsed(trainings, home, most, show, processes=processes)


def rehearse_file(
    path: Path, most: int, show: Callable[[RealRehearsal], None], *, processes: bool
) -> list[RealRehearsal] | list[ProgramRehearsal]:
    """Rehearse the launches of a script, or a Python program, with their real library.

    Programs and commands that orch can run as they are give ProgramRehearsals, other launches give
    RealRehearsals. Parameters as for `rehearse_cells`. Raise OrchError if there is no such file.
    """
    if not path.is_file():
        raise OrchError(
            f"there is no file {path}: name a launch script, a Python program or a spec"
        )
    home = Path("runs").absolute() / f"{path.stem}.real"
    if path.suffix == program.SUFFIX:
        _hide_progress_bars()
        return [program.rehearse_program(path, home, say)]
    if commands := program.commands_of(path):
        _hide_progress_bars()
        first = _first(commands, most)
        return [program.rehearse_command(each, home, say) for each in first]
    trainings = real.chosen_of_script(path, home)
    return _rehearsed(trainings, home, most, show, processes=processes)


def _rehearsed(
    trainings: Sequence[real.Chosen],
    home: Path,
    most: int,
    show: Callable[[RealRehearsal], None],
    *,
    processes: bool,
) -> list[RealRehearsal]:
    first = _first(trainings, most)
    _hide_progress_bars()
    outcomes = []
    for each in first:
        outcomes.append(real.rehearse(each, home, say, processes=processes))
        show(outcomes[-1])
    return outcomes


def _first(parts: Sequence[Part], most: int) -> Sequence[Part]:
    if len(parts) > most:
        say(f"the first {most} of {len(parts)} run (--most)")
    return parts[:most]


def _hide_progress_bars() -> None:
    """Keep the Hugging Face hub from drawing a bar for each file of weights."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
