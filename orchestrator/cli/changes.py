"""What `cancel` and `retry` have in common: an operation on chosen cells, and what became of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli.output import print_json, print_table, say
from orchestrator.rundir import RunFolder
from orchestrator.types import Cell

if TYPE_CHECKING:
    from orchestrator.operations import Done

Operation = Callable[[Iterable[Cell], RunFolder], "list[Done]"]


def change(
    operation: Operation, past: str, spec: str, overrides: Sequence[str], where: Sequence[str],
    as_json: bool,
) -> None:  # fmt: skip
    """Applies an operation to the chosen cells and prints which of them it changed."""
    from orchestrator.experiment import open_experiment

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
