"""orch prove: does a library do what its dialect predicts?"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, print_table, say
from orchestrator.cli.real_rehearsal import rehearse_real
from orchestrator.kl import library_semantics
from orchestrator.lab.prove import text
from orchestrator.lab.prove.proof import read_run
from orchestrator.lab.prove.real import release_runs
from orchestrator.lab.prove.text import store
from orchestrator.rundir import CellDir

if TYPE_CHECKING:
    from orchestrator.kl.library_semantics import Dialect
    from orchestrator.lab.prove.proof import Run


@click.command(short_help="Replay the rollouts of a run: does the library do what orch predicts?")
@click.argument("target", required=False, metavar="LIBRARY@VERSION|CELL_DIRECTORY|FILE")
@common.overrides
@common.where
@click.option(
    "--rehearse",
    "rehearsing",
    is_flag=True,
    help="FILE is a spec or a launch script: train it here for a few real steps.",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="With --rehearse: the largest number of different trainings.",
)
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
@click.option(
    "--processes",
    is_flag=True,
    help="Start the library's own processes (Ray), also where stand-ins could hold them in one. "
    "It takes minutes longer.",
)
@click.option("--write", is_flag=True, help="Keep the proof of LIBRARY@VERSION.")
@common.as_json
def command(
    target: str | None,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    rehearsing: bool,
    most: int,
    policy: Path | None,
    other: str | None,
    batches: int,
    keep: Path | None,
    processes: bool,
    write: bool,
    as_json: bool,
) -> int:
    """Compute a run again from its own rollouts, in the dialect of its library, and compare:
    advantages, KL, loss, gradient norm, and the weights after the last train step.

    CELL_DIRECTORY is a finished run of any size that was trained with cadence.dump_rollouts=true.
    LIBRARY@VERSION trains small cells on this machine without a GPU, in the environment that
    `orch env create LIBRARY@VERSION --cpu` makes.

    With --rehearse, FILE is a spec (with KEY=VALUE and --where), or any launch script (.sh,
    .slurm, ...). A script is read as `orch audit` reads it, and never run; a launch of TRL in it
    (`trl grpo`, `accelerate launch train.py`) is run as it is, but for the processes, with a small
    policy in the place of its own. So is a Python program (.py) that builds TRL's trainer itself.
    The library itself trains, with stand-ins for GPU and inference engine. The command prints all
    deviations from the launch, what must hold in every run (the KL is 0 at the first step, trainer
    and sampler give tokens the same probability, rewards are the scorer's, the gradient is not 0,
    checkpoints load and are scored), and the table of predictions.

    Exit code 1: a difference is larger than its tolerance, or something went wrong.
    """
    if rehearsing:
        if target is None:
            raise click.UsageError("--rehearse needs a spec or a launch script")
        choice = CellChoice(target, overrides, where)
        return rehearse_real(choice, most, processes=processes, as_json=as_json)
    if overrides or where:
        raise click.UsageError("KEY=VALUE and --where choose cells of a spec: add --rehearse")
    if target is None:
        raise click.UsageError("name a release as LIBRARY@VERSION, or the directory of a cell")
    dialect = None if other is None else library_semantics.parse(other)
    if Path(target).is_dir():
        named = [(Path(target).name, read_run(CellDir(Path(target).absolute()), policy))]
        return _print(named, dialect, as_json)
    library, at, version = target.partition("@")
    if not at:
        raise click.UsageError(
            f"name a release as LIBRARY@VERSION, or the directory of a cell; got '{target}'"
        )
    if keep is not None:
        runs = release_runs(library, version, keep, say, batches=batches, processes=processes)
        return _print(runs, dialect, as_json, write=write)
    with tempfile.TemporaryDirectory(prefix="orch-prove-") as folder:
        runs = release_runs(
            library, version, Path(folder), say, batches=batches, processes=processes
        )
        return _print(runs, dialect, as_json, write=write)


def _print(
    runs: "list[tuple[str, Run]]",
    dialect: "Dialect | None",
    as_json: bool,
    *,
    write: bool = False,
) -> int:
    proofs = [(name, run.cell, run.proof(dialect)) for name, run in runs]
    holds = all(proof.holds for _, _, proof in proofs)
    if write and holds and dialect is None:
        first = proofs[0][2]
        kept = [(name, proof) for name, _, proof in proofs]
        say(f"kept in {store(first.library, first.version, kept)}")
    if as_json:
        print_json([text.proof_data(name, cell, proof) for name, cell, proof in proofs])
    for name, _, proof in () if as_json else proofs:
        click.secho(f"{name}  {text.heading(proof)}", bold=True)
        print_table(text.COLUMNS, text.rows(proof))
        for sentence in proof.left_out:
            say(sentence)
        click.echo(f"{text.verdict(proof)}\n")
    return int(not holds)
