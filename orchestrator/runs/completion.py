"""The mark that everything after training (evaluation, mirror, report) is up to date.

runs/<experiment>/settled.json holds a fingerprint of the last complete run: while nothing of it has
changed, `orch run` skips the later stages, and reads no metrics to find that out. Removing any
output (a score, the report, MLflow's database) invalidates the mark.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import RunFolderError
from orchestrator.files import read_json, write_text
from orchestrator.identity import digest
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.version import __version__

_NAME = "settled.json"


def is_up_to_date(
    experiment: Experiment, plan: Plan, mirror: str, outputs: Sequence[Path | None]
) -> bool:
    """Return True if the later stages were done for exactly the files that are on disk now.

    mirror: the address of the store. outputs: its files, of which None are kept by a server.
    """
    try:
        mark = read_json(experiment.folder.path / _NAME)
    except RunFolderError:  # a kill cut the file: count it as missing
        return False
    return mark is not None and mark.get("digest") == _fingerprint(
        experiment, plan, mirror, outputs
    )


def mark_complete(
    experiment: Experiment, plan: Plan, mirror: str, outputs: Sequence[Path | None]
) -> None:
    """Record that the later stages are done for the files that are on disk now."""
    fingerprint = _fingerprint(experiment, plan, mirror, outputs)
    write_text(experiment.folder.path / _NAME, f'{{"digest": "{fingerprint}"}}\n')


def _fingerprint(
    experiment: Experiment, plan: Plan, mirror: str, outputs: Sequence[Path | None]
) -> str:
    outputs = [experiment.folder.report / "index.html", *outputs]
    return digest(
        [
            __version__,
            experiment.spec.model_dump(mode="json"),
            mirror,
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
