"""What the launches of a plan will measure: the claims and published figures that this can fill.

The names of a library's own log are in `Backend.logged_metrics`, its validation is in the ledger of
the launch, and everything else in the spec's evaluation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.metrics.names import METRICS, VALIDATION
from orchestrator.records import AttemptPaths, Cell, EvaluationSpec, PublishedPanel, Selection, Spec
from orchestrator.settings import without_seed
from orchestrator.spec.claims import SHARES, WORKS, ClaimSide, parse
from orchestrator.spec.select import matches

TASKS = "tasks"
_NOWHERE = AttemptPaths(Path("/plan"), Path("/attempt"), Path("/checkpoints"))
_OF_A_TERM = ("beta", "kl.beta", "kl.placement")


def fillable(spec: Spec, cells: Sequence[Cell]) -> list[str]:
    """Return sentences: how many figures and claims these launches can fill, and why not others."""

    known: dict[object, frozenset[str]] = {}

    def lacks(cell: Cell, metric: str) -> bool:
        key = without_seed(cell.settings)
        if key not in known:
            known[key] = frozenset(measured(cell, spec.evaluation))
        return metric not in known[key]

    untested = ((name, _untestable(spec, name, cells, lacks)) for name in spec.claims)
    claims = {name: reason for name, reason in untested if reason}
    figures = {
        figure.figure: reason
        for figure in spec.published.figures
        if (reason := "; ".join(filter(None, (_undrawn(p, cells, lacks) for p in figure.panels))))
    }
    lines = [
        f"{of}: {count - len(missing)} of {count} can be filled by these launches"
        for of, count, missing in (
            ("the paper's figures", len(spec.published.figures), figures),
            ("claims", len(spec.claims), claims),
        )
        if count
    ]
    return lines + [f"  not {name}: {why}" for name, why in (figures | claims).items()]


def measured(cell: Cell, evaluation: EvaluationSpec) -> Iterator[str]:
    """Yield the canonical names that the launch of a cell and its evaluation will measure."""
    backend = plugins.load(cell.settings.backend.name)
    logged = backend.logged_metrics
    yield from METRICS if logged is None else (each.ours for each in logged.metrics if each.ours)
    # verl's reader derives it from the reward with and without the penalty.
    yield from ["train/kl_reference"] * (cell.settings.kl.label == "k1.reward")
    try:
        ledger = backend.translate(cell, _NOWHERE).ledger
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


Lacks = Callable[[Cell, str], bool]


def _untestable(spec: Spec, name: str, cells: Sequence[Cell], lacks: Lacks) -> str:
    """Return why a claim cannot be tested on these cells, or an empty text."""
    claim = parse(spec.claims[name])
    for side in claim.sides:
        own = [
            cell
            for cell in cells
            if _is_of(cell, side, side.studies or claim.studies)
            and all(
                (where.axis in _OF_A_TERM and cell.settings.kl.placement is None)
                or matches(Selection((str(where),)), cell)
                for where in claim.at
            )
        ]
        if not own:
            return f"no chosen cell has {side}"
        if side.metric not in (*SHARES, WORKS) and all(lacks(cell, side.metric) for cell in own):
            return _reason(side.metric, own)
    return ""


def _is_of(cell: Cell, side: ClaimSide, studies: Sequence[str]) -> bool:
    chosen = matches(Selection(tuple(map(str, side.where))), cell)
    return chosen and (not studies or not set(studies).isdisjoint(cell.studies))


def _undrawn(panel: PublishedPanel, cells: Sequence[Cell], lacks: Lacks) -> str:
    """Return what a panel cannot show of these cells, or an empty text."""
    chosen = Selection(panel.where)
    own = [cell for cell in cells if panel.study in cell.studies and matches(chosen, cell)]
    metric = panel.metrics[0]
    if not own:
        return f"{panel.title}: no chosen cell of study {panel.study}"
    without = [cell for cell in own if lacks(cell, metric)]
    return f"{panel.title}: {_reason(metric, without)}" if without else ""


def _reason(metric: str, cells: Iterable[Cell]) -> str:
    """Return why cells will not have a metric."""
    backends = dict.fromkeys(cell.settings.backend for cell in cells)
    libraries = ", ".join(" ".join(filter(None, (b.name, b.version))) for b in backends)
    if metric == VALIDATION:
        return f"{libraries} does not validate while it trains"
    if metric == TASKS or metric.startswith("eval/"):
        return f"the spec's evaluation does not measure {metric}"
    return f"the log of {libraries} does not have {metric}"
