"""What the runs say of a claim, and of claims that changed after a result."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.claims import reason, statement, verdict_text
from orchestrator.analysis.compare import compare, comparison_data
from orchestrator.analysis.runs import is_accuracy, looks, measure
from orchestrator.analysis.text import metric_title
from orchestrator.pipeline import stages
from orchestrator.pipeline.training import keep_spec
from orchestrator.records import EvalTask, EvaluationSpec, ExitRecord, Outcome
from orchestrator.report.front import missing
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import Experiment

EVALUATION = EvaluationSpec(tasks=(EvalTask(name="math500", domain="in"),))
HIGHER = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"


def judged(synthetic: Any, done: Any, claims: Mapping[str, str] | str) -> Any:
    """Findings by name; the one finding if one claim is given."""
    named = {"claim": claims} if isinstance(claims, str) else claims
    found = compare(synthetic.spec(named), done.records, done.scores).claims
    return found[0] if isinstance(claims, str) else {f.name: f for f in found}


def both(synthetic: Any, one: list[float], other: list[float], **more: Any) -> Any:
    return synthetic.grid({"k1.reward": one, "k3.loss": other}, **more)


def test_a_clear_difference_is_supported_and_its_reverse_contradicted(synthetic: Any) -> None:
    done = both(synthetic, [0.80, 0.82, 0.81], [0.70, 0.71, 0.72])
    found = judged(synthetic, done, {"claim": HIGHER})["claim"]
    assert found.verdict == "holds"
    assert found.evidence.effect.mean == pytest.approx(0.1)
    assert found.num_seeds == 3
    assert judged(synthetic, done, HIGHER.replace(">", "<")).verdict == "contradicted"


def test_a_difference_within_the_noise_has_too_few_runs_and_says_how_many(synthetic: Any) -> None:
    found = judged(synthetic, both(synthetic, [0.8, 0.7, 0.9], [0.75, 0.8, 0.72]), HIGHER)
    assert found.verdict == "too few runs"
    assert found.seeds_needed > 6
    assert f"About {found.seeds_needed} seeds in all" in reason(found)


def test_one_seed_says_nothing_and_says_so(synthetic: Any) -> None:
    found = judged(synthetic, both(synthetic, [0.9], [0.1]), HIGHER)
    assert (found.verdict, found.seeds_needed) == ("too few runs", 2)
    assert "One seed has no interval: at least 1 more" in reason(found)


def test_a_claim_that_all_works_is_counted_and_says_yes(synthetic: Any) -> None:
    """The smoke test of four good cells once said that nothing was decided."""
    from orchestrator.report import answer

    done = both(synthetic, [0.9], [0.8])
    spec = synthetic.spec({"c": "works >= 1"}, evaluation=EVALUATION)
    compared = compare(spec, done.records, done.scores)
    (found,) = compared.claims
    assert (found.verdict, found.p_corrected, found.family) == ("holds", None, 0)
    assert answer(compared).startswith("Everything works: 2 of 2 runs trained to the end")
    short = both(synthetic, [0.9], [0.8], outcome=Outcome(kind="unclear"))
    assert "; 2 of them too short or noisy to call stable" in reason(
        judged(synthetic, short, "works >= 1")
    )
    unscored = compare(spec, done.records, [])
    assert unscored.claims[0].verdict == "not testable"
    assert "2 of 2 runs are not yet trained" in reason(unscored.claims[0])
    failed = done + synthetic.run("none", state="failed")
    compared = compare(spec, failed.records, failed.scores)
    assert compared.claims[0].verdict == "contradicted"
    assert "(failed)" in reason(compared.claims[0])
    assert answer(compared).startswith("Not everything works: 2 of 3")
    waiting = done + synthetic.run("none", state="running", progress=0.5)
    assert judged(synthetic, waiting, "works >= 1").verdict == "not testable"
    assert judged(synthetic, waiting, "works >= 0.5").verdict == "holds"
    fell = done + synthetic.run("none", outcome=synthetic.collapsed)
    assert "collapsed at step 60" in reason(judged(synthetic, fell, "works >= 1"))


def test_claims_are_corrected_for_their_number(synthetic: Any) -> None:
    one, other = [0.80, 0.84, 0.82, 0.83, 0.81], [0.79, 0.81, 0.79, 0.79, 0.80]
    done = both(synthetic, one, other)
    alone = judged(synthetic, done, HIGHER)
    assert alone.verdict == "holds"
    idle = {f"idle{i}": HIGHER.replace("in_domain/mean", "in_domain/pass@4") for i in range(5)}
    among = judged(synthetic, done, {"claim": HIGHER, **idle})["claim"]
    assert among.evidence.p == alone.evidence.p
    assert among.p_corrected > alone.p_corrected
    assert among.verdict == "seen"
    lost = {f"lost{i}": "eval/math500/mean > 0.5" for i in range(5)}
    untested = judged(synthetic, done, {"claim": HIGHER, **lost})["claim"]
    assert (untested.family, untested.verdict) == (6, "seen"), "claims of the spec, from the start"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("eval/accuracy_in_domain[kl=k1.reward] ~ 0.8 +- 0.05", "holds"),
        ("eval/accuracy_in_domain[kl=k1.reward] ~ 0.6 +- 0.05", "contradicted"),
        ("eval/accuracy_in_domain[kl=k1.reward] ~ 0.8 +- 0.01", "too few runs"),
        ("eval/accuracy_in_domain[kl=k1.reward] >= 0.81 +- 0.05", "holds"),
        ("eval/accuracy_in_domain[kl=k1.reward] >= 0.95 +- 0.05", "contradicted"),
        ("eval/accuracy_in_domain[kl=k1.reward] <= 0.79 +- 0.05", "holds"),
        ("eval/accuracy_in_domain[kl=k1.reward] < 0.7", "contradicted"),
        ("eval/accuracy_in_domain[kl=k1.reward] > 0.7", "holds"),
    ],
)
def test_regions(synthetic: Any, text: str, verdict: str) -> None:
    done = synthetic.grid({"k1.reward": [0.80, 0.81, 0.80, 0.79, 0.80]})
    assert judged(synthetic, done, text).verdict == verdict


def test_a_prediction_is_the_runs_own_closed_form(synthetic: Any) -> None:
    text = "eval/accuracy_in_domain[kl=k1.reward] ~ predicted +- 0.05"
    known = {"eval/accuracy_predicted": 0.8}
    done = synthetic.grid({"k1.reward": [0.80, 0.81, 0.80]}, metrics=known)
    assert judged(synthetic, done, text).verdict == "holds"
    far = synthetic.grid({"k1.reward": [0.5, 0.51, 0.5]}, metrics=known)
    assert judged(synthetic, far, text).verdict == "contradicted"
    without = judged(synthetic, synthetic.grid({"k1.reward": [0.8, 0.8]}), text)
    assert without.verdict == "not testable"
    assert "no closed form predicts qwen2.5-7b-k1.reward" in reason(without)


def test_settings_are_averaged_within_a_seed(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.8], [0.7, 0.7], beta=0.1)
    done += both(synthetic, [0.6, 0.62], [0.2, 0.2], beta=1.0)
    found = judged(synthetic, done, f"{HIGHER} at beta in [0.1, 1]")
    assert len(found.evidence.contrast.settings) == 2
    assert found.evidence.effect.mean == pytest.approx((0.1 + 0.1 + 0.4 + 0.42) / 4)
    only = judged(synthetic, done, f"{HIGHER} at beta=1")
    assert only.evidence.effect.mean == pytest.approx(0.41)


def test_no_kl_stands_beside_every_beta(synthetic: Any) -> None:
    done = synthetic.grid({"none": [0.9, 0.92]}) + synthetic.grid({"k1.reward": [0.8, 0.8]})
    done += synthetic.grid({"k1.reward": [0.6, 0.6]}, beta=1.0)
    text = "eval/in_domain/mean[kl=none] > eval/in_domain/mean[kl=k1.reward]"
    assert judged(synthetic, done, text).evidence.effect.mean == pytest.approx(0.21)
    at = judged(synthetic, done, f"{text} at beta=1")
    assert at.evidence.effect.mean == pytest.approx(0.31)


def test_a_cell_in_two_studies_counts_once(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.8, 0.81], [0.7, 0.71, 0.7], study=("onpolicy", "async10"))
    found = judged(synthetic, done, HIGHER)
    assert len(found.evidence.contrast.settings) == 1
    assert len(found.evidence.contrast.cells) == 6
    named = judged(synthetic, done, f"{HIGHER} in study async10")
    assert named.evidence.contrast.settings[0].study == "async10"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("eval/math500/mean@32[kl=k1.reward] > 0.5", "no finished run measured eval/math500/m"),
        ("eval/in_domain/mean@32[kl=k1.reward] > 0.5", "eval/in_domain/mean or eval/out_of_domain"),
        ("eval/in_domain/mean[kl=k2.loss] > 0.5", "no run has kl=k2.loss (there are: k1.reward,"),
        ("eval/in_domain/mean[kl=k1.reward] > 0.5 at beta in [0.1, 3]", "no run has beta=3"),
        (f"{HIGHER} in study onpolcy", "no study is called 'onpolcy', did you mean 'onpolicy'"),
        ("eval/accuracy_out_of_domain ~ predicted +- 0.1", "no closed form predicts eval/acc"),
    ],
)
def test_what_is_missing_is_named(synthetic: Any, text: str, sentence: str) -> None:
    found = judged(synthetic, both(synthetic, [0.8, 0.8], [0.7, 0.7]), text)
    assert found.verdict == "not testable"
    assert sentence in reason(found)


def test_a_setting_that_has_not_finished_is_not_averaged_away(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.8], [0.7, 0.7]) + both(
        synthetic, [0.8, 0.8], [0.7, 0.7], beta=1.0, state="running", progress=0.5
    )
    found = judged(synthetic, done, HIGHER)
    assert found.verdict == "not testable"
    assert "no finished run of onpolicy (beta=1" in reason(found)


def test_a_run_that_failed_is_left_out_and_told(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.81, 0.82], [0.7, 0.7])
    done += synthetic.run("k3.loss", seed=2, state="failed")
    found = judged(synthetic, done, HIGHER)
    assert found.evidence.effect.mean == pytest.approx(0.11)
    assert [mean.n for mean in found.evidence.contrast.means] == [3, 2]
    assert "Left out 1 run without a final value" in reason(found)


def test_a_partner_that_was_not_declared_is_told(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.81], [0.7, 0.7])
    done += synthetic.grid({"k1.reward": [0.1, 0.1]}, beta=1.0)
    found = judged(synthetic, done, HIGHER)
    assert found.evidence.effect.mean == pytest.approx(0.105)
    assert "1 of 2 settings: left out onpolicy (beta=1), which has no kl=k3.loss" in reason(found)
    listed = judged(synthetic, done, f"{HIGHER} at beta in [0.1, 1]")
    assert listed.verdict == "not testable"


def test_a_run_is_never_compared_with_itself(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.81]}, axes={"backend": "verl | openrlhf"})
    text = "eval/in_domain/mean[backend=verl] ~ eval/in_domain/mean[backend=openrlhf] +- 0.05"
    found = judged(synthetic, done, text)
    assert found.verdict == "holds by construction"
    assert "The difference is 0 and was not measured" in reason(found)
    strict = judged(synthetic, done, text.replace("~", ">").replace(" +- 0.05", ""))
    assert strict.verdict == "not testable"
    assert "both sides are one training run" in reason(strict)


def test_a_run_that_stands_for_two_libraries_counts_in_each(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.82]}, axes={"backend": "verl | skyrl"})
    own = {
        "openrlhf": ([0.6, 0.62], [0.5, 0.5]),
        "verl": ([], [0.7, 0.7]),
        "skyrl": ([], [0.4, 0.4]),
    }
    for library, (reward, loss) in own.items():
        terms = {"k1.reward": reward, "k3.loss": loss}
        done += synthetic.grid(
            {term: values for term, values in terms.items() if values}, backend=library, micro=False
        )
    finding = judged(synthetic, done, HIGHER)
    contrast = finding.evidence.contrast
    assert len(contrast.settings) == 3
    assert contrast.left_out == ()
    assert contrast.seeds == (0, 1)
    # Means over libraries: verl 0.1 and 0.12, skyrl 0.4 and 0.42, openrlhf 0.1 and 0.12.
    assert finding.evidence.effect.mean == pytest.approx(0.21)
    assert finding.evidence.effect.n == 2
    assert len(contrast.cells) == 2 * 5
    assert "2 seeds, 3 settings" in reason(finding)


def test_where_some_cells_are_one_run_the_others_are_compared(synthetic: Any) -> None:
    done = synthetic.grid({"none": [0.8, 0.81]}, axes={"backend": "verl | skyrl"})
    for library, accuracy in (("verl", 0.7), ("skyrl", 0.6)):
        own = {"k1.reward": [accuracy, accuracy]}
        done += synthetic.grid(own, backend=library, micro=False)
    text = "eval/in_domain/mean[backend=verl] > eval/in_domain/mean[backend=skyrl]"
    found = judged(synthetic, done, text)
    assert found.evidence.effect.mean == pytest.approx(0.1)
    assert "Left out 2 runs that are on both sides" in reason(found)


def test_steps_and_protocols_are_never_mixed(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.8]}) + synthetic.grid(
        {"k3.loss": [0.7, 0.7]}, steps=50
    )
    assert "50 and 100 train steps" in reason(judged(synthetic, done, HIGHER))
    done = synthetic.grid({"k1.reward": [0.8, 0.8]}) + synthetic.grid(
        {"k3.loss": [0.7, 0.7]}, repeats=8
    )
    assert "not measured the same way" in reason(judged(synthetic, done, HIGHER))


def test_a_stale_score_is_no_final_value(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.8], [0.7, 0.7])
    scores = [score.model_copy(update={"step": 50}) for score in done.scores]
    found = compare(synthetic.spec({"claim": HIGHER}), done.records, scores).claims[0]
    assert found.verdict == "not testable"


def test_means_over_the_tasks_of_a_domain(synthetic: Any) -> None:
    done = synthetic.run("k1.reward", accuracy=0.8)
    found = compare(synthetic.spec(), done.records, done.scores).configurations[0]
    assert found.finals["eval/in_domain/mean"].mean == pytest.approx(0.8)
    assert found.finals["eval/out_of_domain/mean"].mean == pytest.approx(0.4)
    assert found.finals["eval/out_of_domain/pass@4"].mean == pytest.approx(0.45)
    mean = done.scores[0].model_copy(update={"task": "in_domain", "value": 0.0})
    again = compare(synthetic.spec(), done.records, [*done.scores, mean]).configurations[0]
    assert again.finals == found.finals, "means handed in beside their tasks count for nothing"
    partial = [s for s in done.scores if (s.task, s.metric) != ("micro_copy", "mean@4")]
    finals = compare(synthetic.spec(), done.records, partial).configurations[0].finals
    assert "eval/out_of_domain/mean@4" not in finals
    assert "eval/out_of_domain/mean" not in finals


# ---------------------------------------------------------------- collapse

UNSTABLE = "collapse[kl=k1.loss] > collapse[kl=k1.reward]"


def collapses(synthetic: Any, kl: str, count: int, seeds: int, **more: Any) -> Any:
    done = synthetic.none
    for seed in range(seeds):
        outcome = synthetic.collapsed if seed < count else None
        done += synthetic.run(kl, seed=seed, outcome=outcome, **more)
    return done


def test_shares_of_collapsed_runs_are_compared_exactly(synthetic: Any) -> None:
    done = collapses(synthetic, "k1.loss", 7, 8) + collapses(synthetic, "k1.reward", 0, 8)
    found = judged(synthetic, done, UNSTABLE)
    assert found.verdict == "holds"
    assert (found.evidence.left.count, found.evidence.right.count) == (7, 0)
    boschloo = scipy.stats.boschloo_exact([[7, 0], [1, 8]], "greater").pvalue
    assert found.evidence.p == pytest.approx(2 * boschloo, rel=1e-3)
    assert "7 of 8 runs" in reason(found)
    assert judged(synthetic, done, UNSTABLE.replace(">", "<")).verdict == "contradicted"


def test_few_runs_cannot_decide_on_collapse(synthetic: Any) -> None:
    done = collapses(synthetic, "k1.loss", 2, 2) + collapses(synthetic, "k1.reward", 0, 2)
    found = judged(synthetic, done, UNSTABLE)
    assert found.verdict == "too few runs"
    assert found.seeds_needed == 5, "at the level of another look"
    done = collapses(synthetic, "k1.loss", 5, 5) + collapses(synthetic, "k1.reward", 0, 5)
    assert judged(synthetic, done, UNSTABLE).verdict == "holds"


def test_collapse_against_a_number(synthetic: Any) -> None:
    stable = collapses(synthetic, "k1.reward", 0, 80)
    assert judged(synthetic, stable, "collapse[kl=k1.reward] <= 0.1").verdict == "holds"
    few = collapses(synthetic, "k1.reward", 0, 3)
    assert judged(synthetic, few, "collapse[kl=k1.reward] <= 0.1").verdict == "too few runs"
    wild = collapses(synthetic, "k1.reward", 10, 12)
    assert judged(synthetic, wild, "collapse[kl=k1.reward] <= 0.1").verdict == "contradicted"


def test_runs_that_share_a_seed_count_once(synthetic: Any) -> None:
    """Twelve runs of three seeds are three seeds."""
    done = synthetic.none
    for beta in (0.05, 0.1, 0.3, 1.0):
        done += collapses(synthetic, "k1.loss", 3, 3, beta=beta)
        done += collapses(synthetic, "k1.reward", 0, 3, beta=beta)
    found = judged(synthetic, done, UNSTABLE)
    assert (found.evidence.left.count, found.evidence.left.n) == (12, 12)
    assert found.evidence.p == pytest.approx(2 / 64)
    one = judged(synthetic, done, f"{UNSTABLE} at beta=0.1")
    assert one.evidence.p == pytest.approx(found.evidence.p)


def test_at_every_beta_holds_if_it_holds_at_each(synthetic: Any) -> None:
    """56 of 80 runs collapsed was once `collapses at every beta`; at one beta 2 of 20 had."""
    done = collapses(synthetic, "k1.loss", 20, 20, beta=0.1)
    done += collapses(synthetic, "k1.loss", 2, 20, beta=0.05)
    majority = "collapse[kl=k1.loss] > 0.5"
    found = judged(synthetic, done, f"{majority} at every beta")
    assert found.verdict == "contradicted"
    assert "At β 0.05: 2 of 20 runs." in reason(found)
    assert "at every β" in statement(found.claim)
    assert judged(synthetic, done, f"{majority} at beta=0.1").verdict == "holds"
    accuracies = both(synthetic, [0.8, 0.81, 0.8], [0.7, 0.71, 0.7])
    accuracies += both(synthetic, [0.8, 0.81, 0.8], [0.7, 0.71, 0.7], beta=1.0)
    assert judged(synthetic, accuracies, f"{HIGHER} at every beta").verdict == "holds"


def test_instability_is_more_than_collapse(synthetic: Any) -> None:
    wild = {"train/grad_norm": 1e3}
    done = synthetic.none
    for seed in range(8):
        done += synthetic.run("k1.loss", seed=seed, metrics=wild)
        done += synthetic.run("k1.reward", seed=seed)
    assert judged(synthetic, done, UNSTABLE).verdict == "too few runs"
    told = judged(synthetic, done, UNSTABLE.replace("collapse", "unstable"))
    assert "collapsed or unstable runs" in statement(told.claim)
    assert told.evidence.right.count == 0


def test_accuracy_is_that_of_runs_that_trained(synthetic: Any) -> None:
    one, other = [0.80, 0.81, 0.80, 0.82], [0.80, 0.81, 0.82, 0.80]
    done = both(synthetic, one, other)
    done += synthetic.run("k3.loss", seed=4, accuracy=0.01, outcome=synthetic.collapsed)
    found = judged(synthetic, done, HIGHER)
    assert found.evidence.effect.mean == pytest.approx(0.0)
    assert found.verdict == "no effect"
    assert verdict_text(found) == "no effect larger than 0.05"
    assert "Among runs that trained (8 of 9); with the collapsed ones" in reason(found)
    gone = synthetic.grid({"k1.reward": one}) + collapses(synthetic, "k3.loss", 4, 4)
    lost = judged(synthetic, gone, HIGHER)
    assert lost.verdict == "not testable"
    assert "0 of 4 runs of k3.loss" in reason(lost)


def test_nothing_is_decided_before_its_runs_have_ended(synthetic: Any) -> None:
    done = both(synthetic, [0.9, 0.91, 0.9], [0.1, 0.11, 0.1])
    assert judged(synthetic, done, HIGHER).verdict == "holds"
    done += synthetic.run("k1.reward", seed=3, state="running", progress=0.5)
    found = judged(synthetic, done, HIGHER)
    assert found.verdict == "seen"
    assert "1 run not ended" in reason(found)


def test_seeds_that_are_added_after_a_look_have_what_is_left(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.81, 0.8, 0.81], [0.7, 0.71, 0.7, 0.71])
    launched = {0: 1e9 - 9, 1: 1e9 - 9, 2: 1e9 + 99, 3: 1e9 + 99}
    records = []
    for record in done.records:
        start = launched[record.cell.settings.seed]
        ends = tuple(end.model_copy(update={"ended": start + 60}) for end in record.attempts if end)
        records.append(replace(record, planned=start, attempts=ends))
    assert looks(measure(records, [])) == [2, 4]
    assert looks(measure(done.records, [])) == [4], "launched together"


@pytest.mark.parametrize("cause", ["nan", "reward"])
def test_a_collapsed_run_enters_no_accuracy(synthetic: Any, cause: str) -> None:
    fallen = synthetic.collapsed.model_copy(update={"cause": cause})
    done = synthetic.run("k1.loss", accuracy=0.9, outcome=fallen, progress=0.6)
    (alone,) = compare(synthetic.spec(), done.records, done.scores).configurations
    assert not [name for name in alone.finals if is_accuracy(name)]
    assert (alone.collapse.count, alone.collapse.n) == (1, 1)
    done += synthetic.run("k1.loss", accuracy=0.8, seed=1)
    (both,) = compare(synthetic.spec(), done.records, done.scores).configurations
    assert both.finals["eval/in_domain/mean"].mean == pytest.approx(0.8)
    assert both.finals["train/reward_mean"].n == 2


def test_what_is_no_number_is_no_value(synthetic: Any) -> None:
    done = both(synthetic, [0.8, 0.8], [0.7, 0.7], metrics={"eval/kl_reverse": float("nan")})
    text = "eval/kl_reverse[kl=k1.reward] < eval/kl_reverse[kl=k3.loss]"
    assert judged(synthetic, done, text).verdict == "not testable"


# ---------------------------------------------------------------- properties, words

shares = st.lists(st.floats(0.05, 0.95).map(lambda x: round(x, 2)), min_size=2, max_size=4)


@settings(max_examples=40, deadline=None)
@given(one=shares, other=shares, random=st.randoms())
def test_verdicts_do_not_depend_on_the_order_of_records_or_sides(
    synthetic: Any, one: list[float], other: list[float], random: Any
) -> None:
    done = both(synthetic, one, other)
    found = judged(synthetic, done, HIGHER)
    mirrored = judged(
        synthetic, done, "eval/in_domain/mean[kl=k3.loss] < eval/in_domain/mean[kl=k1.reward]"
    )
    assert mirrored.verdict == found.verdict
    assert mirrored.evidence.effect.mean == pytest.approx(-found.evidence.effect.mean)
    random.shuffle(done.records)
    random.shuffle(done.scores)
    again = judged(synthetic, done, HIGHER)
    assert (again.verdict, again.evidence.effect) == (found.verdict, found.evidence.effect)


def test_sides_are_compared_at_equal_values_of_another_metric(synthetic: Any) -> None:
    """k3 in the loss has half the KL at each beta; on one curve nothing of it is left."""
    reverse = "eval/kl_reverse"
    text = "eval/accuracy_in_domain[kl=k1.reward] > eval/accuracy_in_domain[kl=k3.loss]"

    def found(bonus: float, text: str) -> Any:
        done = synthetic.none
        for term, scale in (("k1.reward", 1.0), ("k3.loss", 0.5)):
            for beta in (0.1, 0.3, 1.0):
                kl = scale / beta
                for seed in range(4):
                    height = 0.5 + 0.03 * kl + 0.001 * seed + bonus * (term == "k1.reward")
                    metrics = {reverse: kl}
                    done += synthetic.run(term, beta, seed, accuracy=height, metrics=metrics)
        return judged(synthetic, done, text)

    plain, equal = found(0.0, text), found(0.0, f"{text} at equal {reverse}")
    assert plain.evidence.effect.mean > 0.05
    assert equal.evidence.effect.mean == pytest.approx(0.0, abs=1e-9)
    better = found(0.05, f"{text} at equal {reverse}")
    assert better.evidence.effect.mean == pytest.approx(0.05, rel=0.01)
    assert "at equal" in statement(better.claim)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("eval/in_domain/distinct@4", "different answers among 4, in-domain"),
        ("eval/math500/unboxed@32", "share of answers without a box, math500"),
    ],
)
def test_a_count_of_answers_is_no_accuracy(synthetic: Any, name: str, title: str) -> None:
    assert not is_accuracy(name)
    assert metric_title(name) == title
    assert is_accuracy(name.rpartition("/")[0] + "/boxed@4")


def test_claims_that_changed_after_a_result_are_told(synthetic: Any, tmp_path: Path) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.81], "k3.loss": [0.7, 0.72]})
    cells = tuple(record.cell for record in done.records)
    folder = RunFolder.of(tmp_path, "made", "micro")

    def said(claims: dict[str, str]) -> str:
        experiment = Experiment(synthetic.spec(claims), (), cells, "local", folder, "micro")
        compared = stages.compare_records(experiment, records, done.scores, {})
        assert json.loads(json.dumps(comparison_data(compared)))["claims_changed"] == (
            compared.claims_changed
        )
        assert compared.claims_changed.removesuffix(".") in missing(compared, records)
        return compared.claims_changed

    keep_spec(Experiment(synthetic.spec({"a": HIGHER}), (), cells, "local", folder, "micro"))
    declared = {"a": HIGHER, "b": f"{HIGHER} in study onpolicy"}
    keep_spec(Experiment(synthetic.spec(declared), (), cells, "local", folder, "micro"))
    ended = folder.events()[-1]["time"]
    end = ExitRecord(state="succeeded", started=0, ended=ended)
    records = [replace(record, attempts=(end,)) for record in done.records]
    assert said(declared) == said({"a": f" {HIGHER}", "b": declared["b"]}) == ""
    other = {"a": HIGHER.replace(">", "<"), "c": HIGHER}
    told = "Claims changed after the first result: 1 added (c), 1 removed (b), 1 altered (a)."
    assert said(other) == told
    keep_spec(Experiment(synthetic.spec(other), (), cells, "local", folder, "micro"))
    assert said(other) == told, "another launch declares nothing that was seen"
