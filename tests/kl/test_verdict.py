"""Verdicts say in words what the laboratory derives."""

from itertools import product
from typing import Any, get_args

import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import choices, names
from orchestrator.exact.derivation import as_text, derive
from orchestrator.exact.laboratory import LabSetting, estimates
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.kl.library_semantics import Dialect
from orchestrator.kl.paper import OBSERVATIONS
from orchestrator.kl.table import Case, advised, best, judged, row_of, stored_rows
from orchestrator.kl.verdicts import GradientVerdict, percent, verdict, verdict_of
from orchestrator.settings import (
    AdvantageEstimator,
    BackendRef,
    Clip,
    Kl,
    Placement,
    RatioLevel,
    Settings,
)
from orchestrator.spec.rehearse import verdict_on
from tests import golden


def of(label: str, *, on_policy: bool = True, **rest: Any) -> GradientVerdict:
    estimator: Any
    estimator, place = label.rsplit(".", 1)
    placement: Any = {"both": "reward_and_loss"}.get(place, place)
    kl = Kl(estimator=estimator, placement=placement, beta=0.1)
    return verdict(kl, on_policy=on_policy, **rest)


def test_the_stored_table_is_what_the_laboratory_derives() -> None:
    derived, stored = list(map(row_of, derive())), stored_rows()
    assert len(derived) == len(stored)
    for new, old in zip(derived, stored, strict=True):
        assert (new.label, new.on_policy, new.ratio, new.reward_kl_of, new.terms) == (
            old.label,
            old.on_policy,
            old.ratio,
            old.reward_kl_of,
            old.terms,
        )
        assert new.objective == old.objective
        for at in ("near", "far"):
            assert getattr(old, at) == pytest.approx(getattr(new, at), rel=1e-5, abs=1e-7), old
        assert old.noise_near == pytest.approx(new.noise_near, rel=2e-3, abs=1e-9), old


def test_the_stored_table_is_complete_and_every_row_is_named() -> None:
    """The geometric mean of ratios gives no objective with a name."""
    asked = {
        (e, p, on)
        for e in choices()
        if e != "none"
        for p in get_args(Placement)
        for on in (True, False)
    }
    assert asked == {(row.estimator, row.placement, row.on_policy) for row in stored_rows()}
    unknown = {row.ratio for row in stored_rows() if row.objective is ObjectiveKind.UNKNOWN}
    assert unknown == {"sequence_mean"}
    assert as_text([{"estimator": "k1"}] * 3).count("\n") == 4


def test_near_and_far_are_as_far_as_the_words_say() -> None:
    from orchestrator.exact.derivation import FAR, NEAR, NUM_TOKENS

    kls = [estimates(LabSetting(*each[:2], NUM_TOKENS))["k1"][0] for each in (NEAR, FAR)]
    assert kls == [pytest.approx(0.08, abs=0.005), pytest.approx(18, abs=0.5)]


@pytest.mark.parametrize(
    ("label", "objective", "unbiased", "behaviour"),
    [
        ("k1.reward", "sequence_reverse_kl", True, "stable"),
        ("k1.loss", "zero", False, "unstable"),
        ("k3.reward", "mixture", False, "collapse"),
        ("k3.loss", "token_forward_kl", False, "stable"),
        ("k1.both", "sequence_reverse_kl", True, "stable"),
        ("k3.both", "sequence_reverse_kl", True, "stable"),
    ],
)
def test_table_1_of_the_paper_and_its_section_4_3(
    label: str, objective: str, unbiased: bool, behaviour: str
) -> None:
    found = of(label)
    assert found.objective == objective
    assert (found.bias.near == found.bias.far == 0) == unbiased
    assert found.paper.behaviour == behaviour
    assert "§4" in found.paper.where
    assert "paper eq." in found.equation


def test_no_plain_configuration_is_unbiased_off_policy() -> None:
    """Paper §3.2, last paragraph: because of the token-level ratio."""
    for label in ("k1.reward", "k1.loss", "k3.reward", "k3.loss", "k1.both", "k3.both"):
        assert of(label, on_policy=False).bias.near > 0
    notes = " ".join(of("k1.reward", on_policy=False, clip=Clip()).notes)
    assert "token-level ratio biases a KL in the reward" in notes
    assert "[0.8, 1.2]" in notes
    assert "computed once per batch" in notes
    paper = of("k1.reward", on_policy=False, reward_kl_of="policy")
    assert (paper.terms, paper.bias.near < 0.02) == (((1, "ppo_k1"),), True)
    assert "computed once per batch" not in " ".join(paper.notes)


def test_k1_in_loss_off_policy_is_not_zero_but_unlikelihood() -> None:
    found = of("k1.loss", on_policy=False)
    assert found.terms == ((1, "sampled_k1"),)
    assert found.paper.behaviour == "collapse"
    assert "pushes away from the rollout policy" in found.plain


@pytest.mark.parametrize("label", ["rho_k1.loss", "sg_rho_k2.loss", "rho_k3.loss"])
def test_the_blogs_weighted_losses_are_token_level_until_the_ratio_is_the_sequences(
    label: str,
) -> None:
    assert of(label).objective is ObjectiveKind.TOKEN_REVERSE_KL
    assert of(label, on_policy=False).terms == ((1, "token_reverse_kl@rollout"),)
    sequence = of(label, on_policy=False, ratio="sequence")
    wanted = "token" if label == "sg_rho_k2.loss" else "sequence"
    assert sequence.objective == f"{wanted}_reverse_kl"


def test_advice_is_never_worse_by_the_numbers_that_are_printed() -> None:
    """In the stated order: bias near, then far, then noise; and it names what decides."""
    for row in stored_rows():
        kl = Kl(estimator=row.estimator, placement=row.placement, beta=1.0)
        how: dict[str, Any] = {"ratio": row.ratio, "reward_kl_of": row.reward_kl_of}
        advice = verdict(kl, on_policy=row.on_policy, **how).advice
        asked = judged(row.estimator, row.placement, Case(row.on_policy, **how))
        over = asked.over_models is not None
        best = advised(asked.case, over_models=over)[0][0]
        mine, least = (each.order(over_models=over) for each in (asked, best))
        if not advice.use:
            assert mine[:2] <= least[:2], row.label
            continue
        assert least < mine
        assert advice.use[0] == best.row.label
        assert least[:2] < mine[:2], "what differs in noise alone is kept"
        assert f"{row.label}" not in advice.use


def test_advice_among_what_is_offered_never_leads_to_noise() -> None:
    names = ("k1", "abs", "k3", "k2")  # abs is near the reverse KL far away, and ten times it near
    offered: list[tuple[str, Placement]] = [(name, "loss") for name in names]
    found = best(offered, Case())
    assert found is not None
    assert found.row.label == "k2.loss"
    assert percent(found.row.far.bias) == "33%"
    assert best([("k1", "loss"), ("k3", "reward"), ("no such", "loss")], Case()) is None


def test_every_observation_is_reached_by_some_cell() -> None:
    for label, regime in OBSERVATIONS:
        rest: dict[str, Any] = {"on_policy": regime == "on_policy", "regimes": (regime,)}
        found = verdict(Kl(estimator="none"), **rest) if label == "none" else of(label, **rest)
        assert found.paper.text == OBSERVATIONS[label, regime].text
        assert found.paper.under == ("dr_grpo" if regime == "async" else "")


def test_the_papers_training_is_named_with_its_advantage() -> None:
    """It was cited as it is for an advantage that the paper did not train with."""
    assert str(of("k3.both").paper) == "stable (§4.3, Fig. 9)"
    assert str(of("k3.both", advantage="grpo").paper) == "stable (under rloo, §4.3, Fig. 9)"
    stale = {"on_policy": False, "regimes": ("async",)}
    assert str(of("k3.loss", **stale).paper) == "stable (under dr_grpo, §4.2, Fig. 7-8)"
    assert str(of("k3.loss", advantage="dr_grpo", **stale).paper) == "stable (§4.2, Fig. 7-8)"
    assert str(of("k2.loss", advantage="grpo").paper) == "not studied"


def test_advice_stands_on_no_cancellation_of_one_model() -> None:
    """k1 in the reward off-policy is 1.6 % off far away in the laboratory, where the lag of its KL
    and the token ratio cancel (-12 % and +15 %), and 15 % off in the median of random models."""
    k1 = judged("k1", "reward", Case(on_policy=False))
    assert percent(k1.row.far.bias) == "1.6%"
    assert k1.over_models is not None
    assert 0.1 < k1.over_models[1] < 0.2
    assert advised(Case(on_policy=False))[0][0].row.label == "rb.both"
    said = of("k2.loss", on_policy=False).advice
    assert said.over_models
    assert said.forms[0].near == pytest.approx(0.026, abs=1e-3)


def test_a_sum_of_unequal_parts_is_not_advised() -> None:
    for size in (2, 8):
        case = Case(on_policy=False, advantage="dr_grpo", group_size=size)
        assert not any(each.is_mixed for each, _ in advised(case))
    last = of("k3.both", advantage="dr_grpo", group_size=2).advice.forms[-1]
    assert (last.term, last.near, last.needs) == ("k3.both", 0, "the advantage rloo")


def test_no_advice_keeps_a_term_that_is_bad_without_the_deviation_too() -> None:
    """`k3 reward --advantage grpo` was advised to go on under rloo, where it collapses."""
    said = of("k3.reward", advantage="grpo", group_size=8).advice.text
    assert said.startswith("Use the advantage rloo with rb in both")
    kept = of("k1.reward", advantage="grpo", group_size=8).advice.text
    assert kept.startswith("Use the advantage rloo: then β is one number")


def test_the_policys_own_kl_is_advised_only_where_it_is_better() -> None:
    """It was: `off by 57% ... With the policy's own KL it is off by 57%`."""
    own = "--reward-kl-of policy"
    assert own not in [f.needs for f in of("top4_forward.both", on_policy=False).advice.forms]
    last = of("k1.reward", on_policy=False, ratio="sequence").advice.forms[-1]
    assert (last.term, last.near, last.far, last.needs) == ("k1.reward", 0, 0, own)


def test_straight_through_in_the_reward_is_seen_as_its_value() -> None:
    assert str(of("k3+.reward").paper) == "collapse (as k3, §4.1, Fig. 3)"
    assert of("k3+.loss").paper.behaviour == "not studied"
    assert str(of("rho_k1.reward").paper).startswith("stable (as k1, ")
    assert of("rho_k1.reward", on_policy=False).paper.behaviour == "not studied"


@pytest.mark.parametrize(
    ("advantage", "label", "words"),
    [
        ("reinforce", "k1.reward", "no baseline"),
        ("dr_grpo", "k1.reward", "1 - 1/4 = 0.75"),
        ("dr_grpo", "k3.loss", "not a KL in the loss"),
        ("grpo", "k1.reward", "whatever β"),
        ("grpo", "k3.loss", "units of the group's deviation"),
        ("grpo", "k1.reward", "1 / length"),
    ],
)
def test_what_the_advantage_does_is_said(advantage: Any, label: str, words: str) -> None:
    said = of(label, advantage=advantage, group_size=4)
    assert words in " ".join(said.notes)
    assert not of(label, advantage="rloo", group_size=4).notes


@pytest.mark.parametrize("estimator", names())
def test_words_and_advice_are_those_of_the_row_under_every_option(estimator: str) -> None:
    """A headline says unbiased where the row is, and advice has less bias by its own numbers."""
    for placement, on_policy, advantage, ratio, whose in product(
        get_args(Placement),
        (True, False),
        get_args(AdvantageEstimator),
        get_args(RatioLevel),
        ("rollout", "policy"),
    ):
        case = Case(on_policy, ratio, whose, advantage, 8)
        try:
            term = judged(estimator, placement, case)
        except LaboratoryError:
            continue
        said = verdict(Kl(estimator=estimator, placement=placement, beta=1.0), **case._asdict())
        headline, by_prompt = said.summary.partition(". Paper")[0], term.by_prompt
        assert ("unbiased" in headline) == (term.row.is_unbiased and not by_prompt), headline
        assert ("each prompt" in headline) == (by_prompt and not term.row.is_noise), headline
        assert (said.bias.near is None) == by_prompt
        assert ("Pulls as the true KL" in said.plain) == term.row.is_unbiased, said.plain
        own, *others = said.advice.forms
        named = [each for each in others if each.term in said.advice.use]
        if not by_prompt:
            assert term.row.label not in said.advice.use
            assert {each.term for each in named} == set(said.advice.use)
            assert all(round(each.near, 2) <= round(own.near, 2) for each in named)


def test_beta_zero_is_no_kl_term() -> None:
    found = verdict(Kl(estimator="k3", placement="loss", beta=0.0), on_policy=True)
    assert found.objective is ObjectiveKind.NONE
    assert "β = 0" in found.summary


def settings(minibatches: int = 1, staleness: int = 0, **kl: Any) -> Settings:
    changes = {
        "advantage.estimator": "dr_grpo",
        "kl": kl or {"estimator": "k1", "placement": "loss", "beta": 0.1},
        "batch": {"num_prompts": 8, "num_minibatches": minibatches},
        "num_train_steps": 8,
        "max_staleness_steps": staleness,
    }
    return golden.cell_of("micro", "1", changes).settings


def test_a_cell_is_on_policy_with_one_minibatch_and_no_staleness() -> None:
    assert verdict_of(settings()).objective is ObjectiveKind.ZERO
    minibatches, stale = verdict_of(settings(minibatches=4)), verdict_of(settings(staleness=10))
    assert minibatches.objective is stale.objective is ObjectiveKind.SURROGATE
    assert (minibatches.paper.behaviour, stale.paper.behaviour) == ("collapse", "unstable")
    both = verdict_of(settings(minibatches=4, staleness=10))
    assert both.paper.where == "§4.1, Fig. 2 centre; §4.2, Fig. 7"
    assert verdict_of(settings(estimator="none")).objective is ObjectiveKind.NONE
    reward = verdict_of(settings(estimator="k1", placement="reward", beta=0.1))
    assert "1 - 1/5 = 0.8" in reward.summary


def test_whose_kl_the_reward_has_is_a_matter_of_the_library() -> None:
    reward = {"estimator": "k1", "placement": "reward", "beta": 0.1}
    stale, both = settings(staleness=4, **reward), settings(minibatches=2, staleness=4, **reward)
    current = Dialect(kl_reward_policy="batch_start")
    expected = verdict(
        stale.kl,
        on_policy=False,
        advantage="dr_grpo",
        group_size=5,
        clip=stale.loss.clip,
        reward_kl_of="policy",
        regimes=("async",),
    )
    assert verdict_of(stale, current) == expected != verdict_of(stale)
    assert not any("lags by the staleness" in note for note in expected.notes)
    assert verdict_of(both, current) == verdict_of(both), "later minibatches are of another policy"
    uncorrected = Dialect(kl_reward_policy="batch_start", ratio_to="batch_start")
    assert verdict_of(stale, uncorrected) == verdict_of(stale)


@pytest.mark.parametrize(
    ("library", "of"),
    [
        ("prime_rl", "policy"),
        ("skyrl", "policy"),
        ("verl", "rollout"),
        ("openrlhf", "rollout"),
    ],
)
def test_a_backend_says_whose_kl_its_reward_has(library: str, of: str) -> None:
    cell = settings(staleness=4, estimator="k1", placement="reward", beta=0.1)
    asked = cell.model_copy(update={"backend": BackendRef(name=library)})
    lags = any("lags by the staleness" in note for note in verdict_on(asked).notes)
    assert lags == (of == "rollout")
    unknown = asked.model_copy(update={"backend": BackendRef(name=library, version="77")})
    assert verdict_on(unknown) == verdict_of(cell)
