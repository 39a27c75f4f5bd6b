"""orch env: the environments the trainers' libraries run in."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.environments import Environment, find_installed, installed, lock_of, locks, root
from orchestrator.environments.make import check as look_at
from orchestrator.environments.make import create as make
from orchestrator.environments.make import resolve
from orchestrator.errors import EnvironmentFault, OrchError

if TYPE_CHECKING:
    from orchestrator.environments import Flavour, Lock

folder = click.option(
    "--dir",
    "within",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of the environments (default: $ORCH_ENVIRONMENTS, or ~/.local/share/orch/"
    "environments).",
)
gpu = click.option(
    "--gpu",
    "flavour",
    flag_value="gpu",
    default=True,
    help="For training, with CUDA builds of everything (the default).",
)
cpu = click.option(
    "--cpu",
    "flavour",
    flag_value="cpu",
    help="For training on a machine without a GPU, with a CPU build of torch.",
)
contract = click.option(
    "--contract",
    "flavour",
    flag_value="contract",
    help="For the contract tests: the library without its heavy dependencies.",
)


@click.group(short_help="Make, list and check the environments of the libraries.")
def command() -> None:
    """Make, list and check the environments in which the libraries train.

    Each release has its own environment, from a lock in the folder of its backend. orch's own
    environment stays separate.
    """


@command.command()
@click.argument("release", metavar="LIBRARY[@VERSION]")
@gpu
@cpu
@contract
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
    flavour: "Flavour",
    within: Path | None,
    python: Path | None,
    checkout: Path | None,
    again: bool,
    as_json: bool,
) -> None:
    """Make the environment of one release, and check it."""

    lock = _lock(release, flavour)
    environment = make(
        lock, within or root(), python=python, again=again, checkout=checkout, say=say
    )
    if faults := look_at(environment, lock):
        raise EnvironmentFault(_listed(f"{environment.path} was made, but", faults))
    if as_json:
        print_json({"release": f"{lock.library}@{lock.version}", "path": str(environment.path)})
    else:
        click.echo(environment.path)


@command.command("list")
@folder
@common.as_json
def list_(within: Path | None, as_json: bool) -> None:
    """List every release that orch drives, and its environment if there is one."""

    rows = []
    for lock in locks():
        environment = find_installed(lock.library, lock.version, lock.flavour, within)
        place = (within or root()) / lock.folder
        state = (
            "not made"
            if environment is None
            else ("ready" if environment.lock == lock.digest else "made from another lock")
        )
        rows.append(
            {
                "release": f"{lock.library}@{lock.version}",
                "flavour": lock.flavour,
                "state": state,
                "python": " ".join(lock.words("python")),
                "packages": len(lock.pins) or None,
                "path": str(place),
            }
        )
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

    library, _, version = (release or "").partition("@")
    chosen = [
        e for e in installed(within) if library in ("", e.library) and version in ("", e.version)
    ]
    if not chosen:
        what = f" of {release}" if release else ""
        raise EnvironmentFault(
            f"there is no environment{what}; `orch env create {release or 'LIBRARY@VERSION'}` "
            "makes one, `orch env list` says which there can be"
        )

    def faults_of(each: Environment) -> list[str]:
        try:
            return look_at(each, lock_of(each.library, each.version, each.flavour))
        except OrchError as error:
            return [str(error)]

    faults_by_path = {str(each.path): faults_of(each) for each in chosen}
    if as_json:
        print_json(faults_by_path)
    else:
        for path, faults in faults_by_path.items():
            click.echo(_listed(path, faults) if faults else f"{path}: as its lock says")
    return int(any(faults_by_path.values()))


@command.command()
@click.argument("release", metavar="LIBRARY[@VERSION]")
@gpu
@cpu
@contract
@common.as_json
def lock(release: str, flavour: "Flavour", as_json: bool) -> None:
    """Print the lock of a release, resolved anew (needs uv; installs nothing)."""

    text = resolve(_lock(release, flavour))
    if as_json:
        print_json({"release": release, "flavour": flavour, "lock": text})
    else:
        click.echo(text, nl=False)


def _lock(release: str, flavour: "Flavour") -> "Lock":
    library, _, version = release.partition("@")
    return lock_of(library, version or None, flavour)


def _listed(what: str, faults: list[str]) -> str:
    return "\n".join([f"{what}:", *(f"  {fault}" for fault in faults)])
