"""One try at a cell: attempts/<n>/ of its run directory.

order.json     on a cluster: the submission that may start it; there from the first moment
job.json       made when it starts: by whom, where
beat           on a cluster: touched every few seconds while it lives
stdout, stderr, metrics.jsonl
exit.json      how it ended, written once
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.files import read_json, read_object, write_text
from orchestrator.types import ExitRecord


@dataclass(frozen=True)
class AttemptDir:
    """attempts/<n>: one try at a cell."""

    path: Path
    number: int

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def order(self) -> Path:
        return self.path / "order.json"

    @property
    def beat(self) -> Path:
        return self.path / "beat"

    @property
    def stdout(self) -> Path:
        return self.path / "stdout"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def wish(self) -> Path:
        """Why whoever has asked the worker to stop wants it cancelled, in words."""
        return self.path / "wish.txt"

    def read_exit(self) -> ExitRecord | None:
        """How it ended, or None while it has not."""
        return read_object(ExitRecord, self.exit)

    def write_exit(self, record: ExitRecord) -> None:
        write_text(self.exit, record.model_dump_json() + "\n")

    def read_order(self) -> dict[str, Any]:
        """What it was submitted for; {} if it was not submitted to a cluster."""
        return read_json(self.order) or {}
