"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray`, by release. README.md says what differs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backends.openrlhf import check, checkpoints, dialect, flags, metrics, plan
from backends.openrlhf import parse as parsing
from backends.openrlhf.marks import MARKS
from orchestrator.kl.library_semantics import Semantics
from orchestrator.library.launches import Launch, LaunchReading
from orchestrator.library.protocol import LibraryBackend
from orchestrator.records import AttemptPaths, Cell, Checkpoint, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class OpenRLHF(LibraryBackend):
    """orchestrator.library.protocol.Backend; the library is in an environment of its own."""

    name = "openrlhf"
    title = "OpenRLHF"
    versions: tuple[str, ...] = flags.VERSIONS
    capabilities: Mapping[str, Sequence[object]] = check.CAPABILITIES
    prompts_format = plan.PROMPTS_FORMAT
    release_marks = MARKS

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        return plan.translate(cell, place)

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
        from backends.openrlhf.audit import audit

        return audit(launch)


BACKEND = OpenRLHF()
