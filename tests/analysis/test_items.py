"""Single items beside final values: in configurations, differences and claims."""

from typing import Any

import numpy as np
import pytest

from orchestrator.analysis.claims import reason
from orchestrator.analysis.compare import compare
from orchestrator.analysis.configurations import axis_differences

METRIC = "eval/in_domain/mean"
ITEMS = 128


def shares(done: Any, rng: Any, base: Any) -> dict[str, dict[str, Any]]:
    """Items of each run whose mean is its score."""
    found: dict[str, dict[str, Any]] = {}
    for score in done.scores:
        if score.metric.startswith("mean@"):
            items = base[score.task] + rng.normal(0, 0.05, ITEMS)
            items += score.value - items.mean()
            found.setdefault(score.cell_id, {})[score.task] = items
    return found


def made(synthetic: Any) -> tuple[Any, dict[str, dict[str, Any]]]:
    done = synthetic.grid({"none": [0.50, 0.52, 0.51], "k1.reward": [0.58, 0.59, 0.6]})
    rng = np.random.default_rng(0)
    base = {task: rng.normal(0, 0.3, ITEMS) for task in {s.task for s in done.scores}}
    return done, shares(done, rng, base)


def test_items_widen_the_interval_of_a_mean_and_leave_the_mean(synthetic: Any) -> None:
    done, items = made(synthetic)
    found = compare(synthetic.spec(), done.records, done.scores, items).configurations[0]
    both, alone = found.finals_over_items[METRIC], found.finals[METRIC]
    assert both.mean == pytest.approx(alone.mean)
    assert both.half_width > 1.5 * alone.half_width
    assert set(found.finals_over_items) >= {"eval/micro_sort/mean@4", "eval/out_of_domain/mean"}
    assert not [m for m in found.finals_over_items if "pass" in m], "only means are over items"


def test_paired_items_cancel_in_a_difference(synthetic: Any) -> None:
    """Both answer the same hard items: the difference is known better than either mean."""
    done, items = made(synthetic)
    found = compare(synthetic.spec(), done.records, done.scores, items)
    (difference,) = axis_differences(found.configurations, "kl", METRIC)
    assert difference.over_items is not None
    assert difference.over_items.mean == pytest.approx(difference.effect.mean)
    widths = [c.finals_over_items[METRIC].half_width for c in found.configurations]
    assert difference.over_items.half_width < min(widths)
    assert difference.relative is not None
    assert difference.relative.value == pytest.approx(0.51 / 0.59 - 1)


@pytest.mark.parametrize("damage", ["absent", "short", "of another evaluation"])
def test_items_that_some_run_lacks_are_not_averaged_over_the_rest(
    synthetic: Any, damage: str
) -> None:
    """Items that do not average to the score are not of it."""
    done, items = made(synthetic)
    victim = next(iter(items.values()))
    if damage == "absent":
        del victim["micro_sort"]
    elif damage == "short":
        victim["micro_sort"] = victim["micro_sort"][:-1]
    else:
        victim["micro_sort"] += 0.01
    found = compare(synthetic.spec(), done.records, done.scores, items)
    assert METRIC not in found.configurations[0].finals_over_items
    (difference,) = axis_differences(found.configurations, "kl", METRIC)
    assert difference.over_items is None
    assert difference.effect.n == 3


def test_a_claim_speaks_of_the_items_of_its_metric(synthetic: Any) -> None:
    """Not of those of other tasks, which were evaluated too."""
    done, items = made(synthetic)
    for own in items.values():
        own["another_task"] = np.zeros(7)
    claim = f"{METRIC}[kl=none] < {METRIC}[kl=k1.reward]"
    (found,) = compare(synthetic.spec({"c": claim}), done.records, done.scores, items).claims
    assert f"on these {ITEMS} items, not of other items" in reason(found)
