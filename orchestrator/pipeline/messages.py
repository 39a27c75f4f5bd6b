"""Messages for the person who started the command, on standard error."""

import click

_shown = {"messages": True, "more": False}


def set_quiet(quiet: bool) -> None:
    """Suppress messages from now on, or print them again."""
    _shown["messages"] = not quiet


def set_verbose(verbose: bool) -> None:
    """Print more from now on: the time taken, and the cause behind a mistake."""
    _shown["more"] = verbose


def is_verbose() -> bool:
    """Return True if the person wants more than usual."""
    return _shown["more"]


def say(text: str) -> None:
    """Print a message on standard error, unless messages are suppressed."""
    if _shown["messages"]:
        click.echo(text, err=True)
