"""Prime-RL 0.5.0: asynchronous RL, with our loss in its documented hooks."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backends.prime_rl import capabilities, checkpoints, dialect, metrics
from backends.prime_rl import parse as launches
from backends.prime_rl.translate import PROMPTS_FORMAT, translate
from orchestrator.kl.dialect import PLAIN, Dialect, Semantics
from orchestrator.library.launches import Launch, Reading
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class PrimeRl:
    """orchestrator.library.protocol.Backend."""

    name = capabilities.NAME
    versions: tuple[str, ...] = capabilities.VERSIONS
    capabilities: Mapping[str, Sequence[object]] = capabilities.CAPABILITIES
    tasks_dir: Path | None = None
    prompts_format = PROMPTS_FORMAT

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        return translate(cell, place)

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        return metrics.read_metrics(attempt_dir)

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        return checkpoints.find_checkpoints(checkpoints_dir)

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return checkpoints.begun_checkpoints(checkpoints_dir)

    def beside(self, checkpoints_dir: Path, checkpoint: Checkpoint) -> list[Path]:
        return checkpoints.beside(checkpoints_dir, checkpoint)

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        return None

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        return launches.parse(argv, files)

    def semantics(self, version: str | None) -> Semantics:
        return dialect.semantics(version)

    def audit(self, launch: Launch) -> Reading | None:
        from backends.prime_rl.audit import audit

        return audit(launch)

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        return None

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        return ()


BACKEND = PrimeRl()
