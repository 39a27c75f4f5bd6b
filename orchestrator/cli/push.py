"""orch push: finished cells to a store that several people share."""

import getpass
import socket

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice
from orchestrator.sharing.exchange import push
from orchestrator.sharing.store import ResultStore


@click.command(short_help="Share finished cells in a store.")
@common.store
@common.cells
@click.option("--by", metavar="NAME", help="Who shares them.  [default: USER@HOST]")
@common.dry_run
@common.as_json
def command(
    choice: CellChoice,
    store: str,
    by: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy the results of each cell that has succeeded into a store: settings, launch and ledger,
    curves, scores with their items, how attempts ended, and the versions that trained them.

    Checkpoints, the programs' output and secrets are not copied. A cell that the store has is
    not copied again. `orch pull` takes cells from the store.

    \b
      orch push experiments/comedy_full.yaml --store /shared/results
      orch push experiments/comedy_full.yaml --store s3://our-bucket/results -w kl.estimator=k3
    """
    experiment = choice.chosen()
    sharer = by or f"{getpass.getuser()}@{socket.gethostname()}"
    done = push(experiment.cells, experiment.folder, ResultStore(store), sharer, dry=dry_run)
    changed = common.print_exchanged(done, "shared", dry=dry_run, as_json=as_json)
    return common.foreseen(bool(changed)) if dry_run else 0
