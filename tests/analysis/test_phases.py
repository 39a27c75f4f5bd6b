"""Phase maps: the state of a run, the shares of a field, and the bound of linear stability."""

from typing import Any

import pytest

from orchestrator.analysis.compare import compare, comparison_data
from orchestrator.analysis.configurations import configurations
from orchestrator.analysis.phases import phase_maps, state_of
from orchestrator.analysis.runs import measure
from orchestrator.records import Outcome
from orchestrator.report.results import phase_panels, phase_section

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


def test_the_report_draws_and_lists_it(synthetic: Any) -> None:
    done = grid(synthetic)
    comparison = compare(synthetic.spec(), done.records, done.scores)
    section = phase_section(comparison)
    assert section is not None
    (panel,) = phase_panels(comparison)
    assert panel["y"] == ["no KL", "0.05", "1"]
    assert panel["z"][2] == [0, 0.5]
    assert panel["text"][2][1] == "1 / 0 / 1 / 0"
    (table,) = section.tables
    assert ("k1.loss", "1") in {(row[2], row[3]) for row in table.rows}
    assert any("1 of 2 [9%, 91%]" in row for row in table.rows)
    assert comparison_data(comparison)["phases"]
    few = synthetic.run("k1.loss", 0.1)
    assert phase_section(compare(synthetic.spec(), few.records, few.scores)) is None
<<<<<<< HEAD
=======


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
    assert lines[at + 2 : at + 7] == [
        "| β | 0 | 10 |",
        "|---|---|---|",
        "| no KL | 2 / 0 / 0 / 0 | 2 / 0 / 0 / 0 |",
        "| 0.05 | 2 / 0 / 0 / 0 | 2 / 0 / 0 / 0 |",
        "| 1 | 2 / 0 / 0 / 0 | 1 / 0 / 1 / 0 |",
    ]
    text = "\n".join(lines)
    assert "1 of 2 [9%, 91%]" in text
    assert "*not decided (too few runs)*: The share of collapsed runs is higher" in text


def test_the_quiet_term_is_paired_with_the_others_by_seed(synthetic: Any) -> None:
    done = synthetic.grid({"rb.both": [0.8, 0.9], "k1.reward": [0.7, 0.7]})
    kept = stored_data(compare(synthetic.spec(), done.records, []), done.records, Published())
    (row,) = [line for line in quiet_lines(kept) if line.startswith("| k1.reward | 0.1 | +")]
    assert row.startswith("| k1.reward | 0.1 | +0.149 ["), "of the curve's last values"
>>>>>>> b9350763 (The outcome of every run follows from its reward by one rule for all libraries: neither a run that dies in its first steps is stable, nor noise unstable)
