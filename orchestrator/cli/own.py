"""orch explain --of: what a person's own loss function optimises."""

import ast
import sys
from typing import Any

import click

from orchestrator.cli import common


def print_own(target: str, given: tuple[str, ...], python: str | None, *, as_json: bool) -> None:
    """Run a function in a child process, and print what it optimises."""
    from orchestrator.exact.own import examine
    from orchestrator.exact.own_answer import answer, rows

    if ":" not in target:
        raise click.UsageError(
            f"--of takes path.py:function or package.module:function, got '{target}'"
        )
    common.say(f"runs {target} in a process of its own, on the laboratory's batches")
    (findings,) = examine([target], dict(map(pair, given)), python or sys.executable)
    answered = answer(findings)
    if as_json:
        common.print_json({"target": target, "known": answered.known, "rows": list(rows(answered))})
        return
    for label, text in rows(answered):
        click.echo(common.hanging(label, text))


def pair(text: str) -> tuple[str, Any]:
    """Return parameter and value of `--call NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--call takes NAME=VALUE, got '{text}'")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
