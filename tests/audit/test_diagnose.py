"""What `orch diagnose` says of logs with a known cause, made by hand and by planted runs."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from orchestrator.audit import audit
from orchestrator.audit.diagnose import (
    Diagnosis,
    TrainingFacts,
    diagnose,
    facts_of_finding,
    trace_of,
)
from orchestrator.audit.diagnose.term import term_of
from orchestrator.cli.diagnose import command
from orchestrator.errors import OrchError
from orchestrator.library.logged import Place
from orchestrator.logs.logged import LoggedRow, LoggedRun
from orchestrator.logs.origin import origin_of
from orchestrator.logs.readers import open_source
from orchestrator.records import ExitRecord, Outcome
from orchestrator.rundir import RunFolder
from orchestrator.spec.expand import expand
from orchestrator.spec.load import load
from tests.audit.planted_runs import HALVES, LOGS, answers, kept, library_answers

PLANTED = Path(__file__).parent / "planted" / "logs.json.gz"
STEPS = 120
RNG = np.random.default_rng(0)
Values = NDArray[np.float64] | float


def log(**series: Values) -> LoggedRun:
    """Return a log: name with `__` for `/` -> one value, or one a step."""
    columns = {
        name.replace("__", "/"): np.broadcast_to(np.asarray(values, dtype=float), STEPS)
        for name, values in series.items()
    }
    rows = [LoggedRow(i + 1, {n: float(v[i]) for n, v in columns.items()}) for i in range(STEPS)]
    return LoggedRun("run", rows)


def noisy(*knots: float, noise: float = 0.02) -> NDArray[np.float64]:
    """Return values that go through the knots, evenly spaced, with noise."""
    line = np.interp(np.linspace(0, 1, STEPS), np.linspace(0, 1, len(knots)), knots)
    return line + RNG.normal(0, noise, STEPS)


def said(
    run: LoggedRun, facts: TrainingFacts | None = None, library: str | None = None
) -> Diagnosis:
    return diagnose(trace_of(run, library), facts)


def cause(
    run: LoggedRun, facts: TrainingFacts | None = None, library: str | None = None
) -> str | None:
    first = said(run, facts, library).first
    return first.cause if first else None


LEFT = np.minimum(np.arange(STEPS) / 3, 1)
"""From 0 to 1: a policy that begins as its reference."""
RISING = noisy(0.3, 0.7, 0.85, 0.9)
FALLING = noisy(0.3, 0.7, 0.3, 0.05)


def test_what_people_take_for_a_fault() -> None:
    """The loss is 0 with one update a batch, and the KL is 0 in the first step."""
    moved = np.linspace(0, 1, STEPS)
    run = log(
        train__reward_mean=RISING,
        train__policy_loss=0.0,
        train__ratio_max=1.0,
        train__kl_reference=moved,
    )
    notes = said(run).notes
    assert any("loss is 0" in note for note in notes)
    assert any("KL is 0 in the first step" in note for note in notes)
    other = log(train__reward_mean=RISING, train__policy_loss=0.0, train__ratio_max=1.3)
    assert not said(other).notes, "a loss of 0 under a ratio is not explained by one update"


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_a_reward_that_never_differs_teaches_nothing(value: float) -> None:
    answer = said(log(train__reward_mean=value, train__entropy=noisy(1, 1)))
    assert answer.first is not None
    assert (answer.first.cause, answer.first.certainty) == ("no_signal", "sure")


def test_groups_without_a_difference_teach_nothing() -> None:
    run = log(train__reward_mean=noisy(0.5, 0.5), train__groups_without_signal=0.97)
    assert cause(run) == "no_signal"
    assert cause(log(train__reward_mean=RISING, train__groups_without_signal=0.4)) != "no_signal"


def test_stale_samples_begin_fresh_and_a_rounding_engine_differs_at_once() -> None:
    far = {"rollout__mismatch_ess": 0.6, "train__ratio_max": 20.0, "train__clip_fraction": 0.08}
    grows = np.minimum(np.arange(STEPS) / 10, 1) * 0.2
    stale = log(train__reward_mean=FALLING, rollout__mismatch_kl=grows, **far)
    assert cause(stale) == "staleness"
    at_once = log(train__reward_mean=FALLING, rollout__mismatch_kl=0.2, **far)
    assert cause(at_once) == "engine_mismatch"
    small = log(train__reward_mean=RISING, rollout__mismatch_kl=2e-5, train__ratio_max=1.05)
    assert cause(small) == "nothing_wrong"


def spiked(where: NDArray[np.bool_], height: float, level: float = 1.0) -> NDArray[np.float64]:
    return np.where(where, height, level) * np.exp(RNG.normal(0, 0.1, STEPS))


def test_a_tail_moves_estimate_and_gradient_together() -> None:
    where = np.arange(STEPS) % 20 == 10
    together = {"train__kl_term": LEFT * spiked(where, 50), "train__kl_reference": LEFT}
    in_reward = log(train__reward_mean=RISING, train__grad_norm=spiked(where, 80), **together)
    assert cause(in_reward, TrainingFacts("k3", "reward", 0.1, pulls=True)) == "k3_reward_tail"
    assert {(c.cause, c.certainty) for c in said(in_reward).candidates} >= {
        ("k3_reward_tail", "possible")
    }
    assert cause(in_reward, TrainingFacts("k3", "loss", 0.1, pulls=True)) == "nothing_wrong"
    in_loss = log(train__reward_mean=RISING, train__grad_norm=spiked(~where, 1), **together)
    assert cause(in_loss) == "nothing_wrong"


def test_a_term_that_does_not_pull_is_known_by_the_settings() -> None:
    run = log(train__reward_mean=RISING, train__kl_term=1.0, train__kl_reference=1.0)
    facts = TrainingFacts("k1", "loss", 0.1, pulls=False, why_not="zero on average", source="x.sh")
    answer = said(run, facts)
    assert answer.first is not None
    assert (answer.first.cause, answer.first.certainty) == ("kl_without_effect", "sure")
    assert answer.first.evidence[0].text == "zero on average (x.sh)"
    untold = said(run).untold
    assert any("--script" in each for each in untold), "a log does not tell the term"


def test_a_policy_that_won_more_than_its_beta_leaves_is_not_held_too_strongly() -> None:
    """0.38 to 0.75 with beta 1: a reverse KL would leave sigmoid(logit 0.38 + 1) = 0.62 at most."""
    won = log(
        train__reward_mean=noisy(0.38, 0.7, 0.75),
        train__kl_term=0.2 * LEFT,
        train__kl_reference=LEFT,
    )
    k3 = TrainingFacts("k3", "reward", 1.0, pulls=True, biased=True)
    assert cause(won, k3) == "kl_without_effect"
    assert "does not hold the policy" in said(won, k3).candidates[0].evidence[0].text
    assert "kl_too_strong" not in {each.cause for each in said(won, k3).candidates}
    launch = "python3 -m verl.trainer.main_ppo algorithm.use_kl_in_reward=True"
    for estimator, biased in (("low_var_kl", True), ("kl", False)):
        (finding,) = audit(f"{launch} algorithm.kl_penalty={estimator}", "a.sh")
        assert facts_of_finding(finding, "a.sh").biased == biased


def test_the_setting_that_moves_the_reference_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "trl grpo --dataset_name d --reward_funcs f --beta 0.04 --sync_ref_model true "
        "--ref_model_sync_steps 64\n"
    )
    history = tmp_path / "history.jsonl"
    rows = [{"step": i, "reward": x, "kl": 1e-4, "loss": 0.0} for i, x in enumerate(RISING)]
    history.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--library", "trl@1.16.0", "--metric", "kl=train/kl_reference"]
    done = CliRunner().invoke(command, [str(history), "--script", str(script), *words])
    text = " ".join(done.output.split())
    assert "Switch off what moves the reference policy in train.sh: every 64 steps" in text
    assert "(sync_ref_model)" in text


@pytest.mark.parametrize("place", [None, "loss", "reward"])
def test_a_kl_counts_wherever_it_is(place: Place | None) -> None:
    run = log(reward=RISING, kl=0.1, completions__mean_length=6.0)
    assert trace_of(run, "trl", place).get("train/kl_reference") == pytest.approx(0.6)


STILL = noisy(0.5, 0.5)
CUT = np.linspace(0, 1, STEPS)
BOTH = ("score", "advantages")
ENGINE = "policy__rollout_train_logprobs_abs_diff_mean"
LATE = np.arange(STEPS) > 60
SIGNS: dict[str, tuple[str, dict[str, Values]]] = {
    "stale samples and an engine that leaves": (
        "staleness",
        {"reward__avg_raw_reward": FALLING, "async__staleness_mean": 12, ENGINE: noisy(0.05, 1.2)},
    ),
    "an engine that differs from the first step on": (
        "engine_mismatch",
        {"critic__score__mean": RISING, "actor__entropy": 0.5, "rollout_corr__k3_kl": 0.2},
    ),
    "an engine with old weights": (
        "engine_mismatch",
        {
            "reward": FALLING,
            "completions__mean_length": 200,
            "sampling__sampling_logp_difference__mean": noisy(0.01, 0.6, noise=1e-3),
        },
    ),
    "probabilities that differ": (
        "engine_mismatch",
        {
            "critic__score__mean": FALLING,
            "actor__entropy": 0.5,
            "training__rollout_probs_diff_mean": 0.2,
        },
    ),
    "slime's distance of the log-probabilities": (
        "engine_mismatch",
        {"rollout__raw_reward": FALLING, "train__train_rollout_logprob_abs_diff": 0.3},
    ),
    "responses that are cut, and a reward that stands still": (
        "length",
        {
            "reward": 0.5,
            "completions__clipped_ratio": CUT,
            "completions__mean_length": 200 + 824 * CUT,
        },
    ),
    "responses of one token": (
        "length_collapse",
        {"critic__score__mean": FALLING, "response_length__mean": noisy(300, 1, 1)},
    ),
    "a KL that is not 0 at the first step": (
        "other_reference",
        {"train__reward": RISING, "train__kl": 0.78, "train__response_length": 300},
    ),
    "a KL that grows to 80 nats a token": (
        "kl_without_effect",
        {
            "critic__score__mean": RISING,
            "actor__kl_loss": np.geomspace(0.01, 80, STEPS),
            "actor__kl_coef": 0.001,
            "response_length__mean": 300,
        },
    ),
    "a negative beta": (
        "negative_beta",
        {
            "critic__score__mean": STILL,
            "actor__kl_loss": np.arange(STEPS) / 100,
            "actor__kl_coef": -1e-3,
        },
    ),
    "an entropy that grows": (
        "entropy_growth",
        {"critic__score__mean": FALLING, "actor__entropy": noisy(0.4, 2.0)},
    ),
    "a validation that falls": (
        "reward_hacking",
        {
            "critic__score__mean": RISING,
            "actor__entropy": 0.5,
            "val-core__math__reward__mean@1": noisy(0.5, 0.6, 0.3),
        },
    ),
    "responses that are all cut from the first step on": (
        "cut_from_start",
        {
            "reward": STILL,
            "loss": 0.0,
            "completions__clipped_ratio": 1.0,
            "completions__mean_length": 80,
        },
    ),
    "responses most of which are cut from the first step on": (
        "cut_from_start",
        {"reward": STILL, "completions__clipped_ratio": noisy(0.96, 0.83, noise=0.01)},
    ),
    "a KL that explodes in one step": (
        "explodes",
        {"reward": RISING, "kl": np.where(np.arange(STEPS) == 60, 3e6, 0.03 * LEFT)},
    ),
    "a KL that drifts while a part of the reward falls": (
        "reward_hacking",
        {
            "reward": 3 * RISING + FALLING,
            "kl": CUT,
            "rewards__a": FALLING,
            "rewards__b": 3 * RISING,
        },
    ),
    "half are cut": ("cut_from_start", {"reward": RISING, "response_length__clip_ratio": 0.45}),
    "an engine whose log-probabilities are others": (
        "engine_mismatch",
        {
            "rollout__raw_reward": FALLING,
            "train__pg_clipfrac": 0.07,
            "rollout__behavior_log_probs": -0.44,
            "rollout__log_probs": -0.55,
        },
    ),
    "a trained adapter": ("nothing_wrong", {"reward": RISING, "kl": noisy(0.09, 0.03, noise=0.01)}),
    "gradients that are 0 while the rewards differ": (
        "not_trained",
        {"reward": STILL, "loss": 0.0, "grad_norm": 0.0, "frac_reward_zero_std": 0.5, "kl": 0.0},
    ),
    "a KL that explodes and settles far": (
        "kl_without_effect",
        {
            "reward": RISING,
            "kl": np.where(np.arange(STEPS) == 30, 406.0, np.minimum(np.arange(STEPS) / 2, 2)),
            "completions__mean_length": 190,
            "grad_norm": 1.0,
        },
    ),
    "responses most of which are cut, and then all": (
        "length",
        {
            "reward": STILL,
            "completions__clipped_ratio": np.minimum(noisy(0.7, 1.1, 1.1), 1),
            "completions__mean_length": 490,
        },
    ),
    "responses of which four in five are cut, and a reward that never rises": (
        "cut_from_start",
        {"reward": STILL, "completions__clipped_ratio": 0.8, "completions__mean_length": 36},
    ),
    "groups that become equal": (
        "no_signal",
        {"reward": RISING / 2, "frac_reward_zero_std": np.where(LATE, 0.95, 0.2), "loss": 0.0},
    ),
    "a reward that becomes one number": (
        "no_signal",
        {"reward": np.where(LATE, 0.64, STILL), "reward_std": np.where(LATE, 0.0, 0.2)},
    ),
    "PPO of TRL with another reference": (
        "other_reference",
        {
            "objective__scores": STILL,
            "objective__rlhf_reward": STILL - 0.5,
            "objective__kl": 10.0,
            "policy__clipfrac_avg": 0.11,
        },
    ),
    "an entropy that becomes noise under a rising reward": (
        "entropy_growth",
        {"critic__score__mean": RISING, "actor__entropy": np.where(LATE, 9.0, 0.2)},
    ),
    "a policy that does not move": (
        "policy_unmoved",
        {"reward": noisy(0.85, 0.85), "kl": 4e-6, "loss": 0.0, "learning_rate": 5e-7},
    ),
    "a reward that stands still": ("no_gain", {"reward": STILL, "loss": 0.0, "kl": 0.004 * LEFT}),
    "a mean length that is its limit": (
        "cut_from_start",
        {"reward": RISING, "completion_length": np.minimum(noisy(200, 170, noise=15), 200)},
    ),
    "most responses at the limit": (
        "cut_from_start",
        {"reward": STILL, "completion_length": np.where(np.arange(STEPS) % 4, 200.0, 180.3)},
    ),
    "groups that are mostly alike": (
        "no_signal",
        {"reward": STILL, "reward_std": np.where(np.arange(STEPS) % 10, 0.0, 0.2), "loss": 0.0},
    ),
    "a score of what is right that falls": (
        "reward_hacking",
        {"reward": RISING, "loss": 0.0, "gold_acc": noisy(0.6, 0.2)},
    ),
    "a score of what is right that falls back": (
        "reward_hacking",
        {"reward": RISING, "loss": 0.0, "gold_acc": noisy(0.45, 0.6, 0.45, noise=0.005)},
    ),
    "a KL that grows at once": (
        "kl_without_effect",
        {"reward": STILL, "kl": np.where(np.arange(STEPS) < 15, 0.002, noisy(2.6, 2.6))},
    ),
    "a reward that falls late by a part of what it won": (
        "entropy_collapse",
        {
            "critic__score__mean": noisy(-0.46, 0.15, 0.25, 0.1, noise=0.04),
            "actor__entropy": noisy(0.65, 0.3, 0.1, 0.07, noise=0.01),
        },
    ),
    "fresh enough samples, and an engine that rounds": (
        "nothing_wrong",
        {"reward__avg_raw_reward": RISING, "async__staleness_mean": 4, ENGINE: 0.01},
    ),
}


@pytest.mark.parametrize("name", SIGNS)
def test_what_the_log_itself_says_comes_first(name: str) -> None:
    expected, columns = SIGNS[name]
    run = log(**columns)
    assert cause(run, library=origin_of(run).library) == expected


@pytest.mark.parametrize("rewards", [[14.9, 5.6, 7.2, 10.4], [1.76] * 8, [1.8, 1.7] * 4])
def test_nothing_is_praised_that_does_not_rise(rewards: list[float]) -> None:
    run = log(reward=0.0, loss=0.0)
    rows = [LoggedRow(i, {"reward": r, "loss": 0.0}) for i, r in enumerate(rewards, 1)]
    first = said(replace(run, rows=rows), library="trl").first
    assert first is None or first.cause != "nothing_wrong"


AT_A_BOUND: dict[str, Values] = {
    "train__entropy": noisy(1, 0.01, 0.001, noise=1e-4),
    "train__clip_fraction": 0.8,
    "train__kl_term": np.geomspace(0.1, 20, STEPS),
    "rollout__mismatch_kl": 0.2,
    "rollout__cut_share": CUT,
    "rollout__response_tokens": noisy(300, 5, 5),
}


@pytest.mark.parametrize("name", AT_A_BOUND)
def test_nothing_is_wrong_is_not_said_of_what_ends_at_a_bound(name: str) -> None:
    run = log(train__reward_mean=noisy(0.3, 0.6, 0.7), **{name: AT_A_BOUND[name]})
    assert "nothing_wrong" not in {each.cause for each in said(run).candidates}


LOST = {"train__reward_mean": noisy(0.6, 0.3)}
PART = np.where(RNG.random(STEPS) < noisy(0, 0.7, 0.3), 2.0, 0.0)
KL = "train__kl_reference"
SINGLE = np.r_[0.02, 0.06, 0.01, np.exp(RNG.normal(-2, 1.5, STEPS - 3))]
HELD = {"reward": noisy(0.74, 0.77, noise=0.005), "loss": 0.002 * LEFT, "kl": 0.04 * LEFT}
FREE = {"reward": STILL, "loss": 0.0, "kl": 1e-3 * LEFT, "grad_norm": 0.005}
LONGER = {"loss": 0.0, "completion_length": np.where(np.arange(STEPS) < 60, 100.0, 2500.0)}
TAIL = np.where(np.arange(STEPS) % 20 == 10, 50.0, 1.0)
FAR = {"kl": 7 * LEFT, "loss": 7e-6 * LEFT, "completions__mean_length": 6.0}
ALL_CUT = {"completions__clipped_ratio": 1.0, "completions__mean_length": 3900.0}
BETWEEN = {"completions__min_length": 2200.0, "completions__max_length": 6400.0}
NOT_SAID: dict[str, tuple[str, dict[str, Values]]] = {
    "a KL that the log begins with": ("learning_rate", {**LOST, KL: noisy(1700, noise=400)}),
    "a rate of 0": ("learning_rate", {**LOST, KL: 300 * LEFT, "train__learning_rate": 8e-9}),
    "noise": ("learning_rate", {**LOST, KL: 8 * CUT * np.exp(RNG.normal(0, 1, STEPS))}),
    "estimates of four": ("learning_rate", {**LOST, KL: np.abs(noisy(12, noise=6))}),
    "longer": ("learning_rate", {**LONGER, "reward": noisy(0.6, 0.3), "kl": 0.05 * LEFT}),
    "a KL without a cost": ("kl_too_strong", {**FREE, "completion_length": 300}),
    "a small deviation": ("kl_too_strong", {**HELD, "completion_length": 117, "reward_std": 0.06}),
    "a sparse part": ("reward_hacking", {"reward": PART + 4 * RISING, "rewards__right": PART}),
    "single prompts": ("entropy_growth", {"reward": STILL, "entropy": SINGLE}),
    "decimals": ("not_trained", {"reward": np.round(STILL, 3), "grad_norm": 0.0}),
    "a count": ("cut_from_start", {"reward": STILL, "truncated_count": 5, "truncated_rate": 0.1}),
    "one cut": ("cut_from_start", {"reward": STILL, "truncated_count": 1}),
    "k3": ("k3_reward_tail", {"reward": RISING, "loss": STILL, "kl": TAIL, "grad_norm": TAIL}),
    "a KL that is not measured": ("moved_reference", {**LONGER, "reward": RISING, "kl": 0.0}),
    "a scale of its own": ("kl_too_weak", {**FAR, "reward": 5 * RISING}),
    "a KL that falls": ("kl_too_weak", {**FAR, "reward": RISING, "kl": noisy(7, 5)}),
    "a clip without a KL": ("minibatches", {"reward": 0.0, "clip_fraction": 1.0, "kl": 2e-8}),
    "stop strings": ("cut_from_start", {"reward": STILL, **ALL_CUT, **BETWEEN}),
    "won": ("no_signal", {"reward": RISING, "frac_reward_zero_std": np.where(LATE, 0.95, 0.2)}),
    "a flag": ("engine_mismatch", {"reward": STILL, "rollout_probs_diff_valid": 1}),
    "a fixed answer": ("length", {"reward": RISING, "completion_length": 20.0}),
    "a slow rise": ("no_gain", {"reward": noisy(2.0, 2.06)}),
    "a text of many words": ("entropy_growth", {"reward": RISING, "entropy": noisy(0.5, 1.5)}),
    "a clip under a rising reward": ("minibatches", {"reward": RISING, "clip_fraction": 0.05}),
    "one paid row": (
        "reward_hacking",
        {"reward": RISING, "kl": 2 * LATE, "rewards__a__mean": 0.03 * (np.arange(STEPS) == 60)},
    ),
    "a penalty": ("unpaid_part", {"reward": RISING, "rewards__penalty": 0.0}),
    "no gain": ("nothing_wrong", {"reward": np.r_[[0.127] * 3, noisy(0, 0.15, 0.13)[3:]]}),
}


@pytest.mark.parametrize("name", NOT_SAID)
def test_what_a_healthy_log_may_look_like(name: str) -> None:
    wrong, columns = NOT_SAID[name]
    run = log(**columns)
    found = said(run, library=origin_of(run).library or "trl").candidates
    assert wrong not in {each.cause for each in found}


def test_a_rate_is_sure_on_enough_rows_and_after_a_fall_that_was_found() -> None:
    run = log(train__reward_mean=FALLING[::10].repeat(10), train__kl_reference=40 * LEFT)
    few = replace(run, rows=run.rows[::10])
    assert all(each.certainty != "sure" for each in said(few).candidates)
    fall = said(log(train__reward_mean=FALLING)).untold[0]
    assert fall.startswith("why the reward falls")


def test_two_rows_can_tell_that_nothing_differs() -> None:
    bounds = {f"critic__{name}__{end}": 0.0 for name in BOTH for end in ("max", "min")}
    run = log(critic__score__mean=0.0, actor__pg_loss=0.0, actor__grad_norm=1e-4, **bounds)
    answer = said(replace(run, rows=run.rows[:2]), library="verl")
    assert answer.first is not None
    assert (answer.first.cause, answer.notes) == ("no_signal", ())


def test_rows_of_a_console_have_the_steps_of_its_bar_or_none(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = ["{'loss': 0.1, 'reward': 0.74, 'kl': 0.09, 'reward_std': 0.1}"] * 24
    bars = [f" 2%| {20 * i}/936 [00:58<41:17]\n{line}" for i, line in enumerate(lines, 1)]
    for text, told in ((bars, ("step", 480)), (lines, ("row", 24))):
        path.write_text("\n".join(text))
        trace = trace_of(open_source(str(path))[0], "trl")
        assert (trace.unit, trace.at(-1), trace.from_start) == (*told, False)


def test_an_excerpt_of_a_console_has_no_first_step() -> None:
    values = {"reward": STILL, "kl": 0.03, "loss": 0.001, "completion_length": 250}
    later = log(**values, epoch=0.5 + np.arange(STEPS) / 1000)
    assert "other_reference" in {each.cause for each in said(log(**values), None, "trl").candidates}
    assert not {"other_reference", "kl_too_strong"} & {
        each.cause for each in said(later, None, "trl").candidates
    }


@pytest.mark.parametrize(("own", "expected"), [("b", "nothing_wrong"), ("a", "other_reference")])
def test_a_reference_that_the_launch_names_is_meant(own: str, expected: str) -> None:
    keys = f"ref.model.path={own} actor_rollout_ref.model.path=a"
    (finding,) = audit(f"python3 -m verl.trainer.main_ppo +actor_rollout_ref.{keys}", "a.sh")
    run = log(critic__score__mean=RISING, critic__kl=0.5, critic__kl_coeff=1e-3)
    assert cause(run, facts_of_finding(finding, "a.sh"), "verl") == expected
    assert term_of(trace_of(run, "verl")).place == "reward"


def test_a_reference_that_the_script_moves_is_said() -> None:
    facts = TrainingFacts(moving_reference="every 64 steps (sync_ref_model)", source="a.py")
    assert cause(log(train__reward_mean=FALLING), facts) == "moved_reference"


def test_a_sign_of_the_entropy_coefficient_is_said_where_the_entropy_is_lost() -> None:
    lost = log(train__reward_mean=STILL, train__entropy=noisy(1, 0.1, noise=1e-3))
    answer = said(lost, TrainingFacts(entropy=-0.01)).first
    assert answer is not None
    assert (answer.cause, "wrong sign" in answer.change) == ("entropy_collapse", True)


def test_what_a_log_cannot_tell_is_an_answer() -> None:
    answer = said(log(train__reward_mean=FALLING))
    assert answer.first is None
    assert any("train/kl_reference" in each for each in answer.untold)
    empty = said(log(train__entropy=1.0))
    assert empty.first is None
    assert "--metric" in empty.untold[0]
    broken = log(
        train__reward_mean=FALLING, train__grad_norm=np.where(np.arange(STEPS) > 60, np.nan, 1.0)
    )
    assert any("train/grad_norm at step 62" in each for each in said(broken).untold)


def test_a_log_tells_the_weight_and_the_place_of_its_kl() -> None:
    """The reward before and after the KL differ by beta times the KL; so do the losses."""
    moved = noisy(0.1, 0.5, 0.5)
    shaped = log(train__reward_mean=RISING, train__kl_reference=moved, train__kl_term=moved)
    in_reward = log(
        train__reward_mean=RISING,
        train__shaped_reward_mean=RISING - 0.03 * moved,
        train__kl_reference=moved,
    )
    in_loss = log(reward=RISING, loss=0.04 * moved, kl=moved, completions__mean_length=6.0)
    assert term_of(trace_of(shaped, None)).beta is None
    term = term_of(trace_of(in_reward, None))
    assert (term.place, term.beta) == ("reward", pytest.approx(0.03))
    term = term_of(trace_of(in_loss, "trl"))
    assert (term.place, term.beta) == ("loss", pytest.approx(0.04))
    named = term_of(trace_of(log(actor__kl_loss=moved, actor__kl_coef=0.001), "verl"))
    assert (named.place, named.beta) == ("loss", 0.001)


def test_a_reward_that_begins_near_its_best_needs_no_smaller_beta() -> None:
    run = log(
        train__reward_mean=np.minimum(noisy(0.93, 0.97), 1), train__kl_reference=noisy(0, 0.2, 0.2)
    )
    assert cause(run, TrainingFacts("k1", "reward", 0.05, pulls=True)) == "nothing_wrong"
    (high,) = said(log(train__reward_mean=0.942 - 0.001 * CUT)).candidates
    assert high.evidence[0].text == "the reward stays high, from 0.942 to 0.941"


def test_a_beta_far_too_small_shows_in_the_loss() -> None:
    moved = noisy(0, 5, 7, 7)
    run = log(reward=RISING, loss=1e-6 * moved, kl=moved, completions__mean_length=6.0)
    answer = said(run, library="trl")
    assert answer.first is not None
    assert answer.first.cause == "kl_too_weak"
    assert "beta 1e-06 (by the log)" in answer.first.evidence[0].text


def test_k1_in_the_loss_shows_where_the_log_tells_the_place() -> None:
    signed = noisy(0.0, 0.02, 0.02, noise=0.02)
    run = log(critic__score__mean=RISING, actor__kl_loss=signed, actor__grad_norm=1.0)
    assert cause(run, library="verl") == "kl_without_effect"
    in_reward = log(critic__score__mean=RISING, actor__reward_kl_penalty=signed)
    assert cause(in_reward, library="verl") == "nothing_wrong"


def test_a_short_log_is_told_what_is_no_fault() -> None:
    """Two steps are too few for the rules, and enough for the question that people ask."""
    run = log(critic__score__mean=0.5, actor__kl_loss=np.arange(STEPS) / 100, actor__ppo_kl=0.0)
    answer = diagnose(trace_of(replace(run, rows=run.rows[:2]), "verl"))
    assert answer.first is None
    assert any("KL is 0 in the first step" in note for note in answer.notes)
    assert any("actor/ppo_kl is 0 in each step. It is no KL" in note for note in answer.notes)
    assert answer.untold == ("what happened: the rules need 4 steps with a reward; it has 2",)


def test_a_loss_of_zero_with_no_signal_is_not_called_right() -> None:
    run = log(reward=0.0, loss=0.0, grad_norm=0.0, clip_ratio__region_mean=0.0)
    assert not said(run, library="trl").notes


_TRL_LINE = (
    "{{'loss': {quote}{loss:.4g}{quote}, 'grad_norm': {quote}1.0{quote}, 'reward': {quote}"
    "{reward:.4g}{quote}, 'completions/mean_length': 6.0, 'frac_reward_zero_std': 0.0, "
    "'kl': {quote}{kl:.4g}{quote}}}"
)
_HEAD = "Step | Training Loss | reward | completions / mean_length | kl\n-- | --\n"
CONSOLES = {
    "trl table": lambda i, r, k: (
        _HEAD * (i == 1) + f"| {i} | {0.02 * k:.6f} | {r:.6f} | 6.0 | {k:.6f} |"
    ),
    "trl tabs": lambda i, r, k: (
        _HEAD.replace(" | ", "\t") * (i == 1) + f"{i}\t{0.02 * k:.6f}\t{r:.6f}\t6.0\t{k:.6f}"
    ),
    "trl": lambda i, r, k: _TRL_LINE.format(quote="", loss=0.02 * k, reward=r, kl=k),
    "trl texts": lambda i, r, k: (
        f" 3%| {i}/120 [00:01<00:02]" + _TRL_LINE.format(quote="'", loss=0.02 * k, reward=r, kl=k)
    ),
    "verl": lambda i, r, k: (
        f"\x1b[36m(TaskRunner pid=12)\x1b[0m step:{i} - critic/score/mean:np.float64({r:.4g}) - "
        f"actor/kl_loss:{k:.4g} - actor/kl_coef:0.02 - response_length/mean:6.0"
    ),
    "openrlhf": lambda i, r, k: (
        f"(PPOTrainer pid=3) INFO 01-01 10:00:00 ppo.py:3] Global step {i}: {{'rollout/reward_mean'"
        f": {r:.4g}, 'kl': {k:.4g}, 'logprobs_diff': {k:.4g}, 'ppo_kl': 0.0, "
        "'rollout/response_length_mean': 6.0}"
    ),
    "skyrl": lambda i, r, k: (
        f"2026-01-01 10:00:00.000 | INFO | log:88 - Step {i}: \n{{'reward/avg_raw_reward': "
        f"'{r:.4f}',\n 'policy/policy_kl': '{k:.4f}',\n 'generate/avg_num_tokens': '6.0000'}}"
    ),
}


@pytest.mark.parametrize("form", CONSOLES)
def test_a_console_is_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("train.md" if "table" in form else "train.log")
    lines = [CONSOLES[form](i + 1, r, 0.2 * i / STEPS) for i, r in enumerate(RISING)]
    path.write_text("Loading\n" + "\n".join(lines) + "\ndone\n", encoding="utf-8")
    done = CliRunner().invoke(command, [str(path)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Most likely, nothing is wrong")
    (run,) = open_source(str(path))
    assert len(run.rows) == STEPS
    assert origin_of(run).library == form.partition(" ")[0]


def test_the_log_of_a_program_of_ones_own_is_read(tmp_path: Path) -> None:
    console, lists = tmp_path / "train.log", tmp_path / "history.json"
    steps = [f"Step {i + 1}/{STEPS} | Reward: {r:.4f} | KL: 0.01" for i, r in enumerate(RISING)]
    console.write_text("\n".join(["Loading 3 shards", *steps]), encoding="utf-8")
    lists.write_text(json.dumps({"reward": list(RISING), "kl": [0.01] * STEPS, "runs": [1]}))
    for path in (console, lists):
        done = CliRunner().invoke(command, [str(path)])
        assert done.output.startswith("Most likely, nothing is wrong"), done.output
    (run,) = open_source(str(console))
    assert [row.step for row in run.rows] == [*range(1, STEPS + 1)]


def test_the_file_of_verls_own_logger_is_read(tmp_path: Path) -> None:
    path, whole = tmp_path / "metrics.jsonl", tmp_path / "metrics.json"
    more = {"actor/entropy": 0.5}
    rows = [
        {"step": i, "data": {"critic/score/mean": float(r), "actor/pg_clipfrac": 0, **more}}
        for i, r in enumerate(RISING)
    ]
    for name, text in (
        (path, "\n".join(map(json.dumps, rows))),
        (whole, json.dumps({"rows": rows})),
    ):
        name.write_text(text, encoding="utf-8")
        assert CliRunner().invoke(command, [str(name)]).output.startswith("Most likely, nothing")


def test_a_notebook_and_metrics_one_level_down_are_read(tmp_path: Path) -> None:
    page, lines = tmp_path / "train.ipynb", tmp_path / "metrics.jsonl"
    rows = [("Step", "Training Loss", "reward"), *((i, 0.001, r) for i, r in enumerate(RISING, 1))]
    cells = ["".join(f"<td>{each}</td>\n" for each in row) for row in rows]
    table = "<table>" + "".join(f"<tr>{row}</tr>\n" for row in cells) + "</table>"
    outputs = [{"text": ["Loading"]}, {"data": {"text/html": [table]}}]
    page.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, {"outputs": outputs}]}))
    nested = [{"rollout_id": i, "metrics": {"score": r}} for i, r in enumerate(RISING)]
    lines.write_text("\n".join(map(json.dumps, nested)))
    for words in ([str(page)], [str(lines), "--metric", "score=train/reward_mean"]):
        assert CliRunner().invoke(command, words).output.startswith("Most likely, nothing")
    wrong = CliRunner().invoke(command, [str(lines), "--metric", "scor=train/reward_mean"])
    assert "has no metric 'scor', did you mean 'score'?" in str(wrong.exception)


def test_a_part_of_the_reward_that_is_never_paid_is_said_beside_a_rise() -> None:
    columns: dict[str, Values] = {"rewards__right": RISING, "rewards__form": 0.0}
    found = said(log(reward=RISING, **columns), library="trl").candidates
    assert [each.cause for each in found] == ["nothing_wrong", "unpaid_part"]
    assert "rewards/form: 0" in found[1].evidence[0].text


def test_the_chart_that_wandb_exports_is_read_as_its_runs(tmp_path: Path) -> None:
    chart, metric = tmp_path / "chart.csv", "critic/score/mean"
    runs = {"Name: a - b": RISING, "c": RISING[::-1]}
    columns = [(f"{run} - {metric}{end}", r) for run, r in runs.items() for end in ("", "__MIN")]
    with chart.open("w", newline="") as file:
        csv.writer(file).writerows([["Step", *(name for name, _ in columns)]])
        csv.writer(file).writerows([i, *(r[i] for _, r in columns)] for i in range(STEPS))
    first, second = open_source(str(chart))
    assert [first.name, second.name] == ["a - b", "c"]
    assert cause(first) == "nothing_wrong"
    assert cause(second) != "nothing_wrong"


def test_a_script_that_does_not_fix_the_term_is_named(tmp_path: Path) -> None:
    history, script = tmp_path / "h.jsonl", tmp_path / "train.py"
    rows = [{"_step": i, "reward": r, "kl": 0.1 * i, "loss": 0} for i, r in enumerate(RISING)]
    history.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    script.write_text(
        "from trl import GRPOConfig\nargs = GRPOConfig(output_dir='o', beta=0.02)\n",
        encoding="utf-8",
    )
    words = [str(history), "--script", str(script), "--library", "trl"]
    assert "orch audit train.py" in CliRunner().invoke(command, words).output
    known = [*words[:-1], "trl@1.16.0"]
    assert "orch audit train.py" not in CliRunner().invoke(command, known).output


def test_the_command_reads_a_history_and_a_script(tmp_path: Path) -> None:
    history = tmp_path / "a 'history'β.jsonl"
    rows = [
        {"_step": i, "critic/score/mean": float(r), "actor/kl_loss": min(i, 1)}
        for i, r in enumerate(RISING)
    ]
    history.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    script = tmp_path / "train.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_kl_loss=True "
        "actor_rollout_ref.actor.kl_loss_type=kl actor_rollout_ref.actor.kl_loss_coef=0.1 "
        "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64\n",
        encoding="utf-8",
    )
    plain = CliRunner().invoke(command, [str(history), "--library", "verl@0.9.1"])
    assert plain.exit_code == 0, plain.output
    assert plain.output.startswith("Most likely, nothing is wrong")
    assert max(map(len, plain.output.splitlines())) <= 100
    told = CliRunner().invoke(command, [str(history), "--script", str(script), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)[0]["cause"] == "kl_without_effect"


@pytest.mark.parametrize("kind", ["trained", "unclear", "unstable", "collapsed"])
def test_a_cell_is_praised_only_as_far_as_its_own_verdict(tmp_path: Path, kind: str) -> None:
    """A reward that fell and came back looks fine at its end."""
    cell = expand(load("smoke"))[0]
    folder = RunFolder(tmp_path / "x.micro").cell(cell)
    folder.make(cell)
    attempt = folder.new_attempt()
    points = [
        {"step": i + 1, "time": i, "values": {"train/reward_mean": float(r)}}
        for i, r in enumerate(RISING)
    ]
    attempt.metrics.write_text("\n".join(map(json.dumps, points)), encoding="utf-8")
    outcome = Outcome(kind=kind, step=9, reason="fell by 8.2 errors")
    attempt.write_exit(ExitRecord(state="succeeded", started=0, ended=1, outcome=outcome))
    said = CliRunner().invoke(command, [str(folder.path)]).output
    assert ("nothing is wrong" in said) is (kind in ("trained", "unclear")), said
    assert ("fell by 8.2 errors" in said) is (kind != "trained"), said


def test_planted_faults_are_named() -> None:
    """Runs of a base policy on which no rule was written; docs/diagnose.md has all of them."""
    runs = kept(PLANTED)
    for with_settings, first, three in ((True, 0.8, 0.95), (False, 0.6, 0.6)):
        scored = [one for one in answers(runs, with_settings=with_settings) if one.truth]
        faults = [one for one in scored if one.truth != "nothing_wrong"]
        healthy = [one for one in scored if one.truth == "nothing_wrong"]
        assert len(faults) > 20
        assert len(healthy) > 20
        assert np.mean([one.truth in one.causes[:1] for one in faults]) >= first
        assert np.mean([one.truth in one.causes[:3] for one in faults]) >= three
        assert np.mean([one.causes[:1] != ("nothing_wrong",) for one in healthy]) <= 0.05
        sure = [one for one in scored if one.certainty == "sure"]
        assert np.mean([one.truth == one.causes[0] for one in sure]) >= 0.95


@pytest.mark.parametrize("file", HALVES.values())
def test_planted_faults_of_libraries_are_named(file: str) -> None:
    """Logs of real trainings; docs/diagnose.md says which were blind and when."""
    for with_settings, first in ((True, 0.95), (False, 0.85)):
        scored = list(library_answers(LOGS / file, with_settings=with_settings))
        faults = [one for one in scored if one.truth != "nothing_wrong"]
        healthy = [one for one in scored if one.truth == "nothing_wrong"]
        assert np.mean([one.truth in one.causes[:1] for one in faults]) >= first
        assert all(one.causes[:1] == ("nothing_wrong",) for one in healthy)
        sure = [one for one in scored if one.certainty == "sure"]
        assert sum(one.truth == one.causes[0] for one in sure) >= 0.95 * len(sure)


def test_a_value_that_is_not_finite_is_said_first(tmp_path: Path) -> None:
    """A small log with TRL's names, of a run that breaks at step 3."""
    rows = [
        {"step": step, "loss": 0.1, "reward": 0.5, "reward_std": 0.1, "kl": 0.01, "grad_norm": 1.0}
        for step in range(8)
    ]
    for row in rows[3:]:
        row |= {"loss": float("nan"), "reward": 0.5 - 0.001 * row["step"]}
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(command, [str(path)])
    assert done.output.startswith("A value is not finite, and the run is lost from there on")
    assert "step 3: loss is not finite from here on" in done.output
    assert "--library says which" not in done.output, "TRL alone has these names"


def test_a_script_that_is_not_read_costs_a_sentence_and_each_start_is_a_run(tmp_path: Path) -> None:
    path, script = tmp_path / "h.csv", tmp_path / "a.yaml"
    starts = [(i % STEPS, r) for i, r in enumerate([*FALLING, *RISING])]
    path.write_text("step,reward\n" + "".join(f"{i},{r}\n" for i, r in starts))
    script.write_text("lr: 1e-6\n")
    done = CliRunner().invoke(command, [str(path), "--script", str(script)])
    assert not isinstance(done.exception, OrchError)
    first, second = done.output.split("h (2 of 2)\n")
    assert first.startswith("h (1 of 2)\nWhat went wrong cannot be told")
    assert "what the launch sets" in first
    assert second.startswith("Most likely, nothing is wrong")


def test_the_beta_of_the_log_counts_and_its_sign_is_not_sure() -> None:
    run = log(critic__score__mean=RISING, actor__kl_loss=LEFT, actor__kl_coef=-0.01)
    found = said(run, TrainingFacts("k3", "loss", 0.001, pulls=True, source="a.sh"), "verl")
    assert [(c.cause, c.certainty) for c in found.candidates] == [("negative_beta", "possible")]
    assert "a.sh has 0.001" in found.untold[0]


def test_a_spec_of_orch_is_a_script(tmp_path: Path) -> None:
    spec, history = tmp_path / "one.yaml", tmp_path / "history.jsonl"
    head = "defaults: [recipe: embedded, site: auto, _self_]\nname: one\nquestion: Does it?\n"
    model = 'model: {name: elder, path: "micro:elder", chat_template: none}\n'
    task = 'data: {name: sort, path: "micro:sort", reward: exact, max_prompt_tokens: 8}\n'
    kl = "{estimator: k1, placement: loss, beta: 0.3}"
    text = (
        f"{head}seeds: [0, 1]\n{model}{task}backend: micro\nstudies:\n  a: {{base: {{kl: {kl}}}}}\n"
    )
    spec.write_text(text, encoding="utf-8")
    rows = [{"_step": i, "reward": float(r), "loss": 0.0} for i, r in enumerate(RISING)]
    history.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = [str(history), "--script", str(spec), "--library", "trl", "--json"]
    done = CliRunner().invoke(command, words)
    assert not done.exception, done.exception
    assert json.loads(done.output)[0]["cause"] == "kl_without_effect"
    more = text.replace("a: {base", "b: {base: {kl: {estimator: none}}}\n  a: {base")
    spec.write_text(more, encoding="utf-8")
    again = CliRunner().invoke(command, words)
    assert "cells that differ" in str(again.exception)
