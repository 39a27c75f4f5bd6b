"""The nouns of the line: Spec, Cell, LaunchPlan, Record, Score. All frozen; all plain data.

load: Path -> Spec    expand: Spec -> Cells    translate: Cell -> LaunchPlan
launch: LaunchPlan -> attempts on disk    collect: run directory -> Records
evaluate: Record -> Scores    compare: Records, Scores -> Comparison
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from orchestrator.evaluation import Baseline as Baseline
from orchestrator.evaluation import Divergence as Divergence
from orchestrator.evaluation import DivergenceTask as DivergenceTask
from orchestrator.evaluation import Engine as Engine
from orchestrator.evaluation import EvalTask as EvalTask
from orchestrator.evaluation import Evaluation as Evaluation
from orchestrator.evaluation import Published as Published
from orchestrator.evaluation import PublishedNumber as PublishedNumber
from orchestrator.evaluation import Sampling as Sampling
from orchestrator.settings import (
    Cadence,
    Frozen,
    Name,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Resources,
    Settings,
)

# ---------------------------------------------------------------- what a person declares


class Site(Frozen):
    """Where cells run. Never part of a cell's identity."""

    kind: Literal["auto", "local", "slurm"] = "auto"
    workers: PositiveInt | None = None
    """Cells at the same time on this machine; None: one per core."""
    runs_dir: str = "runs"
    tracking_uri: str | None = None
    """MLflow store; None: $MLFLOW_TRACKING_URI, else SQLite in the runs folder."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Cluster settings (partition, account, gres, ...), read by launch/slurm."""


class Study(Frozen):
    """A named sub-grid: one figure of the paper, one question. Composed, not yet expanded."""

    name: Name
    title: str = ""
    figure: str = ""
    base: dict[str, Any]
    """Settings, resources and cadence shared by its cells, as plain data."""
    axes: dict[str, Any]
    """The axes as written: lists, product, zip, when (see orchestrator/expand.py)."""
    exclude: tuple[dict[str, Any], ...] = Field(default=(), strict=False)
    include: tuple[dict[str, Any], ...] = Field(default=(), strict=False)
    seeds: tuple[int, ...] = Field(strict=False)


class Spec(Frozen):
    """One experiment file, composed and checked."""

    name: Name
    question: str = ""
    description: str = ""
    studies: tuple[Study, ...] = Field(strict=False)
    claims: dict[str, str] = Field(default_factory=dict)
    """Name -> statement, in the grammar of orchestrator/claims.py."""
    evaluation: Evaluation = Evaluation()
    published: Published = Published()
    site: Site = Site()
    tune: dict[str, Any] | None = None
    groups: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Config group -> entry -> plain data, for the groups an axis may name (model, data, ...)."""
    source: str = ""
    """The file it was read from."""


# ---------------------------------------------------------------- what orch makes of it


class Cell(Frozen):
    """One training run, fully resolved. `id` names the settings and nothing else."""

    id: str
    slug: str
    """Readable and safe as a file name: `onpolicy-qwen2.5-7b-k1.reward-b0.05-s0`."""
    studies: tuple[str, ...] = Field(strict=False)
    """Every study it belongs to; it is trained once."""
    axes: dict[str, str]
    """What it is called on each axis: model, data, kl, beta, seed, backend, ... For display,
    grouping and tags; of the declared cell, so a rehearsed cell keeps the paper's names."""
    settings: Settings
    resources: Resources = Resources()
    cadence: Cadence = Cadence()
    declared: Settings | None = None
    """What the spec asked for, where this cell is its rehearsal at micro scale."""

    @property
    def scale(self) -> Literal["micro", "full"]:
        return "micro" if self.settings.backend.name == "micro" else "full"

    @property
    def directory(self) -> str:
        return f"{self.slug}-{self.id}"


class LedgerEntry(Frozen):
    """How one field of a cell reached the library: `exact`, `approximated` (note says what
    differs and why) or through an `extension` module of ours."""

    field: str
    status: Literal["exact", "approximated", "extension"]
    key: str
    """The library's own name for it; empty where the field needs no key."""
    value: str
    note: str = ""


class Place(NamedTuple):
    """Where one attempt of a cell reads and writes. All absolute."""

    plan_dir: Path
    attempt_dir: Path
    checkpoints_dir: Path


class LaunchPlan(Frozen):
    """Everything a launcher needs, and what a person would paste."""

    cell_id: str
    backend: str
    version: str
    argv: tuple[str, ...] = Field(strict=False)
    files: dict[str, str] = Field(default_factory=dict)
    """Path relative to plan_dir -> text."""
    env: dict[str, str] = Field(default_factory=dict)
    ledger: tuple[LedgerEntry, ...] = Field(default=(), strict=False)
    entry: str | None = None
    """`module:function(cell, place)`: lets the local launcher fork instead of starting argv."""
    bring_up: Literal["program", "ray", "ranks"] = "program"
    """What the nodes need before argv: nothing; a Ray cluster of all nodes, argv on the first; or
    argv on every node, with ORCH_NODE_RANK and ORCH_SERVER_HOST (the second node) set."""


# ---------------------------------------------------------------- what came of it

State = Literal[
    "planned", "submitted", "pending", "running", "succeeded", "failed", "timed_out",
    "preempted", "cancelled", "unknown",
]  # fmt: skip
ENDED: frozenset[str] = frozenset({"succeeded", "failed", "timed_out", "preempted", "cancelled"})


class Outcome(Frozen):
    """What training did, as a result of the experiment. A collapse is never a failed job."""

    kind: Literal["trained", "collapsed"]
    cause: Literal["reward", "nan", "length", "entropy", ""] = ""
    step: int | None = None
    """First train step at which it was seen."""
    detail: str = ""


class ExitRecord(Frozen):
    """attempts/N/exit.json: how an attempt ended, written by the worker, once."""

    state: State
    code: int | None = None
    failure: str = ""
    """Class of a failure: config, out_of_memory, lost, error, ..."""
    message: str = ""
    outcome: Outcome | None = None
    started: float
    ended: float
    cpu_seconds: NonNegativeFloat = 0.0
    gpu_hours: NonNegativeFloat = 0.0
    host: str = ""


class Checkpoint(NamedTuple):
    """A policy saved after `step` train steps, in Hugging Face format unless `needs_export`."""

    step: int
    path: Path
    needs_export: bool = False


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """The metrics of one train step. `time` in Unix seconds; names from orchestrator/names.py."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Record:
    """A cell and all its run directory says of it."""

    cell: Cell
    state: State
    attempts: tuple[ExitRecord | None, ...] = ()
    """One per attempt; None for one that has not ended."""
    outcome: Outcome | None = None
    metrics: tuple[MetricPoint, ...] = ()
    """By step, each step once: the latest attempt that reached it."""
    checkpoints: tuple[Checkpoint, ...] = ()
    directory: Path = Path()
    faults: tuple[str, ...] = ()
    """What could not be read, in sentences (a torn line, a cut checkpoint)."""

    @property
    def last(self) -> ExitRecord | None:
        return self.attempts[-1] if self.attempts else None


class Score(Frozen):
    """One metric of one task at one checkpoint, over `num_items` items with `repeats` each."""

    cell_id: str
    step: int
    task: str
    domain: Literal["in", "out"]
    metric: str
    """`mean@4`, `pass@4`, ...; without the task: canonical name is eval/<task>/<metric>."""
    value: float
    stderr: float | None = None
    """Standard error over items."""
    num_items: PositiveInt
    repeats: PositiveInt
    eval_seed: int = 0
    sampling: Sampling = Sampling()
    task_version: str = ""
    harness: str = ""
    """Name and version of what computed it."""
    seconds: PositiveFloat | None = None
    items_path: str = ""
    """Per-item results, relative to the cell's directory."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A parsed `--where`: every term must hold. See orchestrator/select.py."""

    terms: tuple[str, ...] = field(default=())
