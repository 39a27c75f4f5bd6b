"""Messages for the person who started the line, on standard error."""

import click

_shown = {"messages": True, "more": False}


def set_quiet(quiet: bool) -> None:
    """Leave messages out from now on, or show them again."""
    _shown["messages"] = not quiet


def set_verbose(verbose: bool) -> None:
    """Show more from now on: the time taken, and what stands behind a mistake."""
    _shown["more"] = verbose


def is_verbose() -> bool:
    """Return True if the person wants more than usual."""
    return _shown["more"]


def say(text: str) -> None:
    """Print a message on standard error, unless messages are left out."""
    if _shown["messages"]:
        click.echo(text, err=True)


def counted(count: int, noun: str) -> str:
    """Return `1 cell`, `2 cells`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
