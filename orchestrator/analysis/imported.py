"""Runs that orch did not launch, as plain data for display next to a comparison's cells.

They enter no interval and no claim. A single run has no seeds, and properties that its settings do
not name (model, prompts, rewards) may differ from those of the cells.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator import plugins
from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.runs import spread_indices
from orchestrator.imports.origin import place_of
from orchestrator.imports.runs import ImportedRun
from orchestrator.metrics.names import METRICS

SHOWN = (
    "train/reward_mean",
    "train/kl_term",
    "train/kl_reference",
    "train/kl_reference_per_token",
    "train/entropy",
    "rollout/response_tokens",
    "train/grad_norm",
)
"""Metrics whose curves are drawn together with those of the cells, in this order."""
MOST_OWN = 6
"""Maximum number of cells' curves in one panel."""
MOST_NAMED = 12
"""Maximum number of metric names in one sentence."""
APART = (
    "orch did not launch these runs. They are in no interval and in no claim: each is one run, and "
    "what its log does not say (model, prompts, reward) may differ from the cells'."
)


def imported_data(runs: Iterable[ImportedRun]) -> list[dict[str, Any]]:
    """Return each imported run as plain data. Unknown values are None; `unknown` has reasons."""
    return [_data(run) for run in runs]


def _data(run: ImportedRun) -> dict[str, Any]:
    one, kl = run.manifest, run.kl
    terms, beta = terms_of(run)
    return {
        "name": run.name,
        "library": one.library,
        "library_because": one.library_because,
        "release": one.release,
        "release_because": one.release_because,
        "kl": terms,
        "beta": beta,
        "objective": kl.objective if kl is not None else None,
        "verdict": kl.verdict if kl is not None else None,
        "confidence": kl.confidence if kl is not None else None,
        "assumes": list(kl.assumes) if kl is not None else [],
        "problems": list(kl.problems) if kl is not None else [],
        "unknown": unknown(run),
        "ended": one.ended,
        "last_step": run.last_step,
        "steps": steps_of(run),
        "finals": run.finals,
        "not_named": list(run.unnamed),
        "kl_metrics": dict(kl_meanings(run)),
        "format": one.format,
        "origin": one.origin,
        "digest": one.digest,
        "notes": [*one.notes, *run.faults],
    }


def labelled_facts(run: ImportedRun) -> Iterator[tuple[str, str]]:
    """Yield what is known of a run, each sentence with its label, for a person."""
    one = _data(run)
    yield "from", f"{one['origin']} (sha256 {one['digest'][:12]}...)"
    yield "library", f"{run.trained_with}: {one['library_because']}"
    if one["objective"] is not None:
        beta = "" if one["beta"] is None else f", beta {one['beta']:g}"
        yield "KL", f"{one['kl'] or 'unknown'}{beta}: {one['objective']} ({one['verdict']})"
    yield from (("problem", each) for each in one["problems"])
    yield from (("unknown", each) for each in one["unknown"])
    finals = [f"{name} {value:.3g}" for name, value in run.finals.items()]
    yield "metrics", ", ".join(finals) or "none has a name of orch"
    yield "steps", f"{one['steps']}; the last is {one['last_step']}"
    yield from (("logged", f"{name}: {text}") for name, text in one["kl_metrics"].items())
    others = [name for name in one["not_named"] if name not in one["kl_metrics"]]
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield "kept", f"under their own names: {', '.join(others[:MOST_NAMED])}{more}"
    yield from (("note", each) for each in one["notes"])


def terms_of(run: ImportedRun) -> tuple[str | None, float | None]:
    """Return a run's KL terms, such as `k1.reward + k3.loss`, and their common β.

    Either is None if it is not known. β is also None if the terms have different weights.
    """
    if run.kl is None:
        return None, None
    reward, loss = run.kl.in_reward, run.kl.in_loss
    if reward.active is None or loss.active is None:
        return None, None
    active = [(p, t) for p, t in (("reward", reward), ("loss", loss)) if t.active]
    names = [f"{term.estimator or '?'}.{place}" for place, term in active]
    betas = {term.beta for _, term in active}
    return " + ".join(names) or "none", betas.pop() if len(betas) == 1 else None


def unknown(run: ImportedRun) -> list[str]:
    """Return one sentence for each unknown property of a run, with the reason."""
    one, kl = run.manifest, run.kl
    if one.library is None:
        return [f"which library trained it: {one.library_because}"]
    sentences = [] if one.release else [f"the release of {one.library}: {one.release_because}"]
    if not one.settings:
        sentences.append(f"its settings: {one.format} has none here")
    elif kl is None:
        sentences.append(f"its KL: {one.library}'s reader does not find it in the logged settings")
    elif kl.verdict == "undetermined":
        sentences.append(f"its KL: {kl.why}")
    return sentences


def steps_of(run: ImportedRun) -> str:
    """Return the meaning of a step in the run's log."""
    library = run.manifest.library
    table = plugins.logged_metrics(library) if library else None
    return table.steps if table else "a step is what its logger counts"


def kl_meanings(run: ImportedRun) -> Iterator[tuple[str, str]]:
    """Yield each logged KL name with its meaning in the run's library."""
    library = run.manifest.library
    table = plugins.logged_metrics(library) if library else None
    if table is None:
        return

    place = place_of(run.kl)
    names = dict.fromkeys(name for row in run.rows for name in row.values)
    for name in names:
        row = table.row(name, place)
        if row is not None and row.meaning:
            yield name, row.meaning
        elif row is None and any(each.meaning for each in table.rows(name)):
            yield name, f"depends on the trainer: orch explain {table.short(name)}@{library}"


def beside(runs: Sequence[ImportedRun], own: Sequence[Configuration]) -> list[dict[str, Any]]:
    """Return one panel of curves for each metric in SHOWN that an imported run has.

    A panel is {"metric", "title", "lines": [{"name", "x", "y", "imported"}]}. It also has the first
    MOST_OWN configurations with the metric, as means over their seeds.
    """
    panels = []
    for metric in SHOWN:
        lines = [
            {"name": run.name, "x": x, "y": y, "imported": True}
            for run in runs
            for x, y in [_curve(run, metric)]
            if len(x) > 1
        ]
        if not lines:
            continue
        curves_of_cells = [c for c in own if metric in c.curves and len(c.curves[metric].steps) > 1]
        for c in curves_of_cells[:MOST_OWN]:
            curve = c.curves[metric]
            x, y = _thinned(curve.steps, curve.mean)
            lines.append({"name": f"{c.study} {c.name}", "x": x, "y": y, "imported": False})
        unit = METRICS[metric].unit
        title = metric.partition("/")[2] + (f" ({unit})" if unit else "")
        panels.append({"metric": metric, "title": title, "lines": lines})
    return panels


def _curve(run: ImportedRun, metric: str) -> tuple[list[int], list[float]]:
    points = [(p.step, p.values[metric]) for p in run.points if metric in p.values]
    return _thinned([step for step, _ in points], [value for _, value in points])


def _thinned(x: Sequence[int], y: Sequence[float]) -> tuple[list[int], list[float]]:
    kept = spread_indices(len(x))
    return [x[i] for i in kept], [y[i] for i in kept]
