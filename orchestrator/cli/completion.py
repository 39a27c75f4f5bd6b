"""orch completion: what makes a shell complete orch's words."""

import click
from click.shell_completion import get_completion_class

from orchestrator.cli import common

SHELLS = ("bash", "zsh", "fish")
WORDS_WITH_EQUALS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//=}  # kl.beta=0.1 is one word\n"
"""bash alone breaks words at `=`, and nothing could be completed after it."""


@click.command(short_help="Print the lines for the completion of commands in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@common.as_json
def command(shell: str, as_json: bool) -> None:
    """Print the lines with which SHELL completes commands, options, specs, overrides with their
    config groups, fields and values of --where, and cells.

    \b
    orch completion bash >> ~/.bashrc
    orch completion zsh >> ~/.zshrc
    orch completion fish > ~/.config/fish/completions/orch.fish
    """
    script = get_completion_class(shell)
    assert script is not None, shell  # noqa: S101 - the choice above has only click's own shells
    root = click.get_current_context().find_root().command
    lines = script(root, {}, "orch", "_ORCH_COMPLETE").source()
    if shell == "bash":
        lines = WORDS_WITH_EQUALS + lines
    if as_json:
        common.print_json({"shell": shell, "script": lines})
    else:
        click.echo(lines)
