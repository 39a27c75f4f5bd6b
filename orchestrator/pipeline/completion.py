"""The mark that everything after training (evaluation, mirror, report) is up to date.

runs/<experiment>/settled.json holds a digest of the last complete run: while nothing of it has
changed, `orch run` skips the later stages, and reads no metrics to find that out. Removing any
output (a score, the report, MLflow's database) invalidates the mark.
"""

import os
from pathlib import Path

from orchestrator.identity import digest
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.tracking.store import store_of
from orchestrator.version import __version__

MARK = "settled.json"


def digest_of(experiment: Experiment, plan: Plan) -> str:
    """Return the digest of the files on disk that the later stages read and write."""
    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    # What a server keeps is not seen.
    outputs = (experiment.folder.report / "index.html", store.database, store.artifacts)
    return digest(
        [
            __version__,
            experiment.spec.model_dump(mode="json"),
            store.shown,
            [path is None or path.exists() for path in outputs],
            [
                [
                    row.directory.id,
                    row.state,
                    row.exit.ended if row.exit else None,
                    _entries(row.directory.evaluations),
                ]
                for row in plan.rows
                if row.cell is not None
            ],
            [
                [path.name, _entries(path / "eval")]
                for path in sorted((experiment.folder.path / "baselines").glob("*"))
            ],
            [
                [path.parent.name, path.stat().st_size]
                for path in sorted((experiment.folder.path / "tune").glob("*/journal.log"))
            ],
        ]
    )


def _entries(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except FileNotFoundError:
        return []
