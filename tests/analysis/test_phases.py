"""Phase maps: the state of a run, the shares of a field, and up to where a term trains."""

from typing import Any

import pytest

from orchestrator.analysis.compare import compare
from orchestrator.analysis.configurations import configurations
from orchestrator.analysis.phases import phase_maps, state_of
from orchestrator.analysis.runs import measure
from orchestrator.records import Outcome
from orchestrator.report.results import phase_section

KINDS = {
    "trained": "stable",
    "unstable": "unstable",
    "collapsed": "collapsed",
    "unclear": "cannot tell",
}


def test_the_state_of_a_run_is_its_outcome(synthetic: Any) -> None:
    for kind, state in KINDS.items():
        (run,) = measure(synthetic.run(outcome=Outcome(kind=kind, cause="reward")).records, [])
        assert state_of(run) == (state, "reward")
    (run,) = measure(synthetic.run(state="running", progress=0.5).records, [])
    assert state_of(run) is None


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
    assert field.counts == {"stable": 1, "unstable": 0, "collapsed": 1, "cannot tell": 0}
    assert field.shown_by == {"reward": 1}
    assert field.interval("collapsed") == pytest.approx((0.0945, 0.9055), abs=1e-4)
    assert one.fields[None, "0"].counts["stable"] == 2


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
    assert section is not None
    (view,) = section.figures[0].views
    drawn = {(row["row"], row["column"]): row for row in view["rows"]}
    assert '["no KL", "0.05", "1"]' in str(view["spec"])
    assert [drawn[2, column]["z"] for column in (0, 1)] == [0, 0.5]
    assert drawn[2, 1]["text"] == "1 / 0 / 1 / 0"
    largest, table = section.tables
    assert [row[-1] for row in largest.rows] == ["10 [none, 10]"] * 3
    assert ("k1.loss", "1") in {(row[2], row[3]) for row in table.rows}
    assert any("1 of 2 [9%, 91%]" in row for row in table.rows)
    few = synthetic.run("k1.loss", 0.1)
    assert phase_section(compare(synthetic.spec(), few.records, few.scores)) is None
