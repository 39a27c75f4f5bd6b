"""orch completion: what makes a shell complete orch's words."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
WORDS_WITH_EQUALS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//=}  # kl.beta=0.1 is one word\n"
"""bash alone breaks words at `=`, and nothing could be completed after it."""


@click.command(short_help="Print what makes a shell complete orch's words.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the lines that make SHELL complete commands, options, specs, overrides with their
    config groups, fields and values of --where, and cells.

    \b
    orch completion bash >> ~/.bashrc
    orch completion zsh >> ~/.zshrc
    orch completion fish > ~/.config/fish/completions/orch.fish
    """
    script = get_completion_class(shell)
    assert script is not None, shell  # noqa: S101 - the choice above has only click's own shells
    if shell == "bash":
        click.echo(WORDS_WITH_EQUALS, nl=False)
    root = click.get_current_context().find_root().command
    click.echo(script(root, {}, "orch", "_ORCH_COMPLETE").source())
