"""orch rehearse: the whole plan at micro scale, so that a mistake costs a minute, not a night."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.cli.manners import set_next
from orchestrator.cli.prove import proof_data
from orchestrator.cli.run import print_review, review_data
from orchestrator.errors import OrchError
from orchestrator.pipeline.rehearsal import foreseen_troubles, rehearsal_of, run_rehearsal
from orchestrator.prove import real as real_run
from orchestrator.prove import text
from orchestrator.prove.program import (
    SUFFIX,
    ProgramCommand,
    ProgramRehearsal,
    commands_of,
    rehearse_command,
    rehearse_program,
)
from orchestrator.prove.real import Chosen, RealRehearsal
from orchestrator.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.library.cpu import Deviation
    from orchestrator.pipeline.run import Review
    from orchestrator.prove.checks import Check
    from orchestrator.prove.proof import Proof
    from orchestrator.records import Cell

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
"""Suffixes of anybody's scripts, which --real reads as `orch audit` does."""


@click.command(short_help="Run the whole plan at micro scale, and report what would go wrong.")
@common.cells
@click.option(
    "--train-only", is_flag=True, help="Rehearse only training, without scores and report."
)
@click.option("--check-only", is_flag=True, help="Print what would go wrong, and run nothing.")
@click.option(
    "--real",
    is_flag=True,
    help="Train with each cell's own library on this machine, for a few real steps: the launch's "
    "own arguments, a tiny policy, stand-ins for GPU and inference engine.",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="With --real: the largest number of different trainings.",
)
@click.option(
    "--processes",
    is_flag=True,
    help="With --real: start the library's own processes (Ray), also where stand-ins could hold "
    "them in one. It takes minutes longer.",
)
@common.as_json
def command(
    choice: CellChoice,
    train_only: bool,
    check_only: bool,
    real: bool,
    most: int,
    processes: bool,
    as_json: bool,
) -> int:
    """Translate every cell of SPEC as it is declared, ask the cluster whether it would accept the
    jobs, and run the same grid with the embedded trainer. It runs on the cluster of the
    site, through the same queue; without a cluster, on this machine.

    With --real, SPEC may also be any launch script (.sh, .slurm, ...). It is read as `orch
    audit` reads it, and never run; a launch of TRL in it (`trl grpo`, `accelerate launch
    train.py`) is run as it is, but for the processes, with a small policy in the place of its own.
    So is a Python program (.py) that builds TRL's trainer itself. The library itself trains, in the
    environment that `orch env create LIBRARY@VERSION --cpu` makes. The command prints all
    deviations from the launch, what must hold in every run (the KL is 0 at the first step, trainer
    and sampler give tokens the same probability, rewards are the scorer's, the gradient is not 0,
    checkpoints load and are scored), and the table of `orch prove`.

    Exit code 1: something in the declared run would go wrong, or something in the rehearsal
    did.
    """
    if real and Path(choice.spec).suffix in SCRIPTS:
        return _real_script(Path(choice.spec), most, as_json, processes=processes)
    if real and Path(choice.spec).suffix == SUFFIX:
        return _real_program(Path(choice.spec), as_json)
    opened = choice.experiment()
    folder = RunFolder.of(opened.spec.site.runs_dir, opened.spec.name, "full")
    chosen = replace(opened, cells=opened.declared, folder=folder).chosen(choice.where)
    declared = list(chosen.cells)
    if real:
        return _real(declared, chosen.folder, most, as_json, processes=processes)
    foreseen = foreseen_troubles(chosen, declared)
    for trouble in () if as_json else foreseen:
        click.echo(f"would go wrong: {trouble}")
    code, happened = 0, list[str]()
    reviewed: Review | None = None
    if not check_only:
        try:
            code, happened, reviewed = run_rehearsal(
                rehearsal_of(chosen, declared, score=not train_only), score=not train_only
            )
        except OrchError as error:
            code, happened = 1, [str(error)]
    if as_json:
        reviews = {} if reviewed is None else review_data(reviewed)
        counts = {"cells": len(declared), "rehearsed": not check_only}
        print_json(counts | {"would_go_wrong": foreseen, "went_wrong": happened} | reviews)
        return code if code == 130 else int(bool(foreseen or happened) or code != 0)
    if reviewed is not None:
        print_review(reviewed)
    for trouble in happened:
        click.echo(f"went wrong: {trouble}")
    if code == 130:
        return code
    troubles = foreseen + happened
    click.echo(_sum(len(declared), len(troubles), check_only))
    return int(bool(troubles) or code != 0)


def _real_script(path: Path, most: int, as_json: bool, *, processes: bool) -> int:
    """Rehearse the launches of anybody's script. Return the exit code."""
    home = Path("runs").absolute() / f"{path.stem}.real"
    set_next("orch audit {spec}")
    if commands := commands_of(path):
        return _commands(commands, home, most, as_json)
    trainings = real_run.chosen_of_script(path, home)
    return _rehearsed(trainings, home, most, as_json, processes=processes)


def _real_program(path: Path, as_json: bool) -> int:
    """Rehearse a Python program. Return the exit code."""
    home = Path("runs").absolute() / f"{path.stem}.real"
    set_next("orch audit {spec}")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return _print_programs([rehearse_program(path, home, say)], "program", as_json)


def _commands(commands: "list[ProgramCommand]", home: Path, most: int, as_json: bool) -> int:
    """Rehearse commands that orch runs as they are. Return the exit code."""
    if len(commands) > most:
        say(f"the first {most} of {len(commands)} run (--most)")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    outcomes = [rehearse_command(each, home, say) for each in commands[:most]]
    return _print_programs(outcomes, "launch" if len(outcomes) == 1 else "launches", as_json)


def _print_programs(outcomes: "list[ProgramRehearsal]", noun: str, as_json: bool) -> int:
    troubles = [each for outcome in outcomes for each in outcome.troubles]
    if as_json:
        print_json({"programs": list(map(_program_data, outcomes)), "went_wrong": troubles})
        return int(bool(troubles))
    for outcome in outcomes:
        _print_parts(outcome.name, outcome.deviations, outcome.checks, outcome.proof)
        if outcome.without_proof:
            say(f"nothing is predicted: {outcome.without_proof}")
    for trouble in troubles:
        click.echo(f"went wrong: {trouble}")
    counted = _sum(len(outcomes), len(troubles), check_only=False)
    click.echo(counted.replace(" cells ", f" {noun} ", 1))
    return int(bool(troubles))


def _program_data(outcome: ProgramRehearsal) -> dict[str, object]:
    """Return the rehearsal of a program as plain data."""
    return {
        "name": outcome.name,
        "deviations": [each._asdict() for each in outcome.deviations],
        "checks": [each._asdict() for each in outcome.checks],
        "proof": None if outcome.proof is None else text.rows(outcome.proof),
        "without_proof": outcome.without_proof,
    }


def _real(
    declared: "list[Cell]", folder: RunFolder, most: int, as_json: bool, *, processes: bool
) -> int:
    """Rehearse with the real libraries. Return the exit code."""
    home = folder.path.with_name(f"{folder.experiment}.real")
    trainings = real_run.chosen(declared, home)
    say(f"{len(declared)} cells are {len(trainings)} different trainings at small scale")
    if not trainings:
        raise OrchError(
            "no chosen cell has a library: those of the embedded trainer need no --real"
        )
    return _rehearsed(trainings, home, most, as_json, processes=processes)


def _rehearsed(
    trainings: "list[Chosen]", home: Path, most: int, as_json: bool, *, processes: bool
) -> int:
    if len(trainings) > most:
        say(f"the first {most} of {len(trainings)} run (--most)")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # as weights are loaded
    outcomes = []
    for each in trainings[:most]:
        outcomes.append(real_run.rehearse(each, home, say, processes=processes))
        if not as_json:
            _print_real(outcomes[-1])
    troubles = list(real_run.summary(outcomes))
    if as_json:
        print_json({"trainings": list(map(_real_data, outcomes)), "went_wrong": troubles})
        return int(bool(troubles))
    for trouble in troubles:
        click.echo(f"went wrong: {trouble}")
    click.echo(
        _sum(sum(1 + len(each.others) for each in outcomes), len(troubles), check_only=False)
    )
    return int(bool(troubles))


def _real_data(outcome: "RealRehearsal") -> dict[str, object]:
    """Return a rehearsal with the real library as plain data."""
    cell, proof = outcome.declared, outcome.proof
    return {
        "slug": cell.slug,
        "deviations": [each._asdict() for each in outcome.deviations],
        "checks": [each._asdict() for each in outcome.checks],
        "proof": None if proof is None else proof_data(cell.slug, cell, proof),
        "fault": outcome.fault,
        "holds": outcome.holds,
    }


def _print_real(outcome: "RealRehearsal") -> None:
    _print_parts(outcome.declared.slug, outcome.deviations, outcome.checks, outcome.proof)


def _print_parts(
    name: str,
    deviations: "Sequence[Deviation]",
    checks: "Sequence[Check]",
    proof: "Proof | None",
) -> None:
    click.secho(f"\n{name}", bold=True)
    click.echo("differs from the launch:")
    common.print_table(("what", "launch", "here", "why"), text.deviation_rows(deviations))
    if checks:
        click.echo("\nmust hold in any run:")
        common.print_table(("", "", ""), text.check_rows(checks))
    if proof is not None:
        click.echo(f"\npredicted and done: {text.heading(proof)}")
        common.print_table(text.COLUMNS, text.rows(proof))
        for sentence in proof.left_out:
            say(sentence)
        click.echo(text.verdict(proof))


def _sum(cells: int, troubles: int, check_only: bool) -> str:
    how = "checked" if check_only else "checked and rehearsed"
    counts = (
        "nothing would go wrong that can be seen from here"
        if not troubles
        else (f"{troubles} thing{'s' if troubles > 1 else ''} to mend before the real run")
    )
    return f"{cells} cells {how}: {counts}"
