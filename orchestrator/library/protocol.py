"""What a backend is: a folder of `backends/` whose `__init__.py` exports `BACKEND`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from orchestrator.kl.dialect import PLAIN, Dialect, Semantics
from orchestrator.library.launches import Launch, Reading
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


@runtime_checkable
class Backend(Protocol):
    """A library that trains cells. Importing it is cheap: heavy imports wait for their use."""

    name: str
    versions: tuple[str, ...]
    """Releases it drives, newest first."""
    capabilities: Mapping[str, Sequence[object]]
    """Dotted settings field -> the values it offers; fields not listed are unrestricted."""
    tasks_dir: Path | None
    """lm-eval task files of its own (the embedded skills), if any."""

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        """Pure. Raises UnsupportedSetting for a field the library cannot express.

        The plan's ledger accounts for every leaf of `cell.settings`.
        """
        ...

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        """The attempt's metrics under canonical names, in file order; a torn last line ends it.

        Raises LogFault, after all it could read, for a log of a layout or of names it does not
        know. No log yet is no fault.
        """
        ...

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        """Whole checkpoints, oldest first. A checkpoint cut in half is not among them."""
        ...

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        """Folders of checkpoints, whole or not: what was begun and is not found was cut off."""
        ...

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        """argv that writes a Hugging Face directory; None where the checkpoint is one already."""
        ...

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        """The reverse of translate: what a launch asks for."""
        ...

    def semantics(self, version: str | None) -> Semantics:
        """What a release means by equal settings; None: the newest it drives.

        Raises UnsupportedSetting for a release nothing is known of.
        """
        ...

    def audit(self, launch: Launch) -> Reading | None:
        """What the library makes of a launch written by anybody; None: the launch is not its."""
        ...

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        """The cell at this backend's own small scale, trained in a dialect, or None where it has
        no scale of its own."""
        ...

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        """Tasks that stand in for the spec's at this scale; empty: the spec's own are used."""
        ...
