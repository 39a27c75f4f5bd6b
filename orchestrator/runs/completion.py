"""The mark that everything after training (evaluation, mirror, report) is up to date.

runs/<experiment>/settled.json holds a fingerprint of the last complete run: while nothing of it has
changed, `orch run` skips the later stages, and reads no metrics to find that out. Removing any
output (a score, the report, MLflow's database) invalidates the mark.
"""

import os
from pathlib import Path
from typing import Protocol

from orchestrator.errors import RunFolderError
from orchestrator.files import read_json, write_text
from orchestrator.identity import digest
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.version import __version__

_NAME = "settled.json"


class MirrorStore(Protocol):
    """The store that mirrors an experiment."""

    @property
    def shown(self) -> str:
        """The address, without a password."""

    @property
    def artifacts(self) -> Path | None:
        """Folder of the artifacts; None where a server keeps them."""

    @property
    def database(self) -> Path | None:
        """The database file, if it is one."""


def is_up_to_date(experiment: Experiment, plan: Plan, mirror: MirrorStore) -> bool:
    """Return True if the later stages were done for exactly the files that are on disk now."""
    try:
        mark = read_json(experiment.folder.path / _NAME)
    except RunFolderError:  # a kill cut the file: count it as missing
        return False
    return mark is not None and mark.get("digest") == _fingerprint(experiment, plan, mirror)


def mark_complete(experiment: Experiment, plan: Plan, mirror: MirrorStore) -> None:
    """Record that the later stages are done for the files that are on disk now."""
    fingerprint = _fingerprint(experiment, plan, mirror)
    write_text(experiment.folder.path / _NAME, f'{{"digest": "{fingerprint}"}}\n')


def _fingerprint(experiment: Experiment, plan: Plan, mirror: MirrorStore) -> str:
    outputs = [experiment.folder.report / "index.html", mirror.database, mirror.artifacts]
    return digest(
        [
            __version__,
            experiment.spec.model_dump(mode="json"),
            mirror.shown,
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
