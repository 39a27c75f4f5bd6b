"""Phase maps: the state of a run, the shares of a field, and the bound of linear stability."""

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.analysis.compare import compare, comparison_data
from orchestrator.analysis.configurations import configurations
from orchestrator.analysis.phases import phase_maps, state_of
from orchestrator.analysis.runs import MeasuredRun, measure
from orchestrator.records import Outcome
from orchestrator.report.results import phase_panels, phase_section

STEADY = [0.3 + 0.005 * step for step in range(100)]


def measured(synthetic: Any, **series: Sequence[float]) -> MeasuredRun:
    (run,) = measure(synthetic.run().records, [])
    curves = {
        f"train/{name}": dict(enumerate(values, 1))
        for name, values in ({"reward_mean": STEADY} | series).items()
    }
    return MeasuredRun(run.record, run.finals, curves, {})


def test_the_state_of_a_run(synthetic: Any) -> None:
    rising, flat = [0.02 * step for step in range(100)], [1.0] * 100
    assert state_of(measured(synthetic)) == ("stable", "")
    assert state_of(measured(synthetic, kl_reference=rising, entropy=flat, grad_norm=flat)) == (
        "stable",
        "",
    )
    fell = [*STEADY[:60], *[0.3] * 20, *STEADY[60:80]]
    assert state_of(measured(synthetic, reward_mean=fell)) == ("unstable", "reward")
    dips = [0.5, 0.2] * 50
    assert state_of(measured(synthetic, reward_mean=dips)) == ("stable", ""), "noise of one step"
    best_first = [0.9, *[0.85] * 99]
    far = [*[0.5] * 50, *[4.0] * 50]
    shown = state_of(measured(synthetic, reward_mean=best_first, kl_reference=far))
    assert shown == ("unstable", "kl")
    open_ended = [*[0.3] * 50, *[1.2] * 50]
    assert state_of(measured(synthetic, entropy=open_ended)) == ("unstable", "entropy")
    burst = [*[1.0] * 50, *[200.0] * 5, *[1.0] * 45]
    assert state_of(measured(synthetic, grad_norm=burst)) == ("unstable", "gradient")
    gap = [*STEADY[:50], float("nan"), *STEADY[51:]]
    assert state_of(measured(synthetic, reward_mean=gap)) == ("stable", "")


def test_a_collapse_is_the_runs_own_outcome(synthetic: Any) -> None:
    lost = Outcome(kind="collapsed", cause="entropy", step=50)
    states = [
        state_of(one)
        for done in (synthetic.run(outcome=lost), synthetic.run(state="running", progress=0.5))
        for one in measure(done.records, [])
    ]
    assert states == [("collapsed", "entropy"), None]


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


def test_a_map_has_every_field_with_its_shares(synthetic: Any) -> None:
    done = grid(synthetic)
    (one,) = phase_maps(configurations(measure(done.records, [])))
    assert (one.study, one.kl, one.axis, one.xs) == ("onpolicy", "k1.loss", "async", ("0", "10"))
    assert one.betas == (None, 0.05, 1.0)
    field = one.fields[1.0, "10"]
    assert field.counts == {"stable": 1, "unstable": 0, "collapsed": 1}
    assert field.shown_by == {"reward": 1}
    assert field.interval("collapsed") == pytest.approx((0.0945, 0.9055), abs=1e-4)
    assert one.fields[None, "0"].counts["stable"] == 2


def test_the_report_draws_and_lists_it(synthetic: Any) -> None:
    done = grid(synthetic)
    comparison = compare(synthetic.spec(), done.records, done.scores)
    section = phase_section(comparison)
    assert section is not None
    (panel,) = phase_panels(comparison)
    assert panel["y"] == ["no KL", "0.05", "1"]
    assert panel["z"][2] == [0, 0.5]
    assert panel["text"][2][1] == "1 / 0 / 1"
    (table,) = section.tables
    assert ("k1.loss", "1") in {(row[2], row[3]) for row in table.rows}
    assert any("1 of 2 [9%, 91%]" in row for row in table.rows)
    assert comparison_data(comparison)["phases"]
    few = synthetic.run("k1.loss", 0.1)
    assert phase_section(compare(synthetic.spec(), few.records, few.scores)) is None
