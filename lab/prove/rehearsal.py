"""`python -m lab rehearse`: cells of a spec, trained for a few real steps by their own library."""

import os
from collections.abc import Sequence
from dataclasses import replace

import click

from lab.prove import real, text
from lab.prove.command import how_it_trains
from lab.prove.real import RealRehearsal
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.errors import OrchError
from orchestrator.rundir import RunFolder
from orchestrator.spec.sentences import counted


@click.command()
@click.argument("spec")
@common.overrides
@common.where
@click.option(
    "--most",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="The largest number of different trainings.",
)
@how_it_trains
@common.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    most: int,
    patience: float,
    as_json: bool,
) -> int:
    """Train the cells of a spec at small scale with their real libraries, with stand-ins for GPU
    and inference engine.

    Print all deviations from the launch, what must hold in every run (the KL is 0 at the first
    step, trainer and sampler give tokens the same probability, rewards are the scorer's, the
    gradient is not 0, checkpoints load and are scored), and the table of predictions.

    Exit code 1: a difference is larger than its tolerance, or something went wrong.
    """
    everything = CellChoice(spec, overrides, where).experiment()
    full = RunFolder.of(everything.spec.site.runs_dir, everything.spec.name, "full")
    chosen = replace(everything, cells=everything.declared, folder=full).chosen(where)
    home = chosen.folder.path.with_name(f"{chosen.folder.experiment}.real")
    trainings = real.chosen(chosen.cells, home, say)
    say(f"{len(chosen.cells)} cells are {len(trainings)} different trainings at small scale")
    if not trainings:
        raise OrchError("no chosen cell has a library that takes it")
    if len(trainings) > most:
        say(f"the first {most} of {len(trainings)} run (--most)")
    # The Hugging Face hub would draw a bar for each file of weights.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    outcomes = []
    for each in trainings[:most]:
        outcomes.append(real.rehearse(each, home, say, patience=patience))
        if not as_json:
            _print(outcomes[-1])
    return _sum_up(outcomes, as_json)


def _sum_up(outcomes: Sequence[RealRehearsal], as_json: bool) -> int:
    troubles = list(real.summary(outcomes))
    if as_json:
        print_json({"trainings": list(map(text.rehearsal_data, outcomes)), "went_wrong": troubles})
        return int(bool(troubles))
    for trouble in troubles:
        click.echo(f"went wrong: {trouble}")
    count = sum(1 + len(each.others) for each in outcomes)
    click.echo(f"{counted(count, 'cell')} rehearsed, {counted(len(troubles), 'fault')}")
    return int(bool(troubles))


def _print(outcome: RealRehearsal) -> None:
    click.secho(f"\n{outcome.declared.slug}", bold=True)
    click.echo("differs from the launch:")
    rows = text.deviation_rows(outcome.deviations)
    common.print_table(("what", "launch", "here", "why"), rows)
    if outcome.checks:
        click.echo("\nmust hold in any run:")
        common.print_table(("", "", ""), text.check_rows(outcome.checks))
    if outcome.proof is not None:
        click.echo(f"\npredicted and done: {text.heading(outcome.proof)}")
        text.print_proof(outcome.proof)
