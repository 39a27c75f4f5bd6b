"""The `Backend` protocol between orch and a library, and `LibraryBackend` with its defaults.

A backend is a package that exports `BACKEND`. It is a folder of `backends/`, or a package of
another distribution that names it in the entry-point group `orch.backends` (orchestrator.plugins).
Its folder may also hold data files, all of them optional:

    environments/<version>.<flavour>.txt   locks of the environments it trains in (`orch env`)
    probes.py                              runs the library's own functions (orchestrator.probes)
    evidence/<version>.json                results measured with probes.py (`orch matrix`)

Requirements that hold for every member:

**Cost.** Importing the package, and every member of it, imports neither the library nor torch.
`translate` takes at most 0.1 ms a cell once it is warm, because `orch plan` translates whole grids.

**Purity.** `translate`, `parse`, `semantics`, `audit` and `rehearse` read nothing but their
arguments and the package's own files. They do not write, start a process, or read the clock or the
environment. Equal arguments give equal results, in every process.

**Who writes.** orch writes the files of a LaunchPlan under `plan_dir` before a launch. The launch
writes its log under `attempt_dir` and its checkpoints under `checkpoints_dir`, nothing elsewhere.
Every attempt of a cell has its own `attempt_dir`. All attempts share `checkpoints_dir`, where an
attempt continues from the last complete checkpoint.

**Kills.** A launch may be killed at any time. Its log may then end in the middle of a line, its
newest checkpoint may lack files or have files that are cut off, and nothing is cleaned up. A reader
skips what is incomplete without an exception and never repairs it. `find_checkpoints` is called
while the launch writes, and by several processes at once.

`orchestrator.testing.backend_contract` holds these as tests that a backend's author inherits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from orchestrator.kl.library_semantics import PLAIN, Dialect, Semantics
from orchestrator.library.launches import Launch, LaunchReading
from orchestrator.library.releases import ReleaseMarks
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


@runtime_checkable
class Backend(Protocol):
    """A library that trains cells."""

    name: str
    """The name in a spec (`backend: {name: verl}`), and of its folder in `backends/` if it has one.
    A letter, then letters, digits and underscores."""
    title: str
    """The library's name as its authors write it, for sentences."""
    versions: tuple[str, ...]
    """Releases it drives. The first trains the cells that name none."""
    capabilities: Mapping[str, Sequence[object]]
    """Dotted field of Settings -> the values that some release takes. Fields that are not listed
    take every value that Settings takes. Each listed value is translated for at least one cell."""
    prompts_format: str | None
    """Entry of orchestrator.data.recipe.FORMATS in which it reads prompts, which
    `orch data prepare` writes; None: it brings its own."""
    own_evaluation: tuple[str, ...]
    """Metrics `eval/...` that it logs itself while it trains, besides those of lm-eval."""
    tasks_dir: Path | None
    """Folder of lm-eval task files that only its policies understand."""
    policies_dir: Path | None
    """Folder of the policies that ship with it: a spec names them `<name>:<policy>`."""
    release_marks: ReleaseMarks | None
    """The marks of the library and its release in a text; None: `audit` reads nothing."""
    estimator_names: Mapping[str, str]
    """The library's own names of estimators -> orch's, for `orch explain`."""

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        """Return the launch of a cell. Pure, and cheap.

        The ledger has one entry for every leaf of `cell.settings`. An entry that names a key gives
        the value that the launch really sends under it. Raise UnsupportedSetting for a cell that
        the library cannot express. The error names the field, its value, the offered values and
        what to do.
        """
        ...

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        """Yield an attempt's metrics under the names of orchestrator.metrics.names, in file order.

        End at a torn last line. Yield nothing if no log exists yet. Raise LogFault, after
        everything that can be read, for a log with an unknown layout or unknown names.
        """
        ...

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        """Return the checkpoints that have all of their files, oldest first."""
        ...

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        """Return the folder of every checkpoint, complete or not.

        A checkpoint that is in this list and not in `find_checkpoints` was cut off.
        """
        ...

    def checkpoint_companions(self, checkpoints_dir: Path, checkpoint: Checkpoint) -> list[Path]:
        """Return the files and folders outside a checkpoint that belong only to it.

        `orch prune` removes them with the checkpoint. Example: an optimizer's state of the same
        step.
        """
        ...

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        """Return the argv that writes the policy to `target` as a Hugging Face directory.

        Return None if the checkpoint is such a directory already (`needs_export` is False).
        """
        ...

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        """Return the settings that a launch of `translate` asks for.

        `files`: the plan's, name -> text.
        """
        ...

    def semantics(self, version: str | None) -> Semantics:
        """Return the meaning of equal settings in a release; None: the newest release it drives.

        Raise UnsupportedSetting for an unknown release.
        """
        ...

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return the library's reading of any launch; None if it does not start the library."""
        ...

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        """Return the cell at this backend's own small scale, trained in a dialect.

        Return None for a backend without a small scale.
        """
        ...

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        """Return the tasks that replace the spec's at the small scale; none: keep the spec's."""
        ...


class LibraryBackend(ABC):
    """A backend whose members are functions of its modules.

    Assign them in the class body, `translate = staticmethod(translate.translate)`. A member that is
    not assigned keeps the default below. Import expensive modules in the body of a method.
    """

    name: str
    title: str = ""
    versions: tuple[str, ...]
    capabilities: Mapping[str, Sequence[object]]
    prompts_format: str | None = None
    own_evaluation: tuple[str, ...] = ()
    tasks_dir: Path | None = None
    policies_dir: Path | None = None
    release_marks: ReleaseMarks | None = None
    estimator_names: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self.title = self.title or self.name

    @abstractmethod
    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        """Return the launch of a cell; see Backend."""

    @abstractmethod
    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        """Yield an attempt's metrics; see Backend."""

    @abstractmethod
    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        """Return the complete checkpoints; see Backend."""

    @abstractmethod
    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        """Return the folder of every checkpoint; see Backend."""

    @abstractmethod
    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        """Return the settings of a launch; see Backend."""

    @abstractmethod
    def semantics(self, version: str | None) -> Semantics:
        """Return the semantics of a release; see Backend."""

    def checkpoint_companions(self, checkpoints_dir: Path, checkpoint: Checkpoint) -> list[Path]:
        """Return nothing: a checkpoint is its folder."""
        return []

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        """Return None: checkpoints are Hugging Face directories."""
        return None

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return None: no launch is recognised."""
        return None

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        """Return None: there is no small scale."""
        return None

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        """Return nothing: the spec's own tasks are used."""
        return ()
