"""Records that stages hand on: Spec, Cell, LaunchPlan, Record, Score. All frozen, all plain data.

load       Path -> Spec               expand     Spec -> Cells
translate  Cell -> LaunchPlan         launch     LaunchPlan -> attempts on disk
collect    run directory -> Records   evaluate   Record -> Scores
compare    Records, Scores -> Comparison
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from orchestrator.settings import (
    Cadence,
    Frozen,
    Name,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Probability,
    Resources,
    Settings,
    System,
)

# ---------------------------------------------------------------- evaluation


class Sampling(Frozen):
    """The sampling of evaluations. `min_p` 1.0 keeps only the likeliest token: greedy decoding."""

    temperature: NonNegativeFloat = 1.0
    """0: greedy decoding."""
    top_p: Probability = 1.0
    """The likeliest tokens that have this probability together."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens at least this share as likely as the likeliest; 1.0: greedy."""
    max_response_tokens: PositiveInt = 1024
    """Longer responses are cut to this length."""


TaskName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,500}$")]
"""The name of an evaluation task. Files and scores carry its label (orchestrator.harness_tasks)."""


class ForCells(Frozen):
    """Something that the spec wants of some of its cells."""

    when: tuple[str, ...] = Field(default=(), strict=False)
    """The cells that it is for, as `when` of an axis says it: `{data: countdown}`. Empty: all.
    Read, each is a filter, `data=countdown`."""


class EvalTask(ForCells):
    """One evaluation task: `repeats` responses per item (the k of mean@k and pass@k)."""

    name: TaskName
    """A task of orch, or a task, group or tag of lm-evaluation-harness by its name there
    (`lm-eval:NAME` where orch has one of that name too), or the path of a task's YAML."""
    domain: Literal["in", "out"] | None = None
    """`in`: the domain trained on; `out`: abilities that training could cost; None: in no mean."""
    repeats: PositiveInt = 1
    """k, responses to each item."""
    max_items: PositiveInt | None = None
    """None: the whole task."""
    chat_template: Literal["default", "none"] = "default"
    """default: the model's own; none: no template."""


class Baseline(Frozen):
    """A model evaluated as it is before training, with or without its chat template."""

    model: Name
    """Name of a model of the spec."""
    chat_template: Literal["default", "none"] = "default"
    """default: the model's own; none: no template."""


class DivergenceTask(ForCells):
    """Prompts on which the policy is compared with its reference policy."""

    name: Name
    """The task whose prompts are used."""
    domain: Literal["in", "out"]
    """`in`: the domain trained on; `out`: others."""
    chat_template: Literal["default", "none"] = "default"
    """default: the model's own; none: no template."""


class DivergenceRequest(Frozen):
    """Both KL divergences to the reference policy and the entropy, exact over the vocabulary at
    every position of sampled responses (paper, Fig. 12)."""

    tasks: tuple[DivergenceTask, ...] = Field(strict=False)
    """Tasks whose prompts are used."""
    max_items: PositiveInt = 256
    """The first so many prompts of each task, one response each."""
    max_response_tokens: PositiveInt = 1024
    """Longer responses are cut to this length."""
    checkpoints: Literal["last", "all"] = "all"
    """Checkpoints to score. In a rehearsal `all` counts only if `evaluation.checkpoints` is `all`
    too: the embedded trainer logs the exact curves itself."""


class Engine(Frozen):
    """The engine that generates responses, as lm-eval's model.

    `auto`: vllm for a cell at full scale, hf for the embedded policies.
    """

    name: Literal["auto", "hf", "vllm"] = "auto"
    """hf: transformers."""
    device: Literal["cpu", "cuda"] = "cpu"
    """hf only."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number format of weights and activations."""
    tensor_parallel_size: PositiveInt | None = None
    """vllm; None: the GPUs of a node of the site."""
    gpu_memory_utilization: Probability = 0.9
    """vllm: share of a GPU's memory it takes."""
    max_model_len: PositiveInt | None = None
    """Prompt and response in tokens; None: 4096 and the longest response. No prompt is cut: vllm
    refuses one that does not fit."""
    python: str | None = None
    """Interpreter of an environment with lm-eval (and vLLM); None: orch's own."""


class EvaluationSpec(Frozen):
    """The evaluations of each checkpoint."""

    tasks: tuple[EvalTask, ...] = Field(default=(), strict=False)
    """The tasks that are scored."""
    baselines: tuple[Baseline, ...] = Field(default=(), strict=False)
    """Models scored as they are before training."""
    sampling: Sampling = Sampling()
    """The sampling of responses."""
    seeds: tuple[int, ...] = Field(default=(0,), strict=False)
    """Seeds of sampling in evaluation."""
    checkpoints: Literal["last", "all"] = "last"
    """last: of each cell only its last; all: every one."""
    divergence: DivergenceRequest | None = None
    engine: Engine = Engine()

    @model_validator(mode="after")
    def _prompts_have_room(self) -> Self:
        longest, response = self.engine.max_model_len, self.sampling.max_response_tokens
        if self.engine.name in ("auto", "vllm") and longest is not None and longest <= response:
            raise ValueError(
                f"engine.max_model_len ({longest} tokens for prompt and response) leaves no room "
                f"for a prompt beside sampling.max_response_tokens ({response}); lower "
                "sampling.max_response_tokens or raise engine.max_model_len"
            )
        return self


class PublishedNumber(Frozen):
    """A number somebody printed about a claim: how much higher left is than right."""

    name: Name
    """The name in the report."""
    claim: str
    """In the grammar of orchestrator/spec/claims.py, both sides of one metric."""
    relative_improvement: Annotated[float, Field(gt=-1, allow_inf_nan=False)]
    """left / right - 1, averaged over tasks."""
    where: str = ""
    """Section, figure or table."""


class PublishedStatement(Frozen):
    """A publication's statement about a claim of the spec, in words."""

    claim: Name
    """The claim's name in the spec."""
    says: str
    """In the publication's words."""
    where: str = ""
    """Section, figure or table."""


class PublishedPanel(Frozen):
    """One panel of a published figure: the cells of ours that redraw it."""

    title: str
    """Above the panel."""
    study: Name
    """The study whose cells are drawn."""
    where: tuple[str, ...] = Field(default=(), strict=False)
    """Filters, as `--where` takes them."""
    metrics: tuple[str, ...] = Field(
        default=("eval/validation/mean", "eval/accuracy_in_domain", "train/reward_mean"),
        strict=False,
        min_length=1,
    )
    """Canonical names, best first: a panel draws the curves of the first that was measured, and its
    title names any but the first. `[tasks]`: final values, a panel for each scored task."""


class PublishedFigure(Frozen):
    """A published figure: what it shows, in words, and what redraws it."""

    figure: str
    """Its number, such as `Fig. 2`."""
    title: str
    """Above the figure."""
    shows: str
    """The content of the published figure, in words."""
    panels: tuple[PublishedPanel, ...] = Field(default=(), strict=False)
    """The panels that draw it from these cells."""
    laboratory: bool = False
    """True if the exact laboratory draws it, and not cells."""


class PublishedTerm(Frozen):
    """What a publication says of one KL term: of its gradient, and of training with it."""

    kl: str
    """As an axis names it, such as `k1.reward`."""
    unbiased: bool
    """True if its gradient is that of the sequence's reverse KL, on policy."""
    behaviour: str
    """What training with it did, in a word or two."""
    study: Name
    """The study in which ours was trained."""


class Published(Frozen):
    """Published results. The report shows them beside these results and never merges them."""

    source: str = ""
    """The publication that printed the numbers."""
    numbers: tuple[PublishedNumber, ...] = Field(default=(), strict=False)
    """The numbers."""
    statements: tuple[PublishedStatement, ...] = Field(default=(), strict=False)
    """The publication's statements about claims of the spec."""
    terms: tuple[PublishedTerm, ...] = Field(default=(), strict=False)
    """Its table of KL terms."""
    figures: tuple[PublishedFigure, ...] = Field(default=(), strict=False)
    """The figures that the report's gallery redraws."""


# ---------------------------------------------------------------- a spec


class Site(Frozen):
    """The place where cells run. Never part of a cell's identity."""

    kind: Literal["auto", "local", "gpus", "slurm", "ray"] = "auto"
    """local: this machine rehearses every cell at micro scale. gpus: this machine trains the cells
    as declared, each with its own library (`orch env create`; flavour cpu for a cell that asks for
    no GPU), as many at a time as its GPUs hold. auto: the SLURM cluster where its controller
    answers; else gpus, where nvidia-smi lists as many GPUs as the largest cell asks for; else
    local."""
    workers: PositiveInt | None = None
    """Number of cells that train at the same time on this machine; None: one for each core."""
    runs_dir: str = "runs"
    """The folder of experiments, relative to the folder where orch is started."""
    tracking_uri: str | None = None
    """MLflow store; None: $MLFLOW_TRACKING_URI, else SQLite in the runs folder."""
    tracking_metrics: Literal["compared", "all"] = "compared"
    """The metrics that MLflow holds. compared: evaluations, the curves of reward, KL, entropy,
    gradient norm and response length, the distance to the sampler where a cell has one, and what
    claims and searches name. all: every metric. Files and Parquet have every metric anyway."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Cluster settings (partition, account, address, ...), read by launch/slurm and launch/ray."""
    system: System = System()
    """Memory and speed of the launches at this place; a spec's own `system` is over it."""


Logger = Literal["wandb", "tensorboard", "mlflow", "swanlab"]


class Study(Frozen):
    """A named sub-grid: one figure of the paper, one question. Composed, not yet expanded."""

    name: Name
    title: str = ""
    figure: str = ""
    base: dict[str, Any]
    """Settings, resources and cadence shared by its cells, as plain data."""
    axes: dict[str, Any]
    """The axes as written: lists, product, zip, when (see orchestrator/spec/expand.py)."""
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
    """Name -> statement, in the grammar of orchestrator/spec/claims.py."""
    families: dict[str, str] = Field(default_factory=dict)
    """Name of a claim -> its family, in which p-values are corrected. The others are one family."""
    evaluation: EvaluationSpec = EvaluationSpec()
    published: Published = Published()
    site: Site = Site()
    tune: dict[str, Any] | None = None
    loggers: tuple[Logger, ...] = Field(default=(), strict=False)
    """Trackers that every cell's library logs to by itself. Never part of an id."""
    rewards: dict[str, str] = Field(default_factory=dict)
    """Reward file of the user's own, as `data.reward` names it -> its text."""
    groups: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Config group -> entry -> plain data, for the groups an axis may name (model, data, ...)."""
    source: str = ""
    """The file it was read from."""


# ---------------------------------------------------------------- a cell and its launch


class Cell(Frozen):
    """One training run, fully resolved. `id` names the settings and nothing else."""

    id: str
    slug: str
    """Readable and safe as a file name: `onpolicy-qwen2.5-7b-k1.reward-b0.05-s0`."""
    studies: tuple[str, ...] = Field(strict=False)
    """Every study it belongs to; it is trained once."""
    axes: dict[str, str]
    """Axis (model, data, kl, beta, seed, backend, ...) -> the cell's name on it, for display,
    grouping and tags. A rehearsed cell keeps the names of the declared cell."""
    settings: Settings
    resources: Resources = Resources()
    cadence: Cadence = Cadence()
    system: System = System()
    declared: Settings | None = None
    """The settings in the spec, if this cell is their rehearsal at micro scale."""
    loggers: tuple[Logger, ...] = Field(default=(), strict=False)
    """Trackers that the library logs to by itself."""
    reward_code: str = ""
    """The text of the file in `data.reward`, which has its digest; empty for a rule of orch."""

    @property
    def scale(self) -> Literal["micro", "full"]:
        """Return the scale: `micro` for cells of the embedded trainer."""
        return "micro" if self.settings.backend.name == "micro" else "full"

    @property
    def directory(self) -> str:
        """Return the name of the cell's directory."""
        return f"{self.slug}-{self.id}"


class LedgerEntry(Frozen):
    """The way in which one field of a cell reached the library.

    `exact`, `approximated` (note: what differs, and why), through an `extension` module of ours, or
    passed on and `not judged` (a key of backend.extra, or a field that no test trained with).
    """

    field: str
    status: Literal["exact", "approximated", "extension", "unverified", "not judged"]
    key: str
    """The library's own name for it; empty where the field needs no key."""
    value: str
    note: str = ""


class AttemptPaths(NamedTuple):
    """The folders that one attempt of a cell reads and writes. All are absolute."""

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
    """The state of the nodes that argv needs: nothing; a Ray cluster of all nodes, with argv on the
    first; or argv on every node, with ORCH_NODE_RANK and ORCH_SERVER_HOST (the second node) set."""
    ray_cpus: PositiveInt | None = None
    """CPUs that the library's actors claim of Ray, over all nodes. Ray counts claims and not use:
    with fewer CPUs an actor waits for ever without a message. None: unknown."""
    alone_on_ray: bool = False
    """True if two programs of this library on one Ray would share an actor of a fixed name, and so
    each other's data."""


# ---------------------------------------------------------------- results

State = Literal[
    "planned",
    "submitted",
    "pending",
    "running",
    "succeeded",
    "failed",
    "timed_out",
    "preempted",
    "cancelled",
    "unknown",
]
ENDED: frozenset[str] = frozenset({"succeeded", "failed", "timed_out", "preempted", "cancelled"})


RunState = Literal["stable", "unstable", "collapsed", "cannot tell"]
OUTCOMES: Mapping[str, RunState] = {
    "trained": "stable",
    "unstable": "unstable",
    "collapsed": "collapsed",
    "unclear": "cannot tell",
}
"""Kind of an outcome -> its word, on pages, in tables and in tags."""


class Outcome(Frozen):
    """What training did, by orchestrator/metrics/outcome.py. A collapse is never a failed job."""

    model_config = ConfigDict(extra="ignore")  # exit records of earlier releases

    kind: Literal["trained", "unstable", "collapsed", "unclear"]
    """trained: the run was stable. unclear: its curve cannot tell."""
    cause: Literal["reward", "nan", "length", "entropy", ""] = ""
    """What fell, or what the policy turned into."""
    step: int | None = None
    """First train step at which it was seen."""
    reason: str = ""
    """What was measured, in a sentence; empty for a stable run."""
    survived: bool = False
    """True if an unclear run surely did not collapse."""

    @property
    def word(self) -> RunState:
        """Return the word for what training did."""
        return OUTCOMES[self.kind]

    @property
    def collapsed(self) -> bool | None:
        """Return if the run collapsed; None if its curve cannot tell."""
        if self.kind == "unclear" and not self.survived:
            return None
        return self.kind == "collapsed"


UnixSeconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


class ExitRecord(Frozen):
    """attempts/N/exit.json: how an attempt ended, written by the worker, once."""

    model_config = ConfigDict(extra="ignore")  # earlier releases wrote fields that are no more

    state: State
    code: int | None = None
    failure: str = ""
    """Class of a failure: config, out_of_memory, lost, error, ..."""
    message: str = ""
    outcome: Outcome | None = None
    started: UnixSeconds
    ended: UnixSeconds
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
    """The metrics of one train step. `time` in Unix seconds; names from "
    "orchestrator/metrics/names.py."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Record:
    """A cell and everything that its run directory holds."""

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
    """Files that could not be read, in sentences (a torn line, a cut checkpoint)."""
    planned: float | None = None
    """Unix time of the first launch that had the seed; None if the ledger does not say."""

    @property
    def last(self) -> ExitRecord | None:
        """Return how the last attempt ended, or None without one."""
        return self.attempts[-1] if self.attempts else None


class Score(Frozen):
    """One metric of one task at one checkpoint, over `num_items` items with `repeats` each."""

    cell_id: str
    step: int
    task: str
    domain: Literal["in", "out"] | None
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
    """A parsed `--where`: every term must hold. See orchestrator/spec/select.py."""

    terms: tuple[str, ...] = field(default=())
