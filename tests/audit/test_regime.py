"""The verdict of a launch's regime, for each library, and what surrounds its KL term."""

import math

import pytest

from audit.scripts import (
    COEFFICIENT,
    IN_REWARD,
    ON_POLICY,
    OPENRLHF,
    SKYRL,
    TYPE,
    USE_LOSS,
    only,
)
from audit.scripts import (
    GRPO as VERL,
)
from orchestrator.audit.render import headline
from orchestrator.audit.summary import summary
from orchestrator.exact.surrogates import FAR_AHEAD, RARE, PolicyLoss, forces, weight_effect
from orchestrator.kl.estimators import Correction, EngineWeight
from orchestrator.kl.verdicts import verdict as laboratory
from orchestrator.settings import Kl, Placement

RLOO = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo"
SIZES = "data.train_batch_size={} actor_rollout_ref.actor.ppo_mini_batch_size={}"
N8 = "actor_rollout_ref.rollout.n=8"
BY_STD = "algorithm.norm_adv_by_std_in_grpo"
TOML = "[orchestrator]\nbatch_size = 8\n[trainer.loss]\nteacher_tau = 0.1\n"


@pytest.mark.parametrize(
    ("sizes", "on_policy"),
    [
        (SIZES.format(1024, 256), False),
        ("", False),
        (SIZES.format(256, 256), True),
        (SIZES.format(256, 256) + " actor_rollout_ref.actor.ppo_epochs=2", False),
        (SIZES.format(256, 256) + " trainer.v1.trainer_mode=separate_async", False),
    ],
)
def test_the_papers_fig_11_is_not_called_unbiased(sizes: str, on_policy: bool) -> None:
    finding = only(f"{RLOO} {IN_REWARD}=True algorithm.kl_ctrl.kl_coef=0.1 {sizes}")
    assert finding.regime.on_policy is on_policy
    assert ("unbiased" in headline(finding)) is on_policy
    wanted = "unbiased_reverse_kl" if on_policy else "surrogate_reverse_kl"
    assert (finding.verdict, finding.term_verdict) == (wanted, "unbiased_reverse_kl")


def test_the_number_off_policy_is_the_laboratorys() -> None:
    text = f"{RLOO} {IN_REWARD}=True {SIZES.format(1024, 256)}"
    finding = only(text, versions={"verl": "0.9.1 told"})
    kl = Kl(estimator="k1", placement="reward", beta=0.001)
    assert laboratory(kl, on_policy=False).summary in finding.measured
    assert "in the laboratory 0.89 × the reverse KL's gradient near" in finding.measured
    assert "rollout policy is one tenth nearer" in finding.measured
    assert "4 train steps for each batch of rollouts" in finding.why
    assert finding.confidence == "certain"


STEPS = "--rollout_batch_size 64 --train_batch_size {} --n_samples_per_prompt 1"
SKY = (
    "uv run -m {} trainer.algorithm.advantage_estimator=rloo trainer.algorithm.kl_estimator_type=k1"
)
SKY_SIZES = "trainer.train_batch_size=64 trainer.policy_mini_batch_size={}"


@pytest.mark.parametrize(
    ("text", "old", "expected"),
    [
        (f"{OPENRLHF} --use_kl_loss {STEPS.format(64)}", False, "zero_mean_noise"),
        (f"{OPENRLHF} --use_kl_loss {STEPS.format(16)}", True, "unlikelihood_of_old_samples"),
        (
            f"{OPENRLHF} --use_kl_loss {STEPS.format(64)} --async_train",
            True,
            "unlikelihood_of_old_samples",
        ),
        (
            f"{OPENRLHF} --use_kl_loss {STEPS.format(64)} --max_epochs 2 --kl_estimator k3",
            True,
            "k3_of_old_samples",
        ),
        (
            f"{SKY.format('skyrl.train.entrypoints.main_base')} {SKY_SIZES.format(64)}",
            False,
            "zero_mean_noise",
        ),
        (
            f"{SKY.format('skyrl.train.entrypoints.main_base')} {SKY_SIZES.format(16)}",
            True,
            "unlikelihood_of_old_samples",
        ),
        (
            f"{SKY.format('examples.train.fully_async.main_fully_async')} {SKY_SIZES.format(64)}",
            True,
            "unlikelihood_of_old_samples",
        ),
        (f"{VERL} {USE_LOSS}=True {TYPE}=kl", True, "unlikelihood_of_old_samples"),
        (f"{VERL} {USE_LOSS}=True {TYPE}=k3+", True, "k2_of_old_samples"),
    ],
)
def test_every_library_has_its_regime(text: str, old: bool, expected: str) -> None:
    finding = only(text)
    assert (finding.regime.on_policy, finding.verdict) == (not old, expected)
    assert ("off-policy" in headline(finding)) is old


@pytest.mark.parametrize(("level", "on_policy"), [("", False), ("max_async_level = 0\n", True)])
def test_prime_rl_samples_ahead(level: str, on_policy: bool) -> None:
    finding = only(level + TOML, "rl.toml", versions={"prime_rl": "0.5.0 said so"})
    assert finding.regime.on_policy is on_policy
    # Its own ratio weighs the term, so that it is the reverse KL of each token in either regime.
    assert finding.verdict == "token_reverse_kl"


def test_openrlhfs_unbiased_gradient_is_corrected_off_policy() -> None:
    dotted = OPENRLHF.replace("--pretrain", "--actor.model_name_or_path")
    finding = only(f"{dotted} --algo.kl.use_loss --algo.kl.unbiased_gradient --train.batch_size 8")
    assert (finding.regime.on_policy, finding.verdict) == (False, "token_reverse_kl")


def test_a_regime_that_is_not_known_gives_both_answers() -> None:
    finding = only(f"{RLOO} {IN_REWARD}=True data.train_batch_size=$(cat x)")
    assert (finding.confidence, finding.regime.on_policy) == ("assumed", None)
    assert (finding.verdict, finding.otherwise) == ("unbiased_reverse_kl", "surrogate_reverse_kl")
    assert "data.train_batch_size cannot be read here" in finding.assumes[-1]
    assert "Off-policy: surrogate_reverse_kl" in finding.assumes[-1]


def test_a_regime_does_not_matter_where_there_is_no_kl() -> None:
    text = f"{VERL} {IN_REWARD}=False data.train_batch_size=$(cat x)"
    finding = only(text, versions={"verl": "0.9.1 told"})
    assert (finding.verdict, finding.confidence) == ("no_kl", "certain")


def test_group_deviation_with_a_kl_in_the_reward_is_in_the_headline() -> None:
    finding = only(f"{VERL} {ON_POLICY} {N8} {IN_REWARD}=True")
    assert (finding.verdict, finding.problem) == ("rescaled_reverse_kl", True)
    assert "nbiased" not in headline(finding) + finding.measured
    assert "rescaled for each prompt" in headline(finding)
    assert any("at unit size whatever β" in each.text for each in finding.effects)
    plain = only(f"{VERL} {ON_POLICY} {N8} {IN_REWARD}=True {BY_STD}=False")
    assert (plain.verdict, headline(plain)) == (
        "unbiased_reverse_kl",
        "the reverse KL, unbiased",
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "through GSPO's mean ratio"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "through GMPO's mean ratio"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=cispo", "through CISPO"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gpg", "without a ratio"),
        ("algorithm.kl_ctrl.type=adaptive", "at a β that a controller moves"),
        ("actor_rollout_ref.actor.entropy_coeff=0.01", "with an entropy bonus of 0.01"),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            "each response weighted by 1 / its length",
        ),
        (
            "algorithm.rollout_correction.rollout_is=token",
            "with token-level truncated importance sampling (at most 2.0)",
        ),
    ],
)
def test_what_changes_the_objective_is_in_the_headline(flags: str, words: str) -> None:
    finding = only(f"{RLOO} {SIZES.format(64, 16)} {N8} {IN_REWARD}=True {flags}")
    assert words in headline(finding)


WEIGHTS = "algorithm.rollout_correction.rollout_is"
OFF = "trainer.algorithm.off_policy_correction"
TIS = f"{OFF}.tis_ratio_type"
MASKED = f"{OFF}.token_mask_is_threshold_low=0.5 {OFF}.token_mask_is_threshold_high=1.5"
IS = "algo.advantage.is_correction"
BY_TOKEN = f"--{IS}_level token"


@pytest.mark.parametrize(
    ("text", "weight", "estimator", "placement"),
    [
        (f"{VERL} {USE_LOSS}=True {WEIGHTS}=token", ("tis_token", 0, 2), "k3", "loss"),
        (
            f"{VERL} {IN_REWARD}=True {WEIGHTS}=sequence {WEIGHTS}_threshold=1.5",
            ("tis_sequence", 0, 1.5),
            "k1",
            "reward",
        ),
        (
            f"{VERL} {USE_LOSS}=True {WEIGHTS}=token {WEIGHTS}_threshold=0.5_5.0",
            ("mis_token", 0.5, 5),
            "k3",
            "loss",
        ),
        (
            f"{OPENRLHF} --algo.advantage.is_correction_enable",
            ("tis_token", 0.5, 5),
            "k1",
            "reward",
        ),
        (f"{OPENRLHF} {BY_TOKEN} --{IS}_mode clip", ("tis_token", 0.5, 5), "k1", "reward"),
        (f"{OPENRLHF} {BY_TOKEN} --{IS}_threshold 1.5", ("mis_token", 0, 1.5), "k1", "reward"),
        (f"{SKYRL} {TIS}=sequence", ("tis_sequence", 0, 5), "k3", "loss"),
        (f"{SKYRL} {TIS}=token {MASKED}", ("mis_token", 0.5, 1.5), "k3", "loss"),
        (f"{SKYRL} {MASKED}", ("reject_token", 0.5, 1.5), "k3", "loss"),
        (
            f"{SKYRL} {OFF}.sequence_mask_metric=product",
            ("reject_sequence", 0.5, 2),
            "k3",
            "loss",
        ),
        (f"{SKYRL} {OFF}.sequence_mask_metric=geometric", ("geometric", 0.99, 1.01), "k3", "loss"),
    ],
)
def test_a_correction_has_the_laboratorys_number_in_the_headline(
    text: str, weight: tuple[Correction, float, float], estimator: str, placement: Placement
) -> None:
    finding = only(text)
    effect = weight_effect(EngineWeight(*weight), estimator, placement)
    assert f"(β × {effect.beta:.3g} in the laboratory's example)" in headline(finding)
    assert any("the bounds cut none of them" in e.text for e in finding.effects) is not bool(
        effect.cut
    )


def test_a_correction_without_a_number_has_words_alone() -> None:
    masked = "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type"
    told = headline(only(f"{OPENRLHF} {masked} seq-mask-tis"))
    assert "masked responses" in told
    assert "×" not in told.partition("masked responses")[2].partition(", ")[0]
    outliers = f"{OFF}.outlier_token_is_threshold_high=9 {TIS}=token"
    assert "with masked responses (outlier tokens)," in headline(only(f"{SKYRL} {outliers}")) + ","


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (3.0, 3.0), (0.1, 0.1)])
def test_a_clip_has_its_number_in_the_headline_where_it_changes_beta(
    low: float, high: float
) -> None:
    clip = "actor_rollout_ref.actor.clip_ratio_low={} actor_rollout_ref.actor.clip_ratio_high={}"
    launch = f"{RLOO} {SIZES.format(64, 16)} {N8} {clip.format(low, high)}"
    plain = forces(FAR_AHEAD, PolicyLoss())
    clipped = forces(FAR_AHEAD, PolicyLoss("ppo_clip", low, high))
    for flag, words, factor in (
        (IN_REWARD, "through a clip", clipped.beta_factor / plain.beta_factor),
        (USE_LOSS, "against clipped rewards", plain.reward.pull / clipped.reward.pull),
    ):
        finding = only(f"{launch} {flag}=True")
        if high == 3.0:
            assert words not in headline(finding)
            assert any("of a lag: no effect" in each.text for each in finding.effects)
        elif high == 0.1:  # the clip turns the task's gradient round there
            assert f"{words} (" in headline(finding)
            assert "no pull of the task is left at a long one" in headline(finding)
        else:
            lags = f"no effect at a short lag, β × {factor:.3g} at a long one"
            assert f"{words} ({lags}: the launch does not say its lag)" in headline(finding)
            assert any("no effect at the laboratory's short lag" in e.text for e in finding.effects)


def test_numbers_are_of_the_launchs_advantage_and_ratio() -> None:
    """They were those of RLOO and of the token ratio, whatever the launch has."""
    in_loss = only(f"{VERL} {SIZES.format(64, 16)} {N8} {USE_LOSS}=True")
    assert "off-policy, advantage grpo" in in_loss.measured
    one = "actor_rollout_ref.rollout.n=1"
    alone = only(f"{VERL} {SIZES.format(64, 16)} {one} {USE_LOSS}=True")
    assert "advantage" not in alone.measured


def test_a_clip_does_nothing_on_policy() -> None:
    finding = only(f"{VERL} {ON_POLICY} {USE_LOSS}=True")
    assert "clip" not in headline(finding)
    assert not any("clip" in each.text for each in finding.effects)


def test_a_clamp_has_what_it_leaves_of_the_gradient_in_the_headline() -> None:
    """At a token of 2% that the reference gives 50%, k3 is 20: verl's bound cuts its pull."""
    told = headline(only(f"{VERL} {ON_POLICY} {USE_LOSS}=True {TYPE}=k3"))
    policy = RARE[0]
    p = 1 / (1 + math.exp(-policy.a))
    # What is left is the other token's: (1 - p - 1/2) of the forward KL's (1/2 - p).
    only_other = -(1 - p - 0.5) * p / ((0.5 - p) * -1)
    assert f"held within ±10 a token (× {only_other:.2g} where it has 2%" in told
    for harmless in ("k2", "k3+"):
        assert "held within" not in headline(
            only(f"{VERL} {ON_POLICY} {USE_LOSS}=True {TYPE}={harmless}")
        )
    finding = only(f"{VERL} {ON_POLICY} {USE_LOSS}=True {TYPE}=k3+")
    assert any("no effect at 0.08 nats" in each.text for each in finding.effects)


def test_a_group_deviation_and_gspo_have_their_numbers_in_the_headline() -> None:
    finding = only(f"{VERL} {ON_POLICY} {N8} {IN_REWARD}=True")
    assert (
        "(β × 4.67 at 50% solved, × 167 at 10% solved; with a filter of equal groups × 0.867 and × "
        "0.509)" in headline(finding)
    )
    told = dict(summary(finding))["It does"]
    assert "weighs differs: in groups whose task rewards are equal" in told
    assert "weighs little" not in told, "at β 0.001 it counts × 167 where one in ten solves"
    mode = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    told = headline(only(f"{RLOO} {SIZES.format(64, 16)} {N8} {IN_REWARD}=True {mode}"))
    factor = forces(FAR_AHEAD, PolicyLoss("gspo", 0.2, 0.2)).beta_factor
    assert f"(β × {factor:.3g} in the laboratory's example of a lag)" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{VERL} {IN_REWARD}=True algorithm.adv_estimator=gae algorithm.lam=0.95", "lam 0.95"),
        (f"{OPENRLHF} --lambd 0.95", "--lambd 0.95"),
        (f"{OPENRLHF} --advantage_estimator rloo --n_samples_per_prompt 2 --lambd 0.95", ""),
    ],
)
def test_a_discount_is_in_the_headline_where_it_is_read(text: str, words: str) -> None:
    told = headline(only(text))
    assert words in told
    assert ("discounted" in told) is bool(words)


def test_a_number_of_the_token_ratio_is_not_told_for_another_ratio() -> None:
    mode = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    finding = only(f"{RLOO} {SIZES.format(64, 16)} {N8} {IN_REWARD}=True {mode}")
    assert finding.verdict == "surrogate_reverse_kl"
    assert "sequence mean ratio" in finding.measured
    token = only(f"{RLOO} {SIZES.format(64, 16)} {N8} {IN_REWARD}=True")
    assert finding.bias is not None
    assert finding.bias != token.bias


@pytest.mark.parametrize(
    ("text", "at_most", "words"),
    [
        (f"{RLOO} {N8} {IN_REWARD}=True", 0.001, "against a task reward of 1"),
        # σ of 8 rewards of 0 and 1 is at most 0.5345, and the mean keeps 7/8 of the task reward.
        (
            f"{VERL} {N8} {USE_LOSS}=True {COEFFICIENT}=0.01",
            0.01 * 0.5345 / 0.875,
            "σ of the group",
        ),
        (f"{OPENRLHF} --init_kl_coef 0.1 --advantage_estimator rloo", 0.1, "a nat of the response"),
        (f"{SKYRL} trainer.algorithm.kl_loss_coef=0.02", None, "the responses' lengths"),
    ],
)
def test_effective_beta(text: str, at_most: float | None, words: str) -> None:
    (beta,) = only(text).effective_beta
    assert words in beta.text
    assert beta.at_most == (at_most and pytest.approx(at_most, rel=1e-3))


def test_the_largest_deviation_of_rewards_of_0_and_1() -> None:
    """The bound of effective β, against every group of eight rewards."""
    from statistics import mean, stdev

    (beta,) = only(f"{VERL} {N8} {USE_LOSS}=True {COEFFICIENT}=1").effective_beta
    groups = [[1.0] * k + [0.0] * (8 - k) for k in range(1, 8)]
    deviations = [stdev(group) for group in groups]
    assert all(0 < mean(group) < 1 for group in groups)
    assert beta.at_most == pytest.approx(max(deviations) / (1 - 1 / 8))


def test_a_key_that_cannot_be_read_is_assumed() -> None:
    finding = only(f"{VERL} {N8} {IN_REWARD}=True {BY_STD}=$(cat x)")
    assert finding.confidence == "assumed"
    assert any(BY_STD in each for each in finding.assumes)


def test_a_group_whose_size_is_not_known_is_assumed() -> None:
    size = "actor_rollout_ref.rollout.n=$(cat x)"
    finding = only(f"{VERL} {ON_POLICY} {IN_REWARD}=True {size}")
    assert (finding.verdict, finding.confidence) == ("rescaled_reverse_kl", "assumed")
    assert any("rollout.n is above 1" in each for each in finding.assumes)


def test_the_fix_never_moves_to_what_is_criticised() -> None:
    """GRPO divides by the group's deviation: k1 in the reward there would be rescaled."""
    finding = only(f"{VERL} {N8} {USE_LOSS}=True")
    assert [each.words for each in finding.changes] == ["k2 in the loss"]
    rescaled = only(f"{VERL} {N8} {IN_REWARD}=True {ON_POLICY}")
    (change,) = rescaled.changes
    assert [edit.text for edit in change.edits] == [f"{BY_STD}=False"]
    assert "choose the learning rate anew" in change.also


@pytest.mark.parametrize(
    ("library", "text", "with_table", "without"),
    [
        ("verl", f"{VERL} {IN_REWARD}=True {ON_POLICY}", "0.7.0", "0.7.9"),
        (
            "verl",
            f"{VERL} --config-name ppo_megatron_trainer {IN_REWARD}=True {ON_POLICY}",
            "0.9.0",
            "0.9.1",
        ),
    ],
)
def test_certain_needs_the_release_s_own_keys(
    library: str, text: str, with_table: str, without: str
) -> None:
    assert only(text, versions={library: f"{with_table} pinned"}).confidence == "certain"
    finding = only(text, versions={library: f"{without} pinned"})
    assert finding.confidence == "assumed"
    assert any("orch has a table of" in each for each in finding.assumes)
    wrong = only(
        f"{text} algorithm.use_kl_in_rewad=True", versions={library: f"{with_table} pinned"}
    )
    assert wrong.key_findings[0].consequence == "would not start"


def test_the_group_deviation_has_the_laboratorys_number() -> None:
    from orchestrator.kl.groups import group_std

    text = f"{VERL} {IN_REWARD}=True algorithm.adv_estimator=grpo {N8} {ON_POLICY}"
    told = " ".join(each.text for each in only(text).effects)
    exact = group_std(0.1, 8)
    assert f"× {exact.over_all(0.001):.3g} at 10% solved" in told
    assert f"and × {exact.beta_in_reward:.3g}; at 10% the KL is alone" in told
    assert f"alone in {exact.equal:.0%} of groups" in told
    gspo = f"{RLOO} {IN_REWARD}=True actor_rollout_ref.actor.policy_loss.loss_mode=gspo {N8}"
    assert any("with the token ratio ×" in each.text for each in only(gspo).effects)
