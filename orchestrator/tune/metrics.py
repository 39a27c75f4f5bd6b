"""The metrics that a search's cells will have, known before any of them is trained."""

from typing import NamedTuple

from orchestrator import registry
from orchestrator.errors import did_you_mean
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.names import METRICS
from orchestrator.types import Cell, Evaluation

_DIVERGENCES = (
    "kl_reverse", "kl_forward", "kl_reverse_per_token", "kl_forward_per_token", "entropy",
    "entropy_per_sequence",
)  # fmt: skip


class Metrics(NamedTuple):
    """By who measures them."""

    backend: str
    trained: tuple[str, ...]
    """Of training: rewards, losses, lengths."""
    exact: tuple[str, ...]
    """Of the backend's own evaluation while it trains; most have none."""
    scored: tuple[str, ...]
    """Of checkpoints: lm-evaluation-harness's, and divergences where the spec asks for them."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.trained + self.exact + self.scored

    def fault(self, metric: str) -> str:
        """A sentence for a metric that these cells will not have; empty if they will."""
        if metric in self.all:
            return ""
        if metric in METRICS:
            told = f"cells of {self.backend} have no '{metric}': only the embedded trainer gives it"
        else:
            told = f"no metric is called '{metric}'{did_you_mean(metric, self.all)}"
        family = metric.rpartition("/")[0] + "/"
        near = [name for name in self.all if name.startswith(family) and family.count("/") > 1]
        listed = ", ".join(near or [name for name in self.scored if "_domain/" in name])
        what = f"there are {family}: " if near else "evaluation gives here: "
        more = "" if near else ", and one for each task"
        return told + (f" ({what}{listed}{more})" if listed else "")


def metrics_of(cell: Cell, evaluation: Evaluation) -> Metrics:
    """What a cell will have, at its scale."""
    backend = registry.load(cell.settings.backend.name)
    scored = [
        name
        for task in tasks_of(cell, evaluation)
        for kind in ("mean", "pass")
        for name in (
            f"eval/{task.name}/{kind}@{task.repeats}",
            f"eval/{_domain(task.domain)}/{kind}@{task.repeats}",
            f"eval/{_domain(task.domain)}/mean",
        )
    ]
    scored += [f"eval/{task.name}/{one}" for task in divergence_tasks(cell, evaluation)
               for one in _DIVERGENCES]  # fmt: skip
    return Metrics(
        backend.name,
        tuple(name for name in METRICS if not name.startswith("eval/")),
        tuple(getattr(backend, "evaluates", ())),
        tuple(dict.fromkeys(scored)),
    )


def _domain(domain: str) -> str:
    return "in_domain" if domain == "in" else "out_of_domain"
