"""orch show: one cell, whole: what it is, how it would be launched, what is accounted for."""

import shlex
from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import one_cell, print_json, print_table
from orchestrator.cli.conventions import set_next
from orchestrator.identity import flatten
from orchestrator.pipeline.messages import say
from orchestrator.records import Cell, LaunchPlan
from orchestrator.runs.experiment import is_spec
from orchestrator.runs.launch_folder import write_launch_folder
from orchestrator.runs.shown import of_runs, of_spec
from orchestrator.spec.rehearse import verdict_on


@click.command()
@click.argument(
    "target",
    nargs=-1,
    required=True,
    metavar="CELL | SPEC [CELL] [KEY=VALUE]...",
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
    "--ledger", "part", flag_value="ledger", help="Print how each field was passed to the library."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the launch into a new folder: launch.sh, its files and its prompts. It runs "
    "without orch, in a shell that has the library, or by `sbatch launch.sh`.",
)
@common.where
@common.as_json
@common.runs_dir
def command(
    target: tuple[str, ...],
    part: str | None,
    out: Path | None,
    where: tuple[str, ...],
    as_json: bool,
    runs_dir: Path,
) -> None:
    """Show one cell: by its id (or the start of it), its name, or a SPEC with -w.

    With a SPEC, the cell need not have been launched. Without one, orch looks for it in the
    runs folder.
    """
    named, overrides = one_cell(target)
    if named is None and not where and not is_spec(target[0]):
        shown = of_runs(target[0], runs_dir)
    else:
        shown = of_spec(target[0], named, overrides, where)
    cell, plan = shown.cell, shown.plan
    if out is not None:
        for sentence in write_launch_folder(
            shown.declared, shown.folder.experiment.removesuffix(".micro"), shown.site, out
        ):
            say(sentence)
        set_next(f"bash {shlex.quote(str(out / 'launch.sh'))}")
        if as_json:
            print_json({"written": str(out / "launch.sh")})
        else:
            click.echo(f"wrote {out / 'launch.sh'}")
        return
    if shown.note:
        say(f"this is the launch of {plan.backend}; {shown.note}")
    if as_json:
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
