"""The two base classes of a library that trains cells: `Backend` and `EmbeddedTrainer`.

A backend is a package that exports `BACKEND`. It is a folder of `backends/`, or a package of
another distribution that names it in the entry-point group `orch.backends` (orchestrator.plugins).
Its folder may also hold, all of them optional:

    environments/<version>.<flavour>.txt   locks of the environments it trains in (`orch env`)
    evidence/<version>.json                what was measured of a release (the lab)
    audit/reader.py                        reads anybody's launch (`orch audit`)

Requirements for every member:

**Cost.** Importing the package, and every member of it, imports neither the library nor torch.

**Purity.** `translate`, `parse`, `semantics`, `audit` and `rehearse` read nothing but
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from orchestrator.kl.library_semantics import PLAIN, Dialect, Semantics
from orchestrator.library.key_tables import nearest, version_tuple
from orchestrator.library.launches import Launch, LaunchReading
from orchestrator.library.logged import LoggedMetrics
from orchestrator.library.manifest import Manifest
from orchestrator.library.memory import CheckpointUse, GpuUse
from orchestrator.library.release_marks import ReleaseMarks
from orchestrator.records import AttemptPaths, Cell, Checkpoint, EvalTask, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class ShippedPrompts(NamedTuple):
    """The prompts of a task that ships with a backend, as pairs of question and answer."""

    train: Sequence[tuple[str, str]]
    validation: Sequence[tuple[str, str]]


@runtime_checkable
class LaunchReader(Protocol):
    """A library whose launches `orch audit` reads. Every backend is one.

    For a library that orch reads and does not train with, the folder `backends/<library>/audit/`
    holds `reader.py`, which exports `READER`. CONTRIBUTING.md has the steps. It may have
    `logged_metrics`, as a backend has.
    """

    name: str
    title: str
    release_marks: ReleaseMarks | None
    """The marks of the library and its release in a text. None if `audit` reads no launch."""
    estimator_names: Mapping[str, str]
    """The library's own names of estimators -> orch's."""

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return the library's reading of any launch; None if it does not start the library.

        It is called for every command of every script, so it recognises others' launches in some
        microseconds. It reads nothing but the launch and the package's own files.
        """
        ...


class Backend(ABC):
    """A library that trains cells. A member that is not abstract has a default.

    A package of one module for each subject needs no class: see `of_modules`.
    """

    name: str
    """The name in a spec (`backend: {name: verl}`), and of its folder in `backends/` if it has one.
    A letter, then letters, digits and underscores."""
    title: str = ""
    """The library's name as its authors write it, for sentences. Default: the name."""
    manifest: Manifest | None = None
    """The table that gives `versions` and `capabilities`. A class without one assigns these."""
    versions: tuple[str, ...]
    """Releases that orch drives. The first trains the cells that name no release."""
    capabilities: Mapping[str, Sequence[object]]
    """Dotted field of Settings -> the values that some release takes. Fields that are not listed
    take every value that Settings takes. Each listed value is translated for at least one cell."""
    prompts_format: str | None = None
    """The entry of orchestrator.library.prompt_recipe.FORMATS in which `orch data prepare` writes
    its prompts. None if the backend has prompts of its own."""
    release_marks: ReleaseMarks | None = None
    """The marks of the library and its release in a text. None if `audit` reads no launch."""
    estimator_names: Mapping[str, str] = MappingProxyType({})
    """The library's own names of estimators -> orch's, for `orch explain`."""
    logged_metrics: LoggedMetrics | None = None
    """The meanings of the metrics that the library logs (`orch diagnose`, `orch explain
    METRIC@LIBRARY`). None: orch does not know them."""
    semantics_of_releases: Mapping[str, Semantics] = MappingProxyType({})
    """Release -> the meaning of equal settings in it."""

    def __init__(self) -> None:
        self.title = self.title or self.name
        if self.manifest is not None:
            default = self.manifest.release(None)
            others = (each for each in self.manifest.versions if each != default)
            self.versions = (default, *others)
            self.capabilities = self.manifest.capabilities()

    @abstractmethod
    def translate(self, cell: Cell, paths: AttemptPaths) -> LaunchPlan:
        """Return the launch of a cell. Pure, and cheap.

        A library takes every seed up to a largest one, if any, and no other refusal depends on the
        seed: orch checks only the largest seed of a cell.

        The ledger has one entry for every leaf of `cell.settings`. An entry that names a key gives
        the value that the launch really sends under it. Raise UnsupportedSetting for a cell that
        the library cannot express. The error names the field, its value, the offered values and
        what to do.
        """

    def gpu_memory(self, cell: Cell) -> GpuUse | None:
        """Return what the launch of a cell holds on a GPU, for the estimate of `orch plan`.

        Return None if orch does not know it. Pure. It is called for cells that `translate` takes.
        """
        return None

    @abstractmethod
    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        """Return the settings that a launch of `translate` requests.

        `files`: the plan's, name -> text.
        """

    def values_of_anybody(
        self, program: Sequence[str], given: Mapping[str, object], version: str
    ) -> Mapping[str, object]:
        """Return the values of a launch that others wrote, as the manifest reads them.

        They are its keys, and what orch's own launches say in other places: the program, a file.

        program: the words of the command. given: its keys, typed.
        """
        del program, version
        return given

    def semantics(self, version: str | None) -> Semantics:
        """Return the meaning of equal settings in a release; None: that of a cell without one.

        Raise UnsupportedSetting for an unknown release. The default looks into
        `semantics_of_releases`.
        """
        if self.manifest is None:
            raise NotImplementedError  # without a manifest a backend has its own
        return self.semantics_of_releases[self.manifest.release(version)]

    def neighbour(self, version: str) -> str:
        """Return the release of `versions` whose tables stand in for a release without any.

        The default is the newest of the same minor version, else the newest that is not newer.
        """
        known = sorted(self.versions, key=version_tuple)
        return known[nearest(known, version)]

    def keys_missing(self, version: str, plan: LaunchPlan) -> tuple[str, ...] | None:
        """Return the keys of a launch that a release without tables does not have.

        The release's own configuration decides. Return None if it is not at hand. Pure.
        """
        return None

    @abstractmethod
    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        """Yield an attempt's metrics under the names of orchestrator.metrics.names, in file order.

        End at a torn last line. Yield nothing if no log exists yet. Raise LogFault, after
        everything that can be read, for a log with an unknown layout or unknown names.
        """

    @abstractmethod
    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        """Return the checkpoints that have all of their files, oldest first."""

    def resumable_step(self, checkpoints_dir: Path) -> int:
        """Return the train step from which training can go on; 0 if it begins anew."""
        return max((each.step for each in self.find_checkpoints(checkpoints_dir)), default=0)

    @abstractmethod
    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        """Return the folder of every checkpoint, complete or not.

        A checkpoint that is in this list and not in `find_checkpoints` was cut off.
        """

    def checkpoint_companions(self, checkpoints_dir: Path, checkpoint: Checkpoint) -> list[Path]:
        """Return the files and folders outside a checkpoint that belong only to it.

        `orch prune` removes them with the checkpoint. Example: an optimizer's state of the same
        step.
        """
        return []

    def spent_states(self, checkpoints_dir: Path) -> list[Path]:
        """Return files of older checkpoints that only resuming reads, such as an optimizer's.

        Never one of the newest complete checkpoint, nor of a newer one, nor of the only one. A
        checkpoint without them stays in `find_checkpoints`. The worker removes them as it trains.
        """
        return []

    def checkpoint_use(self, cell: Cell) -> CheckpointUse | None:
        """Return what the checkpoints of a cell take of a disk; None if orch does not know it."""
        return None

    def export_command(self, checkpoint: Checkpoint, target: Path) -> tuple[str, ...] | None:
        """Return the argv that writes the policy to `target` as a Hugging Face directory.

        It is called for checkpoints that need it (`needs_export`). None: the library has none.
        """
        return None

    def audit(self, launch: Launch) -> LaunchReading | None:
        """Return the library's reading of any launch; None if it does not start the library.

        The default calls the function `audit` of `audit/reader.py`, which is imported when it is
        first needed.
        """
        function = _reader(type(self).__module__)
        return None if function is None else function(launch)


class EmbeddedTrainer(Backend):
    """A backend that trains small policies of its own, on this machine."""

    tasks_dir: Path | None = None
    """Folder of lm-eval task files that only its policies understand."""
    policies_dir: Path | None = None
    """Folder of policies shipped with the backend. A spec names them `<name>:<policy>`."""

    def prompts(self, task: str, count: int | None) -> ShippedPrompts | None:
        """Return the prompts of a task that ships with the backend; None for no task of it.

        A spec names the task as `<backend>:<task>`, the path of its data. `count`: the number of
        prompts to train on, or None for the backend's default. Pure.
        """
        return None

    def rehearse(self, cell: Cell, dialect: Dialect = PLAIN) -> Cell | None:
        """Return the cell at this backend's own small scale, trained in a dialect.

        Slug, studies, axes and seed stay, and `declared` becomes the cell's settings. No setting
        but the seed may depend on the seed, because orch calls this for one seed and derives the
        others. Return the same cell if it has this scale already, or None for a trainer without a
        small scale.
        """
        return None

    def rehearse_tasks(self, cell: Cell) -> tuple[EvalTask, ...]:
        """Return the tasks that replace the spec's at the small scale, or () to keep the spec's."""
        return ()

    def computed_by(self) -> str:
        """Return what computes the training in this process, if its numbers depend on more than the
        versions of packages; else an empty text. job.json and `orch doctor` name it.
        """
        return ""


MODULES: Mapping[str, Mapping[str, str]] = {
    "manifest": {"MANIFEST": "manifest"},
    "translate": {"translate": "translate", "PROMPTS_FORMAT": "prompts_format"},
    "parse": {"parse": "parse", "values_of_anybody": "values_of_anybody"},
    "dialect": {"SEMANTICS": "semantics_of_releases"},
    "releases": {
        "MARKS": "release_marks",
        "neighbour": "neighbour",
        "keys_missing": "keys_missing",
    },
    "memory": {"gpu_memory": "gpu_memory", "checkpoint_use": "checkpoint_use"},
    "metrics": {"read_metrics": "read_metrics", "LOGGED": "logged_metrics"},
    "checkpoints": {
        "find_checkpoints": "find_checkpoints",
        "begun_checkpoints": "begun_checkpoints",
        "companions": "checkpoint_companions",
        "spent_states": "spent_states",
        "export_command": "export_command",
    },
}
"""Module of a backend's package -> its functions and tables -> the members of `Backend` that they
are. A test holds that each function takes what the method takes."""


def of_modules(package: str, **members: object) -> Backend:
    """Return the backend of a package, from what its modules have under the names in MODULES.

    members: those that no module has, such as the title.
    """
    found: dict[str, object] = {"__module__": package, "name": package.rpartition(".")[2]}
    for name, ours in MODULES.items():
        module = vars(import_module(f"{package}.{name}"))
        for theirs, member in ours.items():
            if theirs in module:
                value = module[theirs]
                found[member] = staticmethod(value) if callable(value) else value
    made: type[Backend] = type(str(found["name"]), (Backend,), found | members)
    return made()


@cache
def _reader(package: str) -> Callable[[Launch], LaunchReading | None] | None:
    """Return the function `audit` of a package's audit/reader.py, or None if it has none."""
    try:
        if find_spec(f"{package}.audit.reader") is None:
            return None
    except ModuleNotFoundError:  # no folder audit/; or the backend is one module, and no package
        return None
    function: Callable[[Launch], LaunchReading | None]
    function = import_module(f"{package}.audit.reader").audit
    return function
