"""orch env: the environments the trainers' libraries run in."""

from collections.abc import Callable
from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.environments import make
from orchestrator.environments.lock import Flavour, environment_rows, lock_named, root
from orchestrator.errors import EnvironmentFault

folder = click.option(
    "--dir",
    "within",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of the environments (default: $ORCH_ENVIRONMENTS, or ~/.local/share/orch/"
    "environments).",
)
_FLAVOURS = {
    "gpu": "For training, with CUDA builds of everything (the default).",
    "cpu": "For training on a machine without a GPU, with a CPU build of torch.",
    "contract": "For the contract tests: the library without its heavy dependencies.",
}


def flavours(function: Callable[..., object]) -> Callable[..., object]:
    """Add the options of the flavours of an environment."""
    for name, text in reversed(_FLAVOURS.items()):
        function = click.option(f"--{name}", "flavour", flag_value=name, help=text)(function)
    return function


@click.group(short_help="Make, list and check the environments of the libraries.")
def command() -> None:
    """Make, list and check the environments in which the libraries train.

    Each release has its own environment, from a lock in the folder of its backend. orch's own
    environment stays separate.
    """


@command.command()
@click.argument("release", metavar="LIBRARY[@VERSION]")
@flavours
@folder
@click.option(
    "--python",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The Python to use. Default: one of the releases that the lock names.",
)
@click.option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Git repository of a library that is on no registry.",
)
@click.option("--again", is_flag=True, help="Make the environment again if it exists.")
@common.as_json
def create(
    release: str,
    flavour: Flavour | None,
    within: Path | None,
    python: Path | None,
    checkout: Path | None,
    again: bool,
    as_json: bool,
) -> None:
    """Make the environment of one release, and check it."""
    lock = lock_named(release, flavour or "gpu")
    environment = make.create(
        lock, within or root(), python=python, again=again, checkout=checkout, say=say
    )
    if faults := make.check(environment, lock):
        raise EnvironmentFault(make.listed(f"{environment.path} was made, but", faults))
    if as_json:
        print_json({"release": f"{lock.library}@{lock.version}", "path": str(environment.path)})
    else:
        click.echo(environment.path)


@command.command("list")
@folder
@common.as_json
def list_(within: Path | None, as_json: bool) -> None:
    """List every release that orch drives, and its environment if there is one."""
    rows = environment_rows(within)
    if as_json:
        print_json(rows)
    else:
        print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@command.command()
@click.argument("release", metavar="[LIBRARY[@VERSION]]", required=False)
@folder
@common.as_json
def check(release: str | None, within: Path | None, as_json: bool) -> int:
    """Import each library in its environment and compare its versions with its lock.

    Exit code 1: a version differs, or there is no environment to check.
    """
    faults_by_path = make.check_installed(release or "", within)
    if as_json:
        print_json(faults_by_path)
    else:
        for path, faults in faults_by_path.items():
            click.echo(make.listed(path, faults) if faults else f"{path}: as its lock says")
    return int(any(faults_by_path.values()))


@command.command()
@click.argument("release", metavar="LIBRARY[@VERSION]")
@flavours
@common.as_json
def lock(release: str, flavour: Flavour | None, as_json: bool) -> None:
    """Print the lock of a release, resolved anew (needs uv; installs nothing)."""
    its_lock = lock_named(release, flavour or "gpu")
    text = make.resolve(its_lock)
    if as_json:
        print_json({"release": release, "flavour": its_lock.flavour, "lock": text})
    else:
        click.echo(text, nl=False)
