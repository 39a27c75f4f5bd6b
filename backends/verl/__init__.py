"""verl 0.9.1 and 0.8.0: PPO-family training on Ray, FSDP and vLLM."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backends.verl import arguments, checkpoints, dialect, limits, metrics, parse, translate
from backends.verl.marks import MARKS
from orchestrator.kl.library_semantics import Semantics
from orchestrator.library.launches import Launch, LaunchReading
from orchestrator.library.protocol import LibraryBackend
from orchestrator.records import AttemptPaths, Cell, Checkpoint, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class Verl(LibraryBackend):
    """orchestrator.library.protocol.Backend; importing it loads neither verl nor Hydra."""

    name = "verl"
    title = "verl"
    versions: tuple[str, ...] = arguments.VERSIONS
    capabilities: Mapping[str, Sequence[object]] = limits.CAPABILITIES
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = MARKS

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        return translate.translate(cell, place)

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        return metrics.read_metrics(attempt_dir)

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        return checkpoints.find_checkpoints(checkpoints_dir)

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return checkpoints.begun_checkpoints(checkpoints_dir)

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        return checkpoints.export_command(checkpoint, target)

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        return parse.parse(argv, files)

    def semantics(self, version: str | None) -> Semantics:
        return dialect.semantics(version)

    def audit(self, launch: Launch) -> LaunchReading | None:
        from backends.verl.audit import audit

        return audit(launch)


BACKEND = Verl()
