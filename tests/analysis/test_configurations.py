"""Means, curves and differences of configurations, single items beside them, and phase maps."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.compare import compare
from orchestrator.analysis.configurations import (
    axis_differences,
    configurations,
    differences_to_no_kl,
)
from orchestrator.analysis.phases import phase_maps
from orchestrator.analysis.runs import MAX_POINTS, Series, learning_curve, measure
from orchestrator.errors import SelectionError
from orchestrator.records import Outcome
from orchestrator.report.results import phase_section

METRIC = "eval/in_domain/mean"


def compared(synthetic: Any, done: Any) -> Any:
    return compare(synthetic.spec(), done.records, done.scores)


def test_seeds_make_one_configuration(synthetic: Any) -> None:
    found = compared(synthetic, synthetic.grid({"k1.reward": [0.7, 0.8, 0.9], "none": [0.5]}))
    reward, none = found.configurations
    assert (reward.kl, reward.beta, reward.name) == ("k1.reward", 0.1, "k1.reward β=0.1")
    assert (none.kl, none.beta, none.name) == ("none", None, "none")
    assert reward.finals[METRIC].n == 3
    assert reward.finals[METRIC].mean == pytest.approx(0.8)
    assert reward.by_seed(METRIC) == pytest.approx({0: 0.7, 1: 0.8, 2: 0.9})
    assert none.finals[METRIC].low is None
    assert (found.in_domain, found.out_of_domain) == (METRIC, "eval/out_of_domain/mean")


def test_an_unfinished_run_has_a_curve_and_no_final_value(synthetic: Any) -> None:
    done = synthetic.run(seed=0) + synthetic.run(seed=1, state="running", progress=0.5)
    found = compared(synthetic, done).configurations[0]
    assert (found.num_finished, found.finals[METRIC].n, found.collapse.n) == (1, 1, 1)
    shown = found.curves["train/reward_mean"]
    assert set(shown.seeds) == {0, 1}
    assert shown.steps[-1] == 50, "cut to the progress both seeds have in common"


def test_no_interval_of_a_kl_goes_below_zero(synthetic: Any) -> None:
    """Two seeds of which one went far: Student's interval alone is [-33, 47]."""
    done = synthetic.none
    for seed, kl in enumerate((4.0, 10.3)):
        done += synthetic.run(seed=seed, metrics={"eval/kl_reverse": kl, "train/grad_norm": kl})
    (found,) = compared(synthetic, done).configurations
    assert found.finals["eval/kl_reverse"].low == 0.0
    assert min(found.curves["eval/kl_reverse"].low) >= 0.0
    assert found.finals["train/grad_norm"].low < 0.0, "of an estimate nothing is cut"


def test_a_configuration_is_set_against_the_run_without_kl(synthetic: Any) -> None:
    done = synthetic.grid({"none": [0.9, 0.8, 0.7], "k1.reward": [0.8, 0.72]})
    found = differences_to_no_kl(compared(synthetic, done).configurations, METRIC)
    assert list(found) == [1]
    assert found[1].mean == pytest.approx(-0.09), "on the two seeds both have"
    elsewhere = synthetic.grid({"none": [0.9]}) + synthetic.grid(
        {"k1.reward": [0.8]}, model="other"
    )
    assert differences_to_no_kl(compared(synthetic, elsewhere).configurations, METRIC) == {}


def test_values_of_an_axis_are_set_against_each_other_in_equal_settings(synthetic: Any) -> None:
    done = synthetic.none
    for backend, shift in (("verl", 0.0), ("openrlhf", 0.1)):
        for beta in (0.1, 1.0):
            done += synthetic.grid(
                {"k1.reward": [0.5 + shift, 0.52 + shift, 0.51 + 0.98 * shift]},
                beta=beta,
                backend=backend,
                micro=False,
            )
    done += synthetic.grid({"k1.reward": [0.0] * 3}, beta=3.0, backend="verl", micro=False)
    (found,) = axis_differences(compared(synthetic, done).configurations, "backend", METRIC)
    assert (found.left, found.right) == ("verl", "openrlhf")
    assert found.difference.mean == pytest.approx(-0.1, abs=0.001)
    assert len(found.settings) == 2, "beta 3 ran in one library only"
    assert found.verdict == "differs"


def test_by_kl_sets_no_kl_against_every_beta(synthetic: Any) -> None:
    done = synthetic.grid({"none": [0.9, 0.9], "k1.reward": [0.8, 0.8]})
    done += synthetic.grid({"k1.reward": [0.6, 0.6]}, beta=1.0)
    (found,) = axis_differences(compared(synthetic, done).configurations, "kl", METRIC)
    assert found.difference.mean == pytest.approx(0.2)
    betas = axis_differences(compared(synthetic, done).configurations, "beta", METRIC)
    assert [(d.left, d.right) for d in betas] == [("0.1", "1")]
    with pytest.raises(SelectionError, match=r"has an axis .colour. .there are: kl, beta, "):
        axis_differences(compared(synthetic, done).configurations, "colour", METRIC)
    assert axis_differences(compared(synthetic, done).configurations, "kl.beta", METRIC) == betas


def test_differences_of_an_axis_are_corrected_for_their_number(synthetic: Any) -> None:
    done = synthetic.grid(
        {"k1.reward": [0.8, 0.81, 0.83], "k3.loss": [0.7, 0.7, 0.75], "k1.loss": [0.6, 0.7, 0.5]}
    )
    found = axis_differences(compared(synthetic, done).configurations, "kl", METRIC)
    assert len(found) == 3
    assert all(d.p_corrected >= d.p for d in found)
    assert max(d.p_corrected / d.p for d in found) == pytest.approx(3)


# ---------------------------------------------------------------- curves

points = st.dictionaries(st.integers(0, 500), st.floats(-5, 5), min_size=1, max_size=300)


@given(st.lists(points, min_size=1, max_size=3))
def test_curves_never_mix_steps(series: list[dict[int, float]]) -> None:
    found = learning_curve(dict(enumerate(map(Series.of, series))))
    common = sorted(set.intersection(*(set(s) for s in series)))
    if not common:
        assert found is None
        return
    assert set(found.steps) <= set(common)
    assert (found.steps[0], found.steps[-1]) == (common[0], common[-1])
    assert len(found.steps) <= MAX_POINTS
    assert list(found.steps) == sorted(set(found.steps))
    for i, step in enumerate(found.steps):
        assert found.mean[i] == pytest.approx(sum(s[step] for s in series) / len(series))
        if len(series) > 1:
            assert found.low[i] <= found.mean[i] + 1e-9
            assert found.mean[i] <= found.high[i] + 1e-9
        else:
            assert not found.low


def test_a_step_that_is_no_number_breaks_the_mean_there_and_nowhere_else() -> None:
    rows = {1: 1.0, 2: math.nan, 3: 3.0}, {1: 3.0, 2: 2.0, 3: 5.0}
    found = learning_curve(dict(enumerate(map(Series.of, rows))))
    assert found.mean[0] == 2.0
    assert math.isnan(found.mean[1])
    assert found.mean[2] == 4.0


def test_bands_end_where_the_metric_does() -> None:
    rows = {0: Series.of({1: 0.0}), 1: Series.of({1: 1.0})}
    found = learning_curve(rows, bounds=(0.0, 1.0))
    assert (list(found.low), list(found.high)) == ([0.0], [1.0])


ITEMS = 128


def made(synthetic: Any) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Runs, and the items of each, whose mean is its score."""
    done = synthetic.grid({"none": [0.50, 0.52, 0.51], "k1.reward": [0.58, 0.59, 0.6]})
    rng, found = np.random.default_rng(0), dict[str, dict[str, Any]]()
    base = {task: rng.normal(0, 0.3, ITEMS) for task in {s.task for s in done.scores}}
    for score in done.scores:
        if score.metric.startswith("mean@"):
            items = base[score.task] + rng.normal(0, 0.05, ITEMS)
            items += score.value - items.mean()
            found.setdefault(score.cell_id, {})[score.task] = items
    return done, found


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
    assert difference.over_items.mean == pytest.approx(difference.difference.mean)
    widths = [c.finals_over_items[METRIC].half_width for c in found.configurations]
    assert difference.over_items.half_width < min(widths)
    assert difference.relative.mean == pytest.approx(0.51 / 0.59 - 1)


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
    assert difference.difference.n == 3


def grid(synthetic: Any, seeds: int = 2) -> Any:
    lost = Outcome(kind="collapsed", cause="reward", step=50)
    done = synthetic.none
    for staleness in (0, 10):
        for seed in range(seeds):
            done += synthetic.run("none", seed=seed, staleness=staleness)
            for beta in (0.05, 1.0):
                outcome = lost if staleness and beta == 1 and seed == 0 else None
                done += synthetic.run(
                    "k1.loss", beta, seed, staleness=staleness, outcome=outcome, axes={"more": "x"}
                )
    return done


@pytest.mark.parametrize(
    ("fallen", "told"),
    [((0, 0, 0), "30 [30, 30]"), ((3, 5, 8), "3 [0, 10]"), ((8, 0, 0), "0 [0, 0]")],
)
def test_up_to_where_a_term_trains(synthetic: Any, fallen: tuple[int, ...], told: str) -> None:
    """Of eight seeds, so many fall at each staleness; 0 is below all of them."""
    lost = Outcome(kind="collapsed", cause="reward", step=50)
    done = synthetic.none
    for staleness, falls in zip((0, 3, 10, 30), (0, *fallen), strict=True):
        for beta in (0.05, 1.0):
            for seed in range(8):
                outcome = lost if seed < falls else None
                done += synthetic.run("k1.loss", beta, seed, staleness=staleness, outcome=outcome)
    (one,) = phase_maps(configurations(measure(done.records, [])))
    assert one.trains_up_to(1.0) == one.trains_up_to(0.05) == told


def test_the_report_draws_and_lists_it(synthetic: Any) -> None:
    done = grid(synthetic)
    comparison = compare(synthetic.spec(), done.records, done.scores)
    section = phase_section(comparison)
    (view,) = section.figures[0].views
    drawn = {(row["row"], row["column"]): row for row in view["rows"]}
    assert '["no KL", "0.05", "1"]' in str(view["spec"])
    assert [drawn[2, column]["z"] for column in (0, 1)] == [0, 0.5]
    assert (drawn[0, 0]["text"], drawn[2, 1]["text"]) == ("2 / 0 / 0 / 0", "1 / 0 / 1 / 0")
    largest, table = section.tables
    assert [row[-1] for row in largest.rows] == ["10 [none, 10]"] * 3
    assert ("k1.loss", "1") in {(row[2], row[3]) for row in table.rows}
    assert [row[-1] for row in table.rows if "1 of 2 [9%, 91%]" in row] == ["reward 1"]
    few = synthetic.run("k1.loss", 0.1)
    assert phase_section(compare(synthetic.spec(), few.records, few.scores)) is None
