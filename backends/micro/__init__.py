"""The embedded trainer: real RL of a tiny policy on this machine, in seconds a cell."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from backends.micro import disk, plan, rehearsal
from backends.micro import version as releases
from backends.micro.skills import SKILLS
from orchestrator.kl.dialect import PLAIN, Dialect, Semantics
from orchestrator.library.launches import Launch, Reading
from orchestrator.metrics.names import METRICS
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class Micro:
    """orchestrator.library.protocol.Backend; importing it loads no torch."""

    name = "micro"
    versions: tuple[str, ...] = (releases.VERSION,)
    capabilities: Mapping[str, Sequence[object]] = plan.CAPABILITIES
    tasks_dir: Path | None = Path(__file__).parent / "tasks"
    evaluates: tuple[str, ...] = (
        *(name for name in METRICS if name.startswith("eval/")),
        *(f"eval/accuracy/{skill}" for skill in SKILLS),
    )
    """Metrics of its own exact evaluation."""

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        return plan.translate(cell, place)

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        return disk.read_metrics(attempt_dir)

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        return disk.find_checkpoints(checkpoints_dir)

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return [checkpoint.path for checkpoint in disk.all_checkpoints(checkpoints_dir)]

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        return None

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        return plan.parse(argv, files)

    def semantics(self, version: str | None) -> Semantics:
        return Semantics(releases.dialect(version))

    def audit(self, launch: Launch) -> Reading | None:
        return None

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        return rehearsal.rehearse(cell, dialect)

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        return rehearsal.rehearse_tasks(cell)


BACKEND = Micro()
