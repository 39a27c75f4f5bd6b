"""orch rehearse: the whole plan at micro scale, so that a mistake costs a minute, not a night."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.cli.manners import set_next
from orchestrator.cli.run import print_review
from orchestrator.errors import OrchError
from orchestrator.lab.prove import real as real_run
from orchestrator.lab.prove import text
from orchestrator.lab.prove.program import ProgramRehearsal
from orchestrator.lab.prove.real import RealRehearsal
from orchestrator.lab.rehearsal import is_foreign, rehearse_cells, rehearse_file
from orchestrator.pipeline.rehearsal import (
    as_declared,
    foreseen_troubles,
    rehearsal_of,
    run_rehearsal,
)

if TYPE_CHECKING:
    from orchestrator.lab.cpu import Deviation
    from orchestrator.lab.prove.checks import Check
    from orchestrator.lab.prove.proof import Proof
    from orchestrator.pipeline.stages import Review


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
    path = Path(choice.spec)
    show = _print_nothing if as_json else _print_real
    if real and is_foreign(path):
        set_next("orch audit {spec}")
        outcomes = rehearse_file(path, most, show, processes=processes)
        programs = [each for each in outcomes if isinstance(each, ProgramRehearsal)]
        if programs:
            noun = "launches" if len(programs) > 1 else "launch"
            return _sum_up_programs(programs, "program" if path.suffix == ".py" else noun, as_json)
        return _sum_up([each for each in outcomes if isinstance(each, RealRehearsal)], as_json)
    chosen = as_declared(choice.experiment()).chosen(choice.where)
    if real:
        return _sum_up(rehearse_cells(chosen, most, show, processes=processes), as_json)
    foreseen = foreseen_troubles(chosen)
    for trouble in () if as_json else foreseen:
        click.echo(f"would go wrong: {trouble}")
    code, happened = 0, list[str]()
    reviewed: Review | None = None
    if not check_only:
        try:
            code, happened, reviewed = run_rehearsal(
                rehearsal_of(chosen, score=not train_only), score=not train_only
            )
        except OrchError as error:
            code, happened = 1, [str(error)]
    if as_json:
        reviews = {} if reviewed is None else reviewed.data()
        counts = {"cells": len(chosen.cells), "rehearsed": not check_only}
        print_json(counts | {"would_go_wrong": foreseen, "went_wrong": happened} | reviews)
        return code if code == 130 else int(bool(foreseen or happened) or code != 0)
    if reviewed is not None:
        print_review(reviewed)
    for trouble in happened:
        click.echo(f"went wrong: {trouble}")
    if code == 130:
        return code
    troubles = foreseen + happened
    click.echo(_sum(len(chosen.cells), "cells", len(troubles), check_only))
    return int(bool(troubles) or code != 0)


def _sum_up_programs(outcomes: Sequence[ProgramRehearsal], noun: str, as_json: bool) -> int:
    """Print the rehearsals of programs. Return the exit code."""
    troubles = [each for outcome in outcomes for each in outcome.troubles]
    if as_json:
        print_json({"programs": list(map(text.program_data, outcomes)), "went_wrong": troubles})
        return int(bool(troubles))
    for outcome in outcomes:
        _print_parts(outcome.name, outcome.deviations, outcome.checks, outcome.proof)
        if outcome.without_proof:
            say(f"nothing is predicted: {outcome.without_proof}")
    return _end(troubles, len(outcomes), noun)


def _sum_up(outcomes: Sequence[RealRehearsal], as_json: bool) -> int:
    """Print what went wrong in rehearsals, which are printed themselves. Return the exit code."""
    troubles = list(real_run.summary(outcomes))
    if as_json:
        print_json({"trainings": list(map(text.rehearsal_data, outcomes)), "went_wrong": troubles})
        return int(bool(troubles))
    return _end(troubles, sum(1 + len(each.others) for each in outcomes), "cells")


def _end(troubles: Sequence[str], count: int, noun: str) -> int:
    for trouble in troubles:
        click.echo(f"went wrong: {trouble}")
    click.echo(_sum(count, noun, len(troubles), check_only=False))
    return int(bool(troubles))


def _print_nothing(_outcome: RealRehearsal) -> None:
    """Print nothing, because JSON is one document at the end."""


def _print_real(outcome: RealRehearsal) -> None:
    _print_parts(outcome.declared.slug, outcome.deviations, outcome.checks, outcome.proof)


def _print_parts(
    name: str,
    deviations: Sequence["Deviation"],
    checks: Sequence["Check"],
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


def _sum(count: int, noun: str, troubles: int, check_only: bool) -> str:
    how = "checked" if check_only else "checked and rehearsed"
    counts = (
        "nothing would go wrong that can be seen from here"
        if not troubles
        else (f"{troubles} thing{'s' if troubles > 1 else ''} to mend before the real run")
    )
    return f"{count} {noun} {how}: {counts}"
