"""settled.json: what the line looked like when it last came to its end.

While nothing of that has changed, `orch run` again has nothing to evaluate, mirror or report, and
reads no curve to find that out. Anything that was removed (a score, the page, MLflow's database)
unsettles it.
"""

import os
from pathlib import Path

from orchestrator import __version__
from orchestrator.errors import RunFolderError
from orchestrator.files import read_json, write_text
from orchestrator.identity import digest
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.tracking.store import store_of

_NAME = "settled.json"


def is_up_to_date(experiment: Experiment, made: Plan) -> bool:
    """Whether everything after training was done for exactly what is on disk now."""
    try:
        note = read_json(experiment.folder.path / _NAME)
    except RunFolderError:  # torn by a kill: it says nothing
        return False
    return note is not None and note.get("digest") == _digest(experiment, made)


def mark_complete(experiment: Experiment, made: Plan) -> None:
    """Notes that everything after training is done for what is on disk now."""
    write_text(experiment.folder.path / _NAME, f'{{"digest": "{_digest(experiment, made)}"}}\n')


def _digest(experiment: Experiment, made: Plan) -> str:
    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    there = [experiment.folder.report / "index.html", store.database, store.artifacts]
    return digest(
        [
            __version__,
            experiment.spec.model_dump(mode="json"),
            store.shown,
            [path is None or path.exists() for path in there],
            [
                [
                    row.directory.id,
                    row.state,
                    row.exit.ended if row.exit else None,
                    _entries(row.directory.evaluations),
                ]
                for row in made.rows
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
