"""What one builds on: the stages of orch as functions, typed, from a spec to a table.

    import orch

    experiment = orch.load("smoke", ["seeds=[0]"])
    for row in orch.plan(experiment).pending:
        print(row.cell.slug, row.reason)
    orch.run(experiment)
    finals = orch.results(experiment)

Names in `__all__`, their arguments, and the fields of what they return are stable: from 1.0 a minor
release adds and never takes away; before, a minor release that breaks one says so in CHANGELOG.md.
Everything in `orchestrator` is an implementation and may change in any release. A mistake of a
user's is an `OrchError`, whose text says where it is and what to do.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from orchestrator.analysis.results import results_of
from orchestrator.errors import OrchError
from orchestrator.kl.verdicts import GradientVerdict, verdict
from orchestrator.pipeline import stages as _stages
from orchestrator.pipeline.stages import PipelineResult
from orchestrator.records import Cell
from orchestrator.runs.experiment import Experiment, open_experiment
from orchestrator.runs.plan import Plan
from orchestrator.settings import Advantage, AdvantageEstimator, Clip, Kl
from orchestrator.spec.sentences import sentence
from orchestrator.version import __version__ as __version__

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.audit import AuditFinding as AuditFinding

__all__ = [
    "AuditFinding",
    "Cell",
    "Experiment",
    "GradientVerdict",
    "OrchError",
    "PipelineResult",
    "Plan",
    "audit",
    "expand",
    "explain",
    "load",
    "plan",
    "results",
    "run",
]


def load(spec: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment of a spec: a file, or the name of a shipped one. Write nothing.

    overrides: in Hydra's grammar, as on the command line (`["seeds=[0]", "base.kl.beta=0.1"]`).
    Raise OrchError with every fault of the spec.
    """
    return open_experiment(spec, overrides)


def expand(experiment: Experiment, where: Sequence[str] = ()) -> tuple[Cell, ...]:
    """Return the cells as they run at this site, in the order of the spec.

    where: filters as `--where` takes them (`["kl.estimator=k3", "!seed=0"]`). Raise OrchError where
    they select nothing.
    """
    return experiment.chosen(where).cells


def plan(experiment: Experiment, where: Sequence[str] = ()) -> Plan:
    """Return what `run` would do for each cell, and why, from what is on disk. Change nothing."""
    return _stages.plan_of(experiment, experiment.chosen(where), where)


def explain(
    estimator: str,
    placement: Literal["reward", "loss", "reward_and_loss"] | None,
    *,
    off_policy: bool = False,
    advantage: AdvantageEstimator = "rloo",
    group_size: int | None = None,
    clip: Clip | None = None,
) -> GradientVerdict:
    """Return the objective whose gradient a KL term really is, its bias, and what to do instead.

    estimator: k1, k2, k3 or another of the table; `none` takes placement None. off_policy: samples
    are older than the policy. group_size: G, rollouts per prompt; it scales GRPO's deviation.
    Raise OrchError for a name that is not known, and for a combination without meaning.
    """
    beta = 0.0 if estimator == "none" and placement is None else 1.0
    try:
        term = Kl(estimator=estimator, placement=placement, beta=beta)
        rule = Advantage(estimator=advantage).estimator
    except ValidationError as error:
        (first, *_) = error.errors()
        raise OrchError(sentence(first, ".".join(map(str, first["loc"])))) from None
    if group_size is not None and group_size < 2:  # a mean of one rollout leaves nothing
        raise OrchError(f"group_size must be >= 2, got {group_size}")
    return verdict(
        term,
        on_policy=not off_policy,
        advantage=rule,
        group_size=group_size,
        clip=clip or Clip(),
    )


def audit(script: str | Path, *, versions: dict[str, str] | None = None) -> "list[AuditFinding]":
    """Return what each launch in a script optimises. Nothing is run.

    script: a path; files beside it that the launch names are read as well. versions: library ->
    release, for files that do not name it. Raise OrchError if nothing can be judged, and OSError if
    the file cannot be read.
    """
    from orchestrator.audit import audit as findings
    from orchestrator.audit import libraries

    path = Path(script)
    text = path.read_text(encoding="utf-8", errors="replace")
    files = libraries.NeighbourFiles(path)
    around = files.projects.versions(path) | (versions or {})
    return findings(text, str(path), files=files, versions=around)


def run(
    experiment: Experiment, where: Sequence[str] = (), *, train_only: bool = False
) -> PipelineResult:
    """Train what is missing, then evaluate, mirror to MLflow, and write the report.

    Return how far the line went: `code` 0 if nothing failed, and the report's page and comparison.
    Needs the extras `run`, `micro` and `eval`. Safe to repeat and to kill: it goes on from disk.
    """
    chosen = experiment.chosen(where)
    chosen_plan = _stages.plan_of(experiment, chosen, where)
    return _stages.run(experiment, chosen, chosen_plan, train_only=train_only)


def results(
    experiment: Experiment,
    table: Literal["finals", "curves", "scores"] = "finals",
    where: Sequence[str] = (),
) -> "pd.DataFrame":
    """Return a table of what was measured, a row a value; each axis of the spec is a column.

    finals: after the last train step. curves: at each step. scores: of evaluation, with standard
    errors. Reads run directories and changes nothing. Needs the extra `run`.
    """
    return results_of(experiment.chosen(where), table)


def __getattr__(name: str) -> object:
    """Return `orch.AuditFinding`, which is imported on first use: the audit may not be here."""
    if name == "AuditFinding":
        from orchestrator.audit import AuditFinding

        return AuditFinding
    raise AttributeError(f"module 'orch' has no attribute {name!r}")
