"""`python -m lab adopt`: the tables of a release, from the release itself."""

from pathlib import Path

import click

from lab.adopt.adopting import Adopted, adopt
from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.errors import EnvironmentFault

MOST_ROWS = 40


@click.command()
@click.argument("release", metavar="LIBRARY@VERSION")
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A Python environment that has the release, or the folder of its source. Default: its "
    "environments are made.",
)
@click.option("--train", is_flag=True, help="Also train on the CPU, and replay that run.")
@common.as_json
def command(release: str, source: Path | None, train: bool, as_json: bool) -> int:
    """Write the tables of a release: its keys, defaults and closed values as its own parser has
    them, and what its own functions measure. Print what differs from the nearest known release.

    They are written into backends/LIBRARY of this checkout.

    \b
    The last line is the rung that the release reached:
      parsed     its parser takes the launches that orch sends, with the values sent
      probed     its KL, reward, advantage and loss functions were measured
      trained    --train: it trained small cells on this machine
      predicted  their replay in its dialect gives its losses and gradients

    Exit code 1: it reached none, or --train did not end in *predicted*.
    """
    library, _, version = release.partition("@")
    if not version:
        raise click.UsageError(f"name a release as LIBRARY@VERSION, got '{release}'")
    if train and source is not None:
        raise EnvironmentFault("--train needs the environment that orch makes: leave --source out")
    outcome = adopt(library, version, source, train=train, say=say)
    if as_json:
        print_json(
            {
                **outcome._asdict(),
                "rung": outcome.rung,
                "changes": {
                    name: [each._asdict() if name != "texts" else each for each in rows]
                    for name, rows in outcome.changes._asdict().items()
                },
                "measured": outcome.measured._asdict(),
                "files": [str(file) for file in outcome.files],
            }
        )
    else:
        _print(outcome)
    return int(not outcome.rung or (train and outcome.rung != "predicted"))


def _print(outcome: Adopted) -> None:
    rows, texts, others = outcome.changes
    name = f"{outcome.library} {outcome.version}"
    if rows:
        click.echo(
            f"{len(rows)} rows to look at in {name}: they differ from {outcome.neighbour}.\n"
        )
        columns = ("", "what", outcome.neighbour, outcome.version)
        print_table(columns, rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            click.echo(f"and {len(rows) - MOST_ROWS} more (--json lists them)")
    else:
        click.echo(
            f"nothing changed in {name}: what orch reads and measures is as in {outcome.neighbour}."
        )
    click.echo()
    if texts:
        click.echo(f"probed functions with another text: {', '.join(texts)}")
    if others:
        click.echo(
            f"{len(others)} more keys differ; orch sends none of them, and none says what is "
            "optimised: --json lists them"
        )
    for sentence in outcome.measured.refused:
        click.echo(f"its parser: {sentence}")
    for sentence in outcome.measured.unmeasured:
        click.echo(f"not measured: {sentence}")
    if outcome.measured.why:
        click.echo(f"training: {outcome.measured.why}")
    click.echo(f"written: {', '.join(_near(file) for file in outcome.files)}")
    click.echo(f"{name}: {_rung(outcome)}")


def _near(file: Path) -> str:
    current = Path.cwd()
    return str(file.relative_to(current) if file.is_relative_to(current) else file)


def _rung(outcome: Adopted) -> str:
    launches = f"{outcome.measured.launches} launches"
    return {
        "": f"not parsed: see above what its parser makes of {launches}",
        "parsed": f"parsed: its parser takes {launches} with the values that orch sends",
        "probed": f"probed, and its parser takes {launches} with the values that orch sends",
        "trained": "trained, but not as its dialect predicts",
        "predicted": "predicted: it trained on this machine as its dialect predicts",
    }[outcome.rung]
