"""The metrics that the launches of a plan will measure.

The names of a library's own log are in `Backend.logged_metrics`, its validation is in the ledger of
the launch, and everything else in the spec's evaluation.
"""

from collections.abc import Iterator

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.library.neighbour import NOWHERE
from orchestrator.metrics.names import METRICS, VALIDATION
from orchestrator.records import Cell, EvaluationSpec

TASKS = "tasks"


def measured(cell: Cell, evaluation: EvaluationSpec) -> Iterator[str]:
    """Yield the canonical names that the launch of a cell and its evaluation will measure."""
    backend = plugins.load(cell.settings.backend.name)
    logged = backend.logged_metrics
    yield from METRICS if logged is None else (each.ours for each in logged.metrics if each.ours)
    # verl's reader derives it from the reward with and without the penalty.
    yield from ["train/kl_reference"] * (cell.settings.kl.label == "k1.reward")
    try:
        ledger = backend.translate(cell, NOWHERE).ledger
    except OrchError:  # `orch plan` says so by itself
        ledger = ()
    if not any(e.field == "cadence.evaluate_every_steps" and not e.key for e in ledger):
        yield VALIDATION
    tasks = tasks_of(cell, evaluation)
    for task in tasks:
        yield f"eval/{task.name}/mean@{task.repeats}"
    domains = {task.domain for task in tasks}
    yield from [TASKS] * bool(domains)
    yield from ["eval/in_domain/mean"] * ("in" in domains)
    yield from ["eval/out_of_domain/mean"] * ("out" in domains)
    yield from ["eval/out_over_in/mean"] * ({"in", "out"} <= domains)
    for each in divergence_tasks(cell, evaluation):
        for name in (each.name, "in_domain" if each.domain == "in" else "out_of_domain"):
            yield from (f"eval/{name}/{m}" for m in ("kl_forward", "kl_reverse", "entropy"))
