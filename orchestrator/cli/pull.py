"""orch pull: cells that somebody else has trained, from a shared store."""

import click

from orchestrator.cli import common
from orchestrator.runs.experiment import open_experiment
from orchestrator.sharing.exchange import pull
from orchestrator.sharing.store import ResultStore


@click.command(short_help="Take cells that somebody else has trained.")
@common.spec
@common.overrides
@common.store
@common.where
@common.dry_run
@common.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    store: str,
    where: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Take the cells of a spec that are not trained here and that a store has.

    A cell is pulled only if its id, its scale, orch, the library that trained it, and the releases
    of torch and NumPy (where its attempt recorded them) are those it would be trained with here,
    and if every file has the digest it was shared with. A cell that was started here is left
    alone. Taken cells count as trained: `orch run` trains the others, and every table says where a
    cell came from. Their checkpoints are not pulled, so nothing more can be scored on them.

    \b
      orch pull experiments/comedy_full.yaml --store /shared/results
      orch pull experiments/comedy_full.yaml --store s3://our-bucket/results --dry-run
    """
    experiment = open_experiment(spec, overrides).chosen(where)
    done = pull(experiment.cells, experiment.folder, ResultStore(store), dry=dry_run)
    changed = common.print_exchanged(done, "pulled", dry=dry_run, as_json=as_json)
    return common.foreseen(bool(changed)) if dry_run else 0
