"""`python -m lab own`: what the loss of somebody's own trainer optimises."""

from pathlib import Path

import click

from orchestrator.cli.common import hanging, say
from orchestrator.cli.own import pair
from orchestrator.errors import LaboratoryError
from orchestrator.exact.own import examine
from orchestrator.exact.own_answer import answer, rows

LOSS = Path(__file__).parent / "trl" / "own_trainer.py"


@click.command()
@click.argument("trainer", metavar="TRAINER.PY:CLASS")
@click.option(
    "--python",
    required=True,
    metavar="PYTHON",
    help="A Python that has TRL, as of `orch env create trl@VERSION --cpu`.",
)
@click.option(
    "--call",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of GRPOConfig, or another argument of the class.",
)
def command(trainer: str, python: str, given: tuple[str, ...]) -> None:
    """Run the loss of a subclass of TRL's GRPOTrainer on the laboratory's batches."""
    if ":" not in trainer:
        raise click.UsageError(f"it takes TRAINER.PY:CLASS, got '{trainer}'")
    say(f"makes {trainer} and runs its loss in a process of its own")
    options = dict(map(pair, given))
    call = {name: options.pop(name) for name in ("beta",) if name in options}
    try:
        (findings,) = examine(
            [f"{LOSS}:TrainerLoss"], {"trainer": trainer, "options": options, **call}, python
        )
    except LaboratoryError as error:
        raise LaboratoryError(f"{trainer}: {str(error).partition(': ')[2]}") from None
    for label, text in rows(answer(findings)):
        click.echo(hanging(label, text))
