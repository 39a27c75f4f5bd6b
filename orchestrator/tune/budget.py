"""What a search has spent, and whether it can afford another trial."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from orchestrator import cost
from orchestrator.tune.design import Search
from orchestrator.tune.trial import counts, spent_on


class Spent(NamedTuple):
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        return Spent(self.gpu_hours + other.gpu_hours, self.cpu_hours + other.cpu_hours)


def overdrawn(search: Search, trials: Iterable[Any]) -> str:
    """A sentence if one more trial is expected to go beyond the budget, else nothing.

    A trial that runs, and the next one, are expected to cost the mean of those that have ended;
    before there are any, what the cost model says.
    """
    block = search.tune.block
    if block.max_gpu_hours is None and block.max_cpu_hours is None:
        return ""
    own = [trial for trial in trials if counts(trial)]
    ended = [Spent(*spent_on(search, t)) for t in own if "spent" in t.user_attrs]
    total = Spent()
    for one in ended:
        total = total.plus(one)
    each = Spent(*(part / len(ended) for part in total)) if ended else _modelled(search)
    coming = len(own) - len(ended) + 1
    expected = total.plus(Spent(each.gpu_hours * coming, each.cpu_hours * coming))
    for used, limit, unit in (
        (expected.gpu_hours, block.max_gpu_hours, "GPU-hours"),
        (expected.cpu_hours, block.max_cpu_hours, "CPU-hours"),
    ):
        if used > (limit or math.inf):
            return (
                f"another trial would bring the search to {used:.3g} {unit}, of {limit:g} it may "
                f"spend, so it ends with {len(own)} trials"
            )
    return ""


def _modelled(search: Search) -> Spent:
    priced = [cost.cost(cell) for cell in search.cells(search.corners()[0], search.tune.seeds)]
    hours = sum(p.gpu_hours for p in priced if p.basis != "unknown")
    return Spent(hours, sum(p.cpu_seconds for p in priced) / 3600)
