"""orch show: one cell, whole: what it is, how it would be launched, what is accounted for."""

import shlex
from pathlib import Path

import click

from orchestrator.cli import common, completing
from orchestrator.cli.common import print_json, print_table
from orchestrator.identity import flatten
from orchestrator.pipeline.messages import say
from orchestrator.records import Cell, LaunchPlan
from orchestrator.runs.shown import of_runs, of_spec
from orchestrator.spec.rehearse import verdict_on


@click.command(short_help="Show one cell: settings, ledger, launch arguments, files.")
@click.argument(
    "target",
    nargs=-1,
    required=True,
    metavar="[SPEC] CELL [KEY=VALUE]...",
    shell_complete=completing.cells,
)
@click.option(
    "--argv", "part", flag_value="argv", help="Print the command, ready to be pasted into a shell."
)
@click.option(
    "--files",
    "part",
    flag_value="files",
    help="Print the files that are written before the launch.",
)
@click.option(
    "--env", "part", flag_value="env", help="Print the environment variables of the launch."
)
@click.option(
    "--sbatch",
    "part",
    flag_value="sbatch",
    help="Print the batch script that `orch run` submits for this cell.",
)
@click.option(
    "--ledger", "part", flag_value="ledger", help="Print how each field was passed to the library."
)
@common.as_json
@common.runs_dir
def command(target: tuple[str, ...], part: str | None, as_json: bool, runs_dir: Path) -> None:
    """Show one cell by its id (or the start of it) or its slug.

    With a SPEC, the cell need not have been launched. Without one, orch looks for it in the
    runs folder.
    """
    if len(target) > 1:
        shown = of_spec(target[0], target[1], target[2:])
    else:
        shown = of_runs(target[0], runs_dir)
    cell, plan = shown.cell, shown.plan
    if shown.rehearses and part != "sbatch":
        say(
            f"this is the launch of {plan.backend}; here `orch run` rehearses the cell with "
            f"{shown.rehearses} instead, as there is no cluster"
        )
    if shown.refusal and part != "sbatch":
        say(
            f"this is the launch of {plan.backend}; this machine cannot rehearse the cell: "
            f"{shown.refusal}"
        )
    if part == "sbatch":
        click.echo(shown.sbatch(), nl=False)
        say("sent by hand it starts nothing: a job starts only what `orch run` has submitted")
    elif as_json:
        print_json({"cell": cell.model_dump(mode="json"), "plan": plan.model_dump(mode="json")})
    elif part is None:
        _print_whole(cell, plan)
    else:
        _print_part(plan, part)


def _print_whole(cell: Cell, plan: LaunchPlan) -> None:
    click.echo(f"{cell.slug}  ({cell.id})  in {', '.join(cell.studies)}")
    click.echo(f"KL term: {verdict_on(cell.settings).summary}\n")
    declared = dict(flatten(cell.declared.model_dump())) if cell.declared else {}
    rows = [
        (name, _plain(value), _plain(declared[name]) if name in declared else "")
        for name, value in flatten(cell.settings.model_dump())
    ]
    print_table(("setting", "value", "declared as" if declared else ""), rows)
    click.echo(f"\n{plan.backend} {plan.version}:")
    _print_part(plan, "argv")
    _print_part(plan, "ledger")


def _print_part(plan: LaunchPlan, part: str) -> None:
    if part == "argv":
        click.echo(shlex.join(plan.argv))
    elif part == "env":
        for name, value in plan.env.items():
            click.echo(f"{name}={shlex.quote(value)}")
    elif part == "files":
        for name, text in plan.files.items():
            click.echo(f"--- {name}\n{text.rstrip()}")
    else:
        rows = [(e.field, e.status, e.key, e.value, e.note) for e in plan.ledger]
        print_table(("field", "how", "their key", "their value", "note"), rows)


def _plain(value: object) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
