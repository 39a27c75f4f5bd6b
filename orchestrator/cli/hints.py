"""What people type who know another tool: the way that orch has for it, in one line."""

from collections.abc import Iterable, Mapping

import click

from orchestrator.errors import did_you_mean
from orchestrator.spec.fields import FIELDS

COMMANDS_ELSEWHERE: Mapping[str, str] = {
    "sweep": "tune",
    "train": "run",
    "launch": "run",
    "submit": "run",
    "stop": "cancel",
    "evaluate": "eval",
}


def command_hint(name: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'tune'?` for the word of another tool, or for a slip."""
    if name in COMMANDS_ELSEWHERE:
        return f", did you mean '{COMMANDS_ELSEWHERE[name]}'?"
    return did_you_mean(name, known)


def sentence_of(error: click.ClickException) -> str:
    """Return a mistake in the words after `orch`, with what to type, and where help is."""
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "orch"
    if isinstance(error, click.NoSuchOption):
        message = f"{path} has no option {error.option_name}{_option_hint(error, context)}"
    return f"{message.rstrip('.')} ({path} --help)" if context else message


def _option_hint(error: click.NoSuchOption, context: click.Context | None) -> str:
    options = [word for param in context.command.params for word in param.opts] if context else []
    if near := did_you_mean(error.option_name, options):
        return near
    leaf = error.option_name.lstrip("-").replace("-", "_")
    field = next((name for name in FIELDS if name.rpartition(".")[2] == leaf), None)
    return f": write base.{field}=VALUE" if field else ""
