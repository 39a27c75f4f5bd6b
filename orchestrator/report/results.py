"""The sections that hold results: accuracies, curves, collapse, distance, prediction."""

from collections.abc import Sequence

from orchestrator.compare import Comparison, Configuration, versus_none
from orchestrator.compare.phrases import told
from orchestrator.compare.words import metric as name_of
from orchestrator.report.data import CURVES, drawn, setting_names
from orchestrator.report.model import Figure, Map, MapCell, Section, Table

COLLAPSED = (
    "Runs that collapsed, of those that ended: the reward fell to nothing, a number became NaN, or "
    "responses ran to the limit. A collapse is a result, not a failed job."
)
DISTANCE = ("eval/kl_forward", "eval/kl_reverse", "eval/entropy")


def finals(comparison: Comparison) -> Section:
    """Final accuracy in and out of domain, with intervals over seeds (Fig. 5, 6, 8, 9, 10)."""
    metrics = tuple(m for m in (comparison.in_domain, comparison.out_of_domain) if m)
    if not metrics:
        return Section("finals", "Final accuracy", ("No cell has finished yet.",))
    tasks = sorted({m for c in comparison.configurations for m in c.finals if _is_task(m)})
    figure = Figure(
        "finals", "finals", "Final accuracy in and out of domain",
        "Mean over seeds with its 95 % interval (Student's t); small marks are single seeds. "
        "A configuration without a bar has one seed.",
        f"Dots with intervals: {' and '.join(map(name_of, metrics))} of each configuration; the "
        "table below holds the numbers.",
        (*metrics, *tasks),
    )  # fmt: skip
    return Section(
        "finals", "Final accuracy", figures=(figure,), tables=(_finals_table(comparison),)
    )


def _is_task(metric: str) -> bool:
    parts = metric.split("/")
    return len(parts) == 3 and parts[1] not in ("in_domain", "out_of_domain") and (
        parts[2].startswith("mean@") or parts[1] == "accuracy"
    )  # fmt: skip


def _finals_table(comparison: Comparison) -> Table:
    found, inside, outside = (
        comparison.configurations, comparison.in_domain, comparison.out_of_domain,
    )  # fmt: skip
    differences = versus_none(found, inside) if inside else {}
    rows = [
        (c.study, setting, c.name, f"{c.num_finished} of {len(c.runs)}",
         _told(c, inside), told(differences[i], signed=True) if i in differences else "",
         _told(c, outside), f"{c.collapse.count} of {c.collapse.n}")
        for i, (c, setting) in enumerate(zip(found, setting_names(found), strict=True))
    ]  # fmt: skip
    columns = ("study", "setting", "configuration", "seeds finished",
               name_of(inside) if inside else "", "difference to no KL, same seeds",
               name_of(outside) if outside else "out of domain", "collapsed")  # fmt: skip
    return Table("Every configuration: mean and 95 % interval over seeds", columns, tuple(rows),
                 searchable=True)  # fmt: skip


def _told(c: Configuration, metric: str | None) -> str:
    return told(c.finals[metric]) if metric is not None and metric in c.finals else ""


def curves(comparison: Comparison) -> Section | None:
    """Learning curves by estimator, placement and beta (Fig. 2-4, 7, 11)."""
    metrics = tuple(m for m in CURVES if any(drawn(c, m) for c in comparison.configurations))
    if not metrics:
        return None
    figure = Figure(
        "curves", "curves", "Learning curves",
        "Mean over seeds, with its 95 % interval as a band; nothing is smoothed. Curves of a "
        "configuration are cut to the train steps that all of its seeds have reached. A cross "
        "marks configurations of which a seed collapsed.",
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
        "what the reference policy does; reverse KL is what the penalty is meant to bound.",
        "Curves of forward KL, reverse KL and entropy, one panel each.",
        metrics,
    )  # fmt: skip
    rows = [
        (c.study, setting, c.name, *(_told(c, m) for m in metrics))
        for c, setting in zip(
            comparison.configurations, setting_names(comparison.configurations), strict=True
        )
        if any(m in c.finals for m in metrics)
    ]
    table = Table("Final values: mean and 95 % interval over seeds",
                  ("study", "setting", "configuration", *map(name_of, metrics)), tuple(rows),
                  searchable=True)  # fmt: skip
    return Section("reference", "Distance from the reference policy", figures=(figure,),
                   tables=(table,))  # fmt: skip


def predicted(comparison: Comparison) -> Section | None:
    """Observed accuracy against the closed form of the KL-regularised optimum."""
    accuracy = "eval/accuracy_in_domain"
    pairs = [
        (c, setting)
        for c, setting in zip(
            comparison.configurations, setting_names(comparison.configurations), strict=True
        )
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
        (c.study, setting, c.name, f"{c.predicted:.3f}", _told(c, accuracy),
         f"{c.finals[accuracy].mean - (c.predicted or 0.0):+.3f}".replace("-", "−"))
        for c, setting in pairs
    ]  # fmt: skip
    columns = ("study", "setting", "configuration", "predicted", "observed", "difference")
    table = Table("Predicted and observed final accuracy", columns, tuple(rows))
    return Section("predicted", "Observed against predicted", figures=(figure,), tables=(table,))
