"""`python -m lab prove`: does a library do what its dialect predicts?"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from lab.prove import text
from lab.prove.proof import Run, read_run
from lab.prove.real import release_runs
from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.kl import library_semantics
from orchestrator.kl.library_semantics import Dialect
from orchestrator.rundir import CellDir

Command = Callable[..., int]


def how_it_trains(command: Command) -> Command:
    """Add the options of a training on this machine."""
    return click.option(
        "--patience",
        type=click.FloatRange(1),
        default=1.0,
        show_default=True,
        help="A factor of the limits of time, for a busy machine.",
    )(command)


@click.command()
@click.argument("target", metavar="LIBRARY@VERSION|CELL_DIRECTORY")
@click.option(
    "--policy",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of the policy that the run started from.",
)
@click.option(
    "--dialect",
    "other",
    metavar="TEXT",
    help="Use another dialect than the library's, written as `orch explain` writes it.",
)
@click.option(
    "--batches",
    type=click.IntRange(1, 200),
    default=8,
    show_default=True,
    help="The number of rollout batches of each cell that is trained here.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the runs that are trained here, in this folder.",
)
@how_it_trains
@click.option("--write", is_flag=True, help="Keep the proof of LIBRARY@VERSION.")
@common.as_json
def command(
    target: str,
    policy: Path | None,
    other: str | None,
    batches: int,
    keep: Path | None,
    patience: float,
    write: bool,
    as_json: bool,
) -> int:
    """Compute a run again from its own rollouts, in the dialect of its library, and compare:
    advantages, KL, loss, gradient norm, and the weights after the last train step.

    LIBRARY@VERSION trains small cells on this machine without a GPU, in the environment that
    `orch env create LIBRARY@VERSION --cpu` makes. CELL_DIRECTORY is a run that `prove --keep` or
    `rehearse` left.

    Exit code 1: a difference is larger than its tolerance, or something went wrong.
    """
    dialect = None if other is None else library_semantics.parse(other)
    if Path(target).is_dir():
        named = [(Path(target).name, read_run(CellDir(Path(target).absolute()), policy))]
        return _print(named, dialect, as_json)
    library, at, version = target.partition("@")
    if not at:
        raise click.UsageError(
            f"name a release as LIBRARY@VERSION, or the directory of a cell; got '{target}'"
        )
    with tempfile.TemporaryDirectory(prefix="orch-prove-") as folder:
        place = Path(folder) if keep is None else keep
        runs = release_runs(library, version, place, say, batches=batches, patience=patience)
        return _print(runs, dialect, as_json, write=write)


def _print(
    runs: list[tuple[str, Run]],
    dialect: Dialect | None,
    as_json: bool,
    *,
    write: bool = False,
) -> int:
    proofs = [(name, run.cell, run.proof(dialect)) for name, run in runs]
    holds = all(proof.holds for _, _, proof in proofs)
    if write and holds and dialect is None:
        first = proofs[0][2]
        kept = [(name, proof) for name, _, proof in proofs]
        say(f"kept in {text.store(first.library, first.version, kept)}")
    if as_json:
        print_json([text.proof_data(name, cell, proof) for name, cell, proof in proofs])
    for name, _, proof in () if as_json else proofs:
        click.secho(f"{name}  {text.heading(proof)}", bold=True)
        text.print_proof(proof)
        click.echo()
    return int(not holds)
