"""orch pull: cells that another person has trained, from a shared store."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice
from orchestrator.sharing.exchange import pull
from orchestrator.sharing.store import ResultStore


@click.command(short_help="Take cells that another person has trained.")
@common.store
@common.cells
@common.dry_run
@common.as_json
def command(
    choice: CellChoice,
    store: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Take from a store the cells of a spec that are not trained here.

    A cell is pulled only if its id, its scale, and the versions of orch, of the library, of
    torch and of NumPy (if its attempt recorded them) are those with which it would be trained
    here, and if each file has the digest that it was shared with. A cell that was started here
    is not replaced. Pulled cells count as trained: `orch run` trains the others, and every
    table shows where a cell came from. Checkpoints are not pulled, so no further task can be
    scored on these cells.

    \b
      orch pull experiments/comedy_full.yaml --store /shared/results
      orch pull experiments/comedy_full.yaml --store s3://our-bucket/results --dry-run
    """
    experiment = choice.chosen()
    done = pull(experiment.cells, experiment.folder, ResultStore(store), dry=dry_run)
    changed = common.print_exchanged(done, "pulled", dry=dry_run, as_json=as_json)
    return common.foreseen(bool(changed)) if dry_run else 0
