"""The command line. Each command is a file of its own, imported when it is called."""

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from orchestrator.errors import OrchError
from orchestrator.version import __version__

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "Write a starter experiment, or a shipped one to change.",
        "plan": "Show what would run, why, and what its KL term really optimises.",
        "run": "Train, evaluate and report what is missing.",
        "status": "Show the states of cells, their progress and cost.",
    },
    "Look": {
        "show": "Show one cell: its settings, its launch, and a copy to take away.",
        "logs": "Show the output of one cell, or why cells failed.",
        "report": "Write the report, copy results to MLflow, or write them as tables.",
        "compare": "Compare configurations, with intervals.",
        "dashboard": "Write the report's page, and serve it and MLflow.",
    },
    "KL and loss": {
        "audit": "Say what any launch script really optimises.",
        "explain": "Say what a KL term or a policy loss really does, also in each library.",
        "diagnose": "Say what went wrong in a run, by its log.",
    },
    "Cluster": {
        "doctor": "Check this machine and say what to fix.",
        "env": "Make, list and check the environments of the libraries.",
        "data": "Prepare the prompts that cells train on.",
        "eval": "Evaluate checkpoints with lm-evaluation-harness.",
        "cancel": "Stop cells, and leave them alone until a retry.",
        "retry": "Make failed and cancelled cells run again.",
        "prune": "Remove cells that left the spec, or evaluated checkpoints.",
        "tune": "Search the best beta of each configuration, with Optuna.",
    },
}
COMMANDS: dict[str, str] = {name: text for group in GROUPS.values() for name, text in group.items()}


class LazyGroup(click.Group):
    """Lists commands from GROUPS without importing them."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import a command's module and return its command, or None for an unknown name."""
        if name not in COMMANDS:
            return None
        module = import_module(f"orchestrator.cli.{name}")
        command: click.Command = module.command
        conventions = import_module("orchestrator.cli.conventions")
        wrapped: click.Command = conventions.with_conventions(name, command)
        return wrapped

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raise UsageError with the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from orchestrator.cli.hints import command_hint

            raise click.UsageError(
                f"there is no command '{args[0]}'{command_hint(args[0], COMMANDS)}", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for `--help`."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=12)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orch")
def orch() -> None:
    """orch: what does this KL choice really do, in my library, at my beta, at my asynchrony?

    A YAML file declares a grid of KL configurations. orch trains every cell of the grid,
    evaluates the checkpoints, copies everything to MLflow, and reports what the numbers
    support.
    """


def _refuse(sentence: str, arguments: Sequence[str] | None) -> None:
    """Say why nothing was done: on stderr, and to who asked for JSON also as a document."""
    click.echo(sentence, err=True)
    if "--json" in (sys.argv[1:] if arguments is None else arguments):
        from orchestrator.cli.common import print_json

        print_json({"error": sentence})


def main() -> None:
    """Entry point of a process: end with the exit code of its command."""
    # Thousands of cells live to the end: a search for unreachable objects finds none of them.
    gc.set_threshold(200_000, 50, 1000)
    code = answer()
    gc.freeze()  # so that the interpreter does not search them when it ends
    sys.exit(code)


def answer(arguments: Sequence[str] | None = None) -> int:
    """Return a command's exit code: a user's mistake is a sentence and 1; ours keeps its traceback.

    A command returns its exit code (orchestrator/cli/conventions.py), or None for 0.

    arguments: the words after `orch`; those of this process if None.
    """
    code: int
    try:
        code = orch(arguments, prog_name="orch", standalone_mode=False) or 0
    except click.ClickException as error:
        from orchestrator.cli.hints import sentence_of

        _refuse(sentence_of(error), arguments)
        code = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    except OrchError as error:
        from orchestrator.pipeline.messages import is_verbose

        if is_verbose():
            traceback.print_exc()
        _refuse(str(error), arguments)
        code = 1
    except ModuleNotFoundError as error:
        from orchestrator.environments.extras import missing

        name = error.name or ""
        sentence = missing(name)
        if name.startswith(("orchestrator.audit", "lab")):
            sentence = f"this needs {name}, which this installation of orch leaves out"
        if sentence is None:
            raise
        _refuse(sentence, arguments)
        code = 1
    except BrokenPipeError:
        # Python flushes stdout once more at its exit, which would fail in the same way.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    return code
