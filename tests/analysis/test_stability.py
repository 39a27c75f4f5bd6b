"""Drop from the peak, spread between seeds, time to collapse."""

import math
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are imported when they are named: not by every process

from orchestrator.analysis.compare import compare
from orchestrator.analysis.stats import seed_spread
from orchestrator.records import MetricPoint, Outcome


def of(synthetic: Any, done: Any) -> Any:
    (found,) = compare(synthetic.spec(), done.records, done.scores).configurations
    return found.stability


def test_a_run_that_ends_at_its_best_has_no_drop(synthetic: Any) -> None:
    found = of(synthetic, synthetic.grid({"k1.reward": [0.7, 0.8, 0.9]}))
    assert found.metric == "eval/accuracy_in_domain"
    assert found.drop.mean == 0
    assert found.collapsed_at == ()
    assert found.steps_kept.mean == 100


def test_a_fall_from_the_peak_is_told(synthetic: Any) -> None:
    done = synthetic.run(metrics={"eval/accuracy_in_domain": 0.1}) + synthetic.run(seed=1)
    found = of(synthetic, done)
    assert found.drop.n == 2
    assert found.drop.mean == pytest.approx((_peak(done.records[0]) - 0.1) / 2)
    assert found.drop.low == 0, "cut to what a drop can be"


def _peak(record: Any) -> float:
    points: list[MetricPoint] = list(record.metrics)
    name = "eval/accuracy_in_domain"
    return max(point.values[name] for point in points if name in point.values)


def test_steps_kept_end_at_the_collapse(synthetic: Any) -> None:
    done = (
        synthetic.run(seed=0)
        + synthetic.run(seed=1, outcome=Outcome(kind="collapsed", cause="reward", step=60))
        + synthetic.run(seed=2, outcome=Outcome(kind="collapsed", cause="nan", step=20))
        + synthetic.run(seed=3, state="running", progress=0.5)
    )
    found = of(synthetic, done)
    assert found.collapsed_at == (20, 60)
    assert (found.steps_kept.mean, found.steps_kept.n) == (60, 3)
    assert found.steps_kept.high == 100
    assert found.num_train_steps == 100


def test_the_interval_of_a_spread_is_chi_squares() -> None:
    x = [0.5, 0.52, 0.47, 0.55]
    found = seed_spread(x)
    squares = 3 * float(np.var(x, ddof=1))
    assert found.sd == pytest.approx(np.std(x, ddof=1))
    assert found.low == pytest.approx(math.sqrt(squares / scipy.stats.chi2.ppf(0.975, 3)))
    assert found.high == pytest.approx(math.sqrt(squares / scipy.stats.chi2.ppf(0.025, 3)))
    assert seed_spread([0.3, 0.3]).low is None
