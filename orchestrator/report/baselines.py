"""Models before training, with and without their chat template, beside what was trained of them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.compare.phrases import number
from orchestrator.compare.words import metric as name_of
from orchestrator.evaluate import ScoredBaseline
from orchestrator.report.data import rounded
from orchestrator.report.model import Table
from orchestrator.types import Score

_AT_K = re.compile(r"mean@(\d+)")
_DOMAINS = (("in", "in_domain"), ("out", "out_of_domain"))


def values(scores: Sequence[Score]) -> dict[str, float]:
    """Canonical name -> value before training: each task's mean@k, and the mean over the tasks of a
    domain, each at its largest k."""
    named: dict[str, float] = {}
    for domain, title in _DOMAINS:
        best: dict[str, tuple[int, float]] = {}
        for task in {s.task for s in scores if s.domain == domain and s.task != title}:
            for metric in {s.metric for s in scores if s.task == task}:
                found = [s.value for s in scores if (s.task, s.metric) == (task, metric)]
                mean = math.fsum(found) / len(found)
                if at := _AT_K.fullmatch(metric):
                    named[f"eval/{task}/{metric}"] = mean
                    best[task] = max(best.get(task, (0, 0.0)), (int(at[1]), mean))
        if best:
            named[f"eval/{title}/mean"] = math.fsum(v for _, v in best.values()) / len(best)
    return named


def data(found: Sequence[ScoredBaseline]) -> list[dict[str, Any]]:
    """What figures draw: of each baseline its model, its name and its values."""
    return [
        {"model": one.baseline.model, "name": short(one), "note": one.note,
         "finals": {name: rounded(v) for name, v in values(one.scores).items()}}
        for one in found if one.scores
    ]  # fmt: skip


def short(one: ScoredBaseline) -> str:
    """`base model`, `base, no template`."""
    return "base, no template" if one.baseline.chat_template == "none" else "base model"


def table(found: Sequence[ScoredBaseline], metrics: Sequence[str]) -> Table | None:
    """Every declared baseline; an unscored one says so."""
    if not found:
        return None
    rows = tuple(_row(one, values(one.scores), metrics) for one in found)
    columns = ("model", "chat template", *map(name_of, metrics), "note")
    return Table("Before training (Baseline of Fig. 5, 6, 8 to 10)", columns, rows)


def _row(
    one: ScoredBaseline, known: Mapping[str, float], metrics: Sequence[str]
) -> tuple[str, ...]:
    template = "none" if one.baseline.chat_template == "none" else "its own"
    told = [number(known[m]) if m in known else "not evaluated" for m in metrics]
    return (one.baseline.model, template, *told, one.note)
