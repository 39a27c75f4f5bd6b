"""Phase maps: the state of a run, the shares of a field, and the bound of linear stability."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from docs.tools.measured import (
    OBSERVATIONS,
    as_text,
    comedy_lines,
    phase_lines,
    quiet_lines,
    stored_data,
)
from orchestrator.analysis.compare import compare, comparison_data
from orchestrator.analysis.configurations import configurations
from orchestrator.analysis.phases import boundary, largest_step, mean_lag, phase_maps, state_of
from orchestrator.analysis.runs import MeasuredRun, measure
from orchestrator.records import Outcome, Published, PublishedStatement
from orchestrator.report.results import phase_panels, phase_section
from orchestrator.settings import Advantage, Batch, Data, Model, Optimizer, Settings

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
    assert one.boundary == (None, None), "nothing is known of a policy that is not ours"


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


def test_the_page_says_what_is_kept(synthetic: Any) -> None:
    done = grid(synthetic)
    spec = synthetic.spec({"k3_reward_collapses": "collapse[kl=k1.loss] > collapse[kl=none]"})
    comparison = compare(spec, done.records, [])
    published = spec.published.model_copy(
        update={
            "statements": (
                PublishedStatement(claim="k3_reward_collapses", where="Fig. 3", says="It falls."),
            )
        }
    )
    kept = json.loads(as_text(stored_data(comparison, done.records, published)))
    (claim,) = kept["claims"]
    assert (claim["says"], claim["where"]) == ("It falls.", "Fig. 3")
    page = "\n".join(comedy_lines(kept))
    assert "| It falls. (Fig. 3) | too few runs | The share of collapsed runs is higher" in page
    assert (
        "Of 1 claims, 0 hold here, 0 do not, for 0 no effect larger than 0.05 is left, and 1 are"
        in page
    )
    assert (kept["cells"], kept["finished"], kept["seeds"]) == (12, 12, [0, 1])
    verdicts = dict.fromkeys(
        (name for one in OBSERVATIONS for name in one.at_its_points), "too few runs"
    )
    for one, verdict in ((OBSERVATIONS[0], "holds"), (OBSERVATIONS[2], "contradicted")):
        verdicts |= dict.fromkeys(one.at_its_points, verdict)
    verdicts[OBSERVATIONS[4].at_its_points[0]] = "holds"
    points = [{"name": name, "verdict": verdict} for name, verdict in verdicts.items()]
    lines = list(phase_lines(kept, {"seeds": list(range(20)), "claims": points}))
    rows = [line.split("|") for line in lines if re.match(r"\| [1-5] \| .* hold, ", line)]
    short = [(row[3].strip(), row[4].strip()) for row in rows]
    assert [answer.partition(":")[0] for answer, _ in short] == [
        "appears",
        "not seen",
        "does not appear",
        "not seen",
        "appears in part",
    ]
    assert short[0][1] == "collapses at staleness 10 with β 1"
    assert short[4][0] == "appears in part: 1 hold, 0 do not, 2 not decided"
    at = lines.index("**k1.loss: β over staleness (updates)**")
    assert lines[at + 2 : at + 8] == [
        "| β | 0 | 10 |",
        "|---|---|---|",
        "| no KL | 2 / 0 / 0 | 2 / 0 / 0 |",
        "| 0.05 | 2 / 0 / 0 | 2 / 0 / 0 |",
        "| 1 | 2 / 0 / 0 | 1 / 0 / 1 |",
        "| predicted bound of β | none | none |",
    ]
    text = "\n".join(lines)
    assert "1 of 2 [9%, 91%]" in text
    assert "and no KL in none, at: staleness 10 with β 1." in text
    assert "*not decided (too few runs)*: The share of collapsed runs is higher" in text


def test_the_quiet_term_is_paired_with_the_others_by_seed(synthetic: Any) -> None:
    done = synthetic.grid({"rb.both": [0.8, 0.9], "k1.reward": [0.7, 0.7]})
    kept = stored_data(compare(synthetic.spec(), done.records, []), done.records, Published())
    (row,) = [line for line in quiet_lines(kept) if line.startswith("| k1.reward | 0.1 | +")]
    assert row.startswith("| k1.reward | 0.1 | +0.149 ["), "of the curve's last values"


@pytest.mark.parametrize("lag", [0, 1, 3, 10])
def test_the_bound_is_where_a_late_force_begins_to_grow(lag: int) -> None:
    """Against the recurrence itself: an average of gradients, of the distance `lag` updates ago."""

    def left(a: float, updates: int = 4000) -> float:
        x, average = [1.0] * (lag + 1), 0.0
        while len(x) < updates and abs(x[-1]) < 1e9:
            average = 0.9 * average + 0.1 * a * x[-1 - lag]
            x.append(x[-1] - average)
        return max(map(abs, x[-50:]))

    bound = largest_step(lag)
    assert left(0.97 * bound) < 1 < left(1.03 * bound)


def test_between_whole_lags_the_bound_lies_between() -> None:
    assert largest_step(2) < largest_step(1.5) < largest_step(1)


@pytest.fixture
def embedded(synthetic: Any) -> Callable[..., Settings]:
    def make(kl: str, **changed: Any) -> Settings:
        (record,) = synthetic.run(kl).records
        asked: Settings = record.cell.settings
        return asked.model_copy(
            update={
                "model": Model(name="elder", path="micro:elder", chat_template="none"),
                "data": Data(name="sort", path="micro:sort", reward="exact"),
                "batch": Batch(num_prompts=16),
                "optimizer": Optimizer(learning_rate=8e-4),
                **changed,
            }
        )

    return make


def test_the_bound_falls_with_staleness_rate_and_rollouts(
    embedded: Callable[..., Settings],
) -> None:
    stale = {"max_staleness_steps": 10}
    for kl in ("k1.reward", "k1.loss"):
        here = boundary(embedded(kl, **stale))
        assert here is not None
        for other in (
            {"max_staleness_steps": 30},
            stale | {"optimizer": Optimizer(learning_rate=1.6e-3)},
            stale | {"batch": Batch(num_prompts=64)},
        ):
            less = boundary(embedded(kl, **other))
            assert less is not None
            assert less < here
    assert boundary(embedded("k1.loss")) is None, "no force on policy"
    slow = Optimizer(learning_rate=1e-5)
    assert boundary(embedded("k1.loss", max_staleness_steps=3, optimizer=slow)) is None
    on_time = boundary(embedded("k3.loss", **stale))
    late = boundary(embedded("k1.reward", **stale))
    assert on_time is not None
    assert late is not None
    assert on_time > 50 * late
    assert boundary(embedded("none")) is None
    four = embedded("k1.loss", batch=Batch(num_prompts=64, num_minibatches=4))
    assert mean_lag(four) == 1.5


def test_a_term_without_pull_has_a_far_bound(embedded: Callable[..., Settings]) -> None:
    one = boundary(embedded("k3.reward", max_staleness_steps=10))
    other = boundary(embedded("k1.reward", max_staleness_steps=10))
    assert one is not None
    assert other is not None
    assert one > 50 * other


def test_without_a_baseline_an_advantage_is_the_reward(embedded: Callable[..., Settings]) -> None:
    from backends.micro.curvature import curvature

    plain = embedded("k1.loss", advantage=Advantage(estimator="reinforce"))
    less, more = curvature(plain), curvature(embedded("k1.loss"))
    assert less is not None
    assert more is not None
    assert more.advantage_deviation == pytest.approx(less.advantage_deviation * (5 / 4) ** 0.5)
    assert curvature(embedded("k1.loss", data=Data(name="x", path="elsewhere"))) is None


def test_the_curvature_is_measured() -> None:
    """Fewer responses find a worse direction, so that what they measure is a lower bound."""
    from backends.micro.curvature import LARGEST
    from docs.tools.curvature import largest

    assert 0.3 * LARGEST["elder", "sort"] < largest("elder", "sort", 1, 300) < 426
