"""orch prove --rehearse: a launch, trained for a few real steps by its own library, here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.cli.manners import set_next
from orchestrator.cli.rehearsal import sum_of
from orchestrator.lab.prove import real as real_run
from orchestrator.lab.prove import text
from orchestrator.lab.prove.program import ProgramRehearsal
from orchestrator.lab.prove.real import RealRehearsal
from orchestrator.lab.rehearsal import is_foreign, rehearse_cells, rehearse_file
from orchestrator.pipeline.rehearsal import as_declared

if TYPE_CHECKING:
    from orchestrator.lab.cpu import Deviation
    from orchestrator.lab.prove.checks import Check
    from orchestrator.lab.prove.proof import Proof


def rehearse_real(choice: CellChoice, most: int, *, processes: bool, as_json: bool) -> int:
    """Train the cells of a spec, or the launches of anybody's file, and print what went wrong.

    Return the exit code: 1 if something did.
    """
    path = Path(choice.spec)
    show = _print_nothing if as_json else _print_real
    if not is_foreign(path):
        chosen = as_declared(choice.experiment()).chosen(choice.where)
        set_next("")
        return _sum_up(rehearse_cells(chosen, most, show, processes=processes), as_json)
    set_next("orch audit {target}")
    outcomes = rehearse_file(path, most, show, processes=processes)
    programs = [each for each in outcomes if isinstance(each, ProgramRehearsal)]
    if programs:
        noun = "launches" if len(programs) > 1 else "launch"
        return _sum_up_programs(programs, "program" if path.suffix == ".py" else noun, as_json)
    return _sum_up([each for each in outcomes if isinstance(each, RealRehearsal)], as_json)


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
    click.echo(sum_of(count, noun, len(troubles)))
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
