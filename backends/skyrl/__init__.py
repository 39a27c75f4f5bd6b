"""SkyRL (NovaSky): cells as launches of its trainer, through its own overrides."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backends.skyrl import check, checkpoints, dialect, metrics, releases
from backends.skyrl import parse as parsing
from backends.skyrl import translate as translation
from orchestrator.kl.dialect import PLAIN, Dialect, Semantics
from orchestrator.library.launches import Launch, Reading
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class SkyRL:
    """orchestrator.library.protocol.Backend; importing it loads nothing of SkyRL."""

    name = "skyrl"
    versions: tuple[str, ...] = releases.VERSIONS
    capabilities: Mapping[str, Sequence[object]] = check.CAPABILITIES
    tasks_dir: Path | None = None
    prompts_format = translation.PROMPTS_FORMAT

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        return translation.translate(cell, place)

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        return metrics.read_metrics(attempt_dir)

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        return checkpoints.find_checkpoints(checkpoints_dir)

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return checkpoints.begun_checkpoints(checkpoints_dir)

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        return None

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        return parsing.parse(argv, files)

    def semantics(self, version: str | None) -> Semantics:
        return dialect.semantics(version)

    def audit(self, launch: Launch) -> Reading | None:
        from backends.skyrl.audit import audit

        return audit(launch)

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        return None

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        return ()


BACKEND = SkyRL()
