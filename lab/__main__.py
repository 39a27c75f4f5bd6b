"""`python -m lab COMMAND`: measure what other people's code does, from a checkout of orch."""

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from orchestrator.errors import OrchError

COMMANDS = {
    "measure": ("lab.probes.command", "Measure what KL terms and corrections of releases are."),
    "prove": ("lab.prove.command", "Replay a run: does the library do what orch predicts?"),
    "rehearse": ("lab.prove.rehearsal", "Train cells of a spec a few real steps on this machine."),
    "own": ("lab.own", "Name what the loss of somebody's own trainer optimises."),
    "adopt": ("lab.adopt.command", "Read and measure a release, and say what changed."),
}
"""Command -> its module, which is imported when it is called, and its line in the help."""


class _Commands(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import a command's module and return its command, or None for an unknown name."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[name][0]).command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for `--help`, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """Measure what other people's code does. The results are data that orch reads."""


def answer(arguments: Sequence[str] | None = None) -> int:
    """Return a command's exit code; a user's mistake is a sentence and 1.

    arguments: the words after `python -m lab`; those of this process if None.
    """
    code: int
    try:
        code = lab(arguments, prog_name="python -m lab", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except OrchError as error:
        click.echo(str(error), err=True)
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(answer())
