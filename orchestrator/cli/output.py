"""How commands print: results on stdout, messages on stderr, plain when it is not a terminal."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

MICRO_BANNER = (
    "MICRO SCALE  There is no cluster here: this is the same grid, rehearsed by the embedded\n"
    "             trainer on a model of 48,000 parameters. Its numbers are not the paper's."
)


def counted(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(text: str) -> None:
    """A message for the person, kept out of stdout."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout; what is no finite number is null."""
    click.echo(json.dumps(_finite(value), indent=1, ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: boxed on a terminal, aligned plain text elsewhere, nothing cut off."""
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
    """A number for people, or a dash."""
    return "-" if value is None else f"{value:.{digits}g}"
