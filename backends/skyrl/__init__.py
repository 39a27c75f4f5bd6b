"""SkyRL (NovaSky): cells as launches of its trainer, through its own overrides."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backends.skyrl import check, checkpoints, dialect, metrics, releases
from backends.skyrl import parse as parsing
from backends.skyrl import translate as translation
from backends.skyrl.marks import MARKS
from orchestrator.kl.library_semantics import Semantics
from orchestrator.library.launches import Launch, LaunchReading
from orchestrator.library.protocol import LibraryBackend
from orchestrator.records import AttemptPaths, Cell, Checkpoint, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class SkyRL(LibraryBackend):
    """orchestrator.library.protocol.Backend; importing it loads nothing of SkyRL."""

    name = "skyrl"
    title = "SkyRL"
    versions: tuple[str, ...] = releases.VERSIONS
    capabilities: Mapping[str, Sequence[object]] = check.CAPABILITIES
    prompts_format = translation.PROMPTS_FORMAT
    release_marks = MARKS

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        return translation.translate(cell, place)

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        return metrics.read_metrics(attempt_dir)

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        return checkpoints.find_checkpoints(checkpoints_dir)

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return checkpoints.begun_checkpoints(checkpoints_dir)

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        return parsing.parse(argv, files)

    def semantics(self, version: str | None) -> Semantics:
        return dialect.semantics(version)

    def audit(self, launch: Launch) -> LaunchReading | None:
        from backends.skyrl.audit import audit

        return audit(launch)


BACKEND = SkyRL()
