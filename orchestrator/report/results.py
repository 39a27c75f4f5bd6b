"""The sections that hold results: accuracies, curves, collapse, distance, prediction."""

from collections.abc import Sequence

from orchestrator.compare import Comparison, Configuration, versus_none
from orchestrator.compare.phrases import told
from orchestrator.compare.words import metric as name_of
from orchestrator.evaluate import ScoredBaseline
from orchestrator.report.baselines import table as before_training
from orchestrator.report.data import CURVES, drawn, names_of, setting_names
from orchestrator.report.model import Figure, Map, MapCell, Section, Table
from orchestrator.report.rows import WHO, cells, final, final_over_items, who

TITLE = "Final accuracy"
COLLAPSED = (
    "Runs that collapsed, of those that ended: the reward fell to nothing, a number became NaN, or "
    "responses ran to the limit. A collapse is a result, not a failed job."
)
DISTANCE = ("eval/kl_forward", "eval/kl_reverse", "eval/entropy")


def finals(comparison: Comparison, baselines: Sequence[ScoredBaseline] = ()) -> Section:
    """Final accuracy in and out of domain, with intervals, beside the models before training
    (Fig. 5, 6, 8, 9, 10)."""
    metrics = tuple(m for m in (comparison.in_domain, comparison.out_of_domain) if m)
    before = before_training(baselines, metrics)
    if not metrics:
        return Section("finals", TITLE, ("No cell has finished yet.",),
                       tables=(before,) if before else ())  # fmt: skip
    found = comparison.configurations
    tasks = sorted({m for c in found for m in c.finals if _is_task(m)})
    over_items = any(c.finals_over_items.get(m) for c in found for m in metrics)
    caption = (
        "Mean over seeds with its 95 % interval (Student's t); small marks are single seeds. "
        "A configuration without a bar has one seed."
    )
    if over_items:
        caption += " The thick light bar is the interval over seeds and items."
    if any(one.scores for one in baselines):
        caption += " Stars, and the dotted lines through them: the model before training."
    figure = Figure(
        "finals", "finals", "Final accuracy in and out of domain", caption,
        f"Dots with intervals: {' and '.join(map(name_of, metrics))} of each configuration; the "
        "table below holds the numbers.",
        (*metrics, *tasks),
    )  # fmt: skip
    tables = (before, _finals_table(comparison, over_items=over_items))
    return Section("finals", TITLE, figures=(figure,), tables=tuple(t for t in tables if t))


def _is_task(metric: str) -> bool:
    parts = metric.split("/")
    return len(parts) == 3 and parts[1] not in ("in_domain", "out_of_domain") and (
        parts[2].startswith("mean@") or parts[1] == "accuracy"
    )  # fmt: skip


def _finals_table(comparison: Comparison, *, over_items: bool) -> Table:
    found, inside, outside = (
        comparison.configurations, comparison.in_domain, comparison.out_of_domain,
    )  # fmt: skip
    differences = versus_none(found, inside) if inside else {}
    rows = [
        (*who(c, setting), f"{c.num_finished} of {len(c.runs)}",
         final(c, inside), *([final_over_items(c, inside)] if over_items else []),
         told(differences[i], signed=True) if i in differences else "",
         final(c, outside), *([final_over_items(c, outside)] if over_items else []),
         f"{c.collapse.count} of {c.collapse.n}", cells(c))
        for i, (c, setting) in enumerate(names_of(found))
    ]  # fmt: skip
    more = ("... over seeds and items",) if over_items else ()
    columns = (*WHO, "seeds finished", name_of(inside) if inside else "", *more,
               "difference to no KL, same seeds",
               name_of(outside) if outside else "out of domain", *more, "collapsed",
               "cells")  # fmt: skip
    return Table("Every configuration: mean and 95 % interval over seeds", columns, tuple(rows),
                 searchable=True)  # fmt: skip


def curves(comparison: Comparison) -> Section | None:
    """Learning curves by estimator, placement and beta (Fig. 2-4, 7, 11)."""
    metrics = tuple(m for m in CURVES if any(drawn(c, m) for c in comparison.configurations))
    if not metrics:
        return None
    figure = Figure(
        "curves", "curves", "Learning curves",
        "Mean over seeds, with its 95 % interval as a band. Nothing is smoothed unless the box is "
        "ticked, and then the figure says so. Curves of a configuration are cut to the train steps "
        "that all of its seeds have reached. A cross marks configurations of which a seed "
        "collapsed.",
        "Learning curves, one panel a KL configuration; the final values are in the table of the "
        "section before.",
        metrics,
    )  # fmt: skip
    return Section("curves", "Learning curves", figures=(figure,))


def collapse(comparison: Comparison) -> Section | None:
    """Which configurations collapse: the whole grid at a glance."""
    found = comparison.configurations
    if not found:
        return None
    groups: dict[tuple[str, str], list[Configuration]] = {}
    for c, setting in zip(found, setting_names(found), strict=True):
        groups.setdefault((c.study, setting), []).append(c)
    maps = tuple(_map(" · ".join(filter(None, key)), group) for key, group in groups.items())
    return Section(
        "collapse", "Collapse map",
        (COLLAPSED,),
        maps=maps,
    )  # fmt: skip


def _map(title: str, group: Sequence[Configuration]) -> Map:
    betas = sorted({c.beta for c in group if c.beta is not None})
    columns = [None, *betas] if any(c.beta is None for c in group) else list(betas)
    rows = []
    for kl in dict.fromkeys(c.kl for c in group):
        cells = {
            c.beta: MapCell(c.collapse.count, c.collapse.n, len(c.runs))
            for c in group
            if c.kl == kl
        }
        rows.append((kl, tuple(cells.get(beta) for beta in columns)))
    names = tuple("no KL" if beta is None else f"β {beta:g}" for beta in columns)
    return Map(title, names, tuple(rows))


def reference(comparison: Comparison) -> Section | None:
    """Forward and reverse KL to the reference policy, and entropy, as training goes (Fig. 12)."""
    metrics = tuple(m for m in DISTANCE if any(drawn(c, m) for c in comparison.configurations))
    if not metrics:
        return None
    figure = Figure(
        "reference", "measures", "Distance from the reference policy",
        "On held-out prompts, over whole sequences. Forward KL is large where the policy has lost "
        "what the reference policy does; reverse KL is what the penalty is meant to bound. "
        "Panels with more than 8 lines leave their bands out: choose a β to see them.",
        "Curves of forward KL, reverse KL and entropy, one panel each.",
        metrics,
    )  # fmt: skip
    rows = [
        (*who(c, setting), *(final(c, m) for m in metrics), cells(c))
        for c, setting in names_of(comparison.configurations)
        if any(m in c.finals for m in metrics)
    ]
    table = Table("Final values: mean and 95 % interval over seeds",
                  (*WHO, *map(name_of, metrics), "cells"), tuple(rows),
                  searchable=True)  # fmt: skip
    return Section("reference", "Distance from the reference policy", figures=(figure,),
                   tables=(table,))  # fmt: skip


def predicted(comparison: Comparison) -> Section | None:
    """Observed accuracy against the closed form of the KL-regularised optimum."""
    accuracy = "eval/accuracy_in_domain"
    pairs = [
        (c, setting)
        for c, setting in names_of(comparison.configurations)
        if c.predicted is not None and accuracy in c.finals
    ]
    if not pairs:
        return None
    figure = Figure(
        "predicted", "predicted", "Observed against predicted accuracy",
        "The optimum of reward minus β times the sequence's reverse KL is known in closed form for "
        "these tasks: a configuration whose gradient is that of the reverse KL should end on the "
        "line, if it trained long enough. Bars are 95 % intervals over seeds.",
        "Observed final accuracy over the predicted one, with the diagonal.",
        (accuracy,),
    )  # fmt: skip
    rows = [
        (*who(c, setting), f"{c.predicted:.3f}", final(c, accuracy),
         f"{c.finals[accuracy].mean - (c.predicted or 0.0):+.3f}".replace("-", "−"), cells(c))
        for c, setting in pairs
    ]  # fmt: skip
    columns = (*WHO, "predicted", "observed", "difference", "cells")
    table = Table("Predicted and observed final accuracy", columns, tuple(rows),
                  searchable=len(rows) > 12)  # fmt: skip
    return Section("predicted", "Observed against predicted", figures=(figure,), tables=(table,))
