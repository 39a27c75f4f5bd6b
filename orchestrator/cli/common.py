"""Arguments and options that several commands share."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.records import Cell
from orchestrator.rundir import RunFolder

if TYPE_CHECKING:
    from orchestrator.runs.operations import OperationResult


spec = click.argument("spec", metavar="SPEC")
overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
where = click.option(
    "-w",
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only cells for which this holds: kl.estimator=k3, '!kl.beta=0', state=failed, "
    "study=onpolicy, id=3f2a. May be given several times; all must hold.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
runs_dir = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    default=Path("runs"),
    envvar="ORCH_RUNS_DIR",
    show_default=True,
    help="Where experiments are kept.",
)


# How commands print: results on stdout, messages on stderr, plain when it is not a terminal.


MICRO_BANNER = (
    "MICRO SCALE  There is no cluster here: this is the same grid, rehearsed by the embedded\n"
    "             trainer on a model of 48,000 parameters. Its numbers are not the paper's."
)


def counted(count: int, noun: str) -> str:
    """Return `1 cell`, `2 cells`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(text: str) -> None:
    """Print a message for the person, on stderr."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; a number that is not finite becomes null."""
    click.echo(json.dumps(_finite(value), indent=1, ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: boxed on a terminal, aligned plain text elsewhere, nothing cut off."""
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
        for row in cells:
            table.add_row(*(text.replace("[", r"\[") for text in row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in [list(columns), *cells]:
        padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for people, or a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


# What `cancel` and `retry` have in common: an operation on chosen cells, and what became of it.


Operation = Callable[[Iterable[Cell], RunFolder], "list[OperationResult]"]


def change(
    operation: Operation,
    past: str,
    spec: str,
    overrides: Sequence[str],
    where: Sequence[str],
    as_json: bool,
) -> None:
    """Apply an operation to the chosen cells and print which of them it changed."""
    from orchestrator.runs.experiment import open_experiment

    experiment = open_experiment(spec, overrides).chosen(where)
    done = operation(experiment.cells, experiment.folder)
    if as_json:
        print_json([d._asdict() | {"directory": d.directory.path.name} for d in done])
        return
    changed = [(d.directory.path.name, d.note) for d in done if d.done]
    if changed:
        print_table(("cell", ""), changed)
    for note, count in Counter(d.note for d in done if not d.done).items():
        say(f"{count} left alone: {note}")
    click.echo(f"{len(changed)} of {len(done)} cells {past}")
