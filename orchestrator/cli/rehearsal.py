"""orch plan --rehearse: the whole plan at micro scale: a mistake costs a minute, not a night."""

import click

from orchestrator.cli.common import CellChoice, print_json
from orchestrator.cli.compare import print_review
from orchestrator.errors import OrchError
from orchestrator.pipeline.rehearsal import (
    as_declared,
    foreseen_troubles,
    rehearsal_of,
    run_rehearsal,
)
from orchestrator.pipeline.stages import Review


def rehearse(choice: CellChoice, *, train_only: bool, check_only: bool, as_json: bool) -> int:
    """Print what would go wrong in the declared run, and what did in its rehearsal.

    Return the exit code: 1 if anything would or did.
    """
    chosen = as_declared(choice.experiment()).chosen(choice.where)
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
    click.echo(sum_of(len(chosen.cells), "cells", len(troubles), check_only=check_only))
    return int(bool(troubles) or code != 0)


def sum_of(count: int, noun: str, troubles: int, *, check_only: bool = False) -> str:
    """Return the sentence that ends a rehearsal."""
    how = "checked" if check_only else "checked and rehearsed"
    counts = (
        "no fault found"
        if not troubles
        else (f"{troubles} thing{'s' if troubles > 1 else ''} to mend before the real run")
    )
    return f"{count} {noun} {how}: {counts}"
