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

**Purity.** `translate`, `cpu_launch`, `parse`, `semantics`, `audit` and `rehearse` read nothing but
their arguments and the package's own files. They do not write, start a process, or read the clock
or the environment. Equal arguments give equal results, in every process.

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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from orchestrator.kl.library_semantics import PLAIN, Dialect, Semantics
from orchestrator.library.cpu_launch import CpuLaunch, Trimmed
from orchestrator.library.launches import Launch, LaunchReading
from orchestrator.library.releases import ReleaseMarks
from orchestrator.library.rollout_dump import RolloutBatch, Values
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class ShippedPrompts(NamedTuple):
    """The prompts of a task that ships with a backend, as pairs of question and answer."""

    train: Sequence[tuple[str, str]]
    validation: Sequence[tuple[str, str]]


class SharedProcess(NamedTuple):
    """The way in which a library trains several cells in one process."""

    entry: str
    """`module:function(cells, watch)`: trains cells, each a Cell with its AttemptPaths, to their
    ends. It reports each end and each line of log to watch
    (orchestrator.launch.together.SharedCells), and asks it between train steps which cells must
    stop."""
    at_most: int
    """Cells in one process."""
    shape: Callable[[Settings], Hashable]
    """A function of a cell's settings. Cells with equal results can share a process."""


class Curvature(NamedTuple):
    """The response of a base policy to an update, for the bound of docs/decisions/083."""

    largest: float
    """Largest eigenvalue of the Fisher matrix of a response, scaled by the roots of its
    diagonal."""
    advantage_deviation: float
    """Standard deviation of an advantage."""


class BatchPrediction(NamedTuple):
    """A dialect's prediction of one rollout batch, in the order and under the names of its dump."""

    step: int
    """Train steps after the batch."""
    observed: Mapping[str, float]
    """Quantity (rollout_dump.OBSERVED) -> value, the mean over the batch's train steps. What cannot
    be predicted is missing."""
    advantages: Values | None = None
    """Of each token, from the log-probabilities that the trainer reported, where it did."""
    logp_policy: Values | None = None
    """By the policy before the batch's first train step. None without a policy."""
    weights: Mapping[str, Any] | None = None
    """The policy after the batch, Hugging Face name -> tensor. None without a policy."""


@runtime_checkable
class LaunchReader(Protocol):
    """A library whose launches `orch audit` reads. Every backend is one.

    For a library that orch reads and does not train with, the folder `backends/<library>/` holds
    `reader.py`, which exports `READER`; its `__init__.py` is a docstring. In another distribution
    an entry point of the group `orch.readers` names the object. CONTRIBUTING.md has the steps.
    """

    name: str
    title: str
    release_marks: ReleaseMarks | None
    """The marks of the library and its release in a text; None: its launches are not read."""
    estimator_names: Mapping[str, str]
    """The library's own names of estimators -> orch's."""

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return the library's reading of any launch; None if it does not start the library.

        It is called for every command of every script, so it recognises others' launches in some
        microseconds. It reads nothing but the launch and the package's own files.
        """
        ...


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
    """Entry of orchestrator.library.prompt_recipe.FORMATS in which it reads prompts, which
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
    shared_process: SharedProcess | None
    """The way in which cells of one shape share a process on this machine; None: each has its
    own."""
    dumps_rollouts: bool
    """True if `translate` honours `cadence.dump_rollouts`: the launch then writes every rollout
    batch under `attempt_dir/rollouts/`, in the format of orchestrator.library.rollout_dump."""
    adopts_scripts: bool
    """True if `adopt` puts anybody's arguments into its launches."""

    def prompts(self, task: str, count: int | None) -> ShippedPrompts | None:
        """Return the prompts of a task that ships with the backend; None for no task of it.

        A spec names it `<backend>:<task>` as the path of its data. `count`: how many to train on;
        None: as many as the backend thinks right. Pure.
        """
        ...

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        """Return the launch of a cell. Pure, and cheap.

        The seeds that a library takes are an interval, and no other refusal depends on the seed:
        orch checks the smallest and the largest of a cell's.

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

    def cpu_launch(self, plan: LaunchPlan, place: AttemptPaths) -> CpuLaunch | None:
        """Return a plan of `translate` as it runs on a machine without an accelerator. Pure.

        `place`: the one that the plan was made for. Every difference is listed
        (orchestrator.library.cpu_launch). Return None for a release that orch cannot run so.
        """
        ...

    def trimmed(self, argv: Sequence[str], batches: int) -> Trimmed:
        """Return anybody's launch as `parse` can read it, of so many rollout batches. Pure.

        What only belongs to its machines, its logs or its evaluation is left out, and listed. What
        decides the objective is kept, also where no cell has it: `parse` then refuses it.
        """
        ...

    def adopt(self, plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch | None:
        """Return a plan of `translate` with the arguments of anybody's launch that it lacks. Pure.

        The plan's own values win. Every argument of `argv` with another value in the plan is a
        deviation. Return None if the library's arguments cannot be put together so.
        """
        ...

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        """Return the settings that a launch of `translate` requests.

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

        Slug, studies, axes and seed stay, and `declared` becomes the cell's settings. Only the seed
        may depend on the seed: orch rehearses one seed, and the others follow. Return the same cell
        if it has this scale already. Return None for a backend without a small scale.
        """
        ...

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        """Return the tasks that replace the spec's at the small scale; none: keep the spec's."""
        ...

    def curvature(self, settings: Settings) -> Curvature | None:
        """Return how the policy that a cell starts from answers to an update; None: unknown."""
        ...

    def replay(
        self,
        settings: Settings,
        dialect: Dialect,
        batches: Iterable[RolloutBatch],
        policy: Path | None,
    ) -> Iterator[BatchPrediction] | None:
        """Yield what a dialect predicts of a run's rollout batches, in order.

        policy: the Hugging Face folder that the run started from, whose training is then repeated;
        None: take the run's own log-probabilities. Return None for a backend that trains in no
        dialect but its own.
        """
        ...


class LibraryBackend(ABC):
    """A backend whose members are functions of its modules.

    Assign them in the class body, `translate = staticmethod(translate.translate)`. A member that is
    not assigned keeps the default below. `audit` and `cpu_launch` are the functions of those names
    in the package's modules of those names, if it has them; they are imported when first called.
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
    shared_process: SharedProcess | None = None
    estimator_names: Mapping[str, str] = MappingProxyType({})
    dumps_rollouts: bool = False
    adopts_scripts: bool = False

    def __init__(self) -> None:
        self.title = self.title or self.name

    def prompts(self, task: str, count: int | None) -> ShippedPrompts | None:
        """Return None: no task ships with it."""
        return None

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

    def cpu_launch(self, plan: LaunchPlan, place: AttemptPaths) -> CpuLaunch | None:
        """Return what the package's own `cpu_launch` makes of it; None if it has none."""
        own = _own_function(type(self).__module__, "cpu_launch")
        changed: CpuLaunch | None = None if own is None else own(plan, place)
        return changed

    def trimmed(self, argv: Sequence[str], batches: int) -> Trimmed:
        """Return the launch as it is."""
        return Trimmed(tuple(argv))

    def adopt(self, plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch | None:
        """Return None: anybody's arguments are not put into its launches."""
        return None

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return what the package's own `audit` reads in it; None if it has none."""
        own = _own_function(type(self).__module__, "audit")
        reading: LaunchReading | None = None if own is None else own(launch)
        return reading

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        """Return None: there is no small scale."""
        return None

    def curvature(self, settings: Settings) -> Curvature | None:
        """Return None: it is not known."""
        return None

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        """Return nothing: the spec's own tasks are used."""
        return ()

    def replay(
        self,
        settings: Settings,
        dialect: Dialect,
        batches: Iterable[RolloutBatch],
        policy: Path | None,
    ) -> Iterator[BatchPrediction] | None:
        """Return None: it trains in no dialect but its own."""
        return None


@cache
def _own_function(package: str, name: str) -> Callable[..., Any] | None:
    """Return the function of a package's module, both of one name; None without that module."""
    try:
        if find_spec(f"{package}.{name}") is None:
            return None
    except ModuleNotFoundError:  # a backend may be one module, and not a package
        return None
    function: Callable[..., Any] = getattr(import_module(f"{package}.{name}"), name)
    return function
