"""The mark that everything after training (evaluation, mirror, report) is up to date.

runs/<experiment>/settled.json holds a digest of the last complete run: while nothing of it has
changed, `orch run` skips the later stages, and reads no metrics to find that out. Removing any
output (a score, the report, MLflow's database) invalidates the mark.
"""

from orchestrator.identity import digest
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.tracking.store import store_of
from orchestrator.version import __version__

MARK = "settled.json"
_READ = ("cells/*/eval/*", "baselines/*/eval/*", "tune/*/journal.log")
"""The files of an experiment that the later stages read or write."""


def digest_of(experiment: Experiment, plan: Plan) -> str:
    """Return the digest of what the later stages were done for, and of what they left."""
    folder = experiment.folder.path
    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    # What a server keeps is not seen.
    outputs = (experiment.folder.report / "index.html", store.database, store.artifacts)
    rows = [row for row in plan.rows if row.cell is not None]
    files = sorted(path for pattern in _READ for path in folder.glob(pattern))
    return digest(
        [
            __version__,
            experiment.spec.model_dump(mode="json"),
            [store.shown, *(path and path.exists() for path in outputs)],
            [[row.directory.id, row.state, row.exit and row.exit.ended] for row in rows],
            [[each.relative_to(folder).as_posix(), each.stat().st_size] for each in files],
        ]
    )
