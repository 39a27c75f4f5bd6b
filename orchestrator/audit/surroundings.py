"""Compute the effects of the rest of a loss on its KL term, in words, and the effective β.

A library's reader gives the facts (orchestrator.library.launches.Surroundings). This module has the
mathematics for all libraries.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE
from orchestrator.kl.estimators import UNCLAMPED, Clamp, EngineWeight
from orchestrator.kl.groups import group_std
from orchestrator.library.launches import InLoss, InReward, LaunchReading, Surroundings
from orchestrator.settings import Placement

NumberWords = tuple[str, str]
"""A number of the laboratory in two texts: one for the effect, a short one for the headline."""
LEAST_CHANGE = 0.0005
"""Minimum distance of a factor from 1. A factor nearer to 1 counts as no effect."""
MOST_ROLLOUTS = 256
"""Largest group size for which factors are computed."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect on the KL term.

    `headline`: its words in the headline; empty if the effect does not change the objective.
    `plain`: the same for people who do not know the laboratory; empty: the headline's words do.
    """

    text: str
    headline: str = ""
    plain: str = ""


@dataclass(frozen=True, slots=True)
class EffectiveBeta:
    """The weight of the KL's gradient over the weight of the raw task reward's gradient.

    `at_most`: its upper bound for task rewards of 0 and 1, or its exact value if it does not depend
    on the rewards. None if the launch does not determine it.
    """

    placement: str
    beta: float
    at_most: float | None
    text: str


def effects(reading: LaunchReading) -> tuple[Effect, ...]:
    """Return the effects of the rest of the loss on the KL terms that have a gradient."""
    around = reading.surroundings
    if around is None:
        return ()
    in_reward = bool(reading.in_reward.active)
    in_loss = bool(reading.in_loss.active) and not reading.no_gradient
    effects_ = []
    old = reading.regime.on_policy is not True
    terms = (reading.in_reward if in_reward else None, reading.in_loss if in_loss else None)
    if around.rejected:
        leaves = f"rejected {around.rejected} leave the loss"
        kept = "their reward stays in the mean of their group"
        effects_.append(
            Effect(
                f"{leaves}, and with it the KL ({around.rejected_because}); {kept}, the KL in the "
                "reward included: the objective is of what is kept",
                f"of the {around.rejected} that are kept",
                f"{leaves}, and {kept}",
            )
        )
    if in_reward or in_loss:
        effects_ += [
            *_division(reading, around, in_reward=in_reward, in_loss=in_loss),
            *_ratio(around, in_reward=in_reward, old=old),
            *_correction(around, *terms),
            *(_clip(around, *terms) if old else ()),
            *_lengths(around, in_loss=in_loss),
            *_discount(around, in_reward=in_reward),
            *_controller(around),
            *_moving(around),
            *_clamp(around, reading),
        ]
    if around.entropy:
        sign = "bonus" if around.entropy > 0 else "penalty"
        text = f"the loss has an entropy {sign} with the coefficient {abs(around.entropy):g}"
        effects_.append(Effect(text, f"with an entropy {sign} of {abs(around.entropy):g}"))
    effects_ += [Effect(text) for text in around.notes]
    return tuple(effects_)


@cache
def by_deviation(group_size: int) -> tuple[str, str]:
    """Return the factor on β of a KL in the loss beside rewards divided by their deviation.

    The result is a text for the effect and a short text for the headline.
    """
    parts, factors = [], []
    for solved in (0.5, 0.1):
        exact = group_std(solved, group_size)
        parts.append(f"× {exact.beta_in_loss:.3g} where {solved:.0%} of rollouts solve the prompt")
        factors.append(f"× {exact.beta_in_loss:.3g} at {solved:.0%} solved")
    alone = f"; at 10% the KL is alone in {exact.equal:.0%} of groups"
    text = f"exactly, to first order in β, in groups of {group_size}: β "
    return f"{text}{' and '.join(parts)}{alone}", f"β {', '.join(factors)}"


@cache
def by_deviation_in_reward(group_size: int, beta: float) -> tuple[str, str]:
    """Return the factors on β of a KL in the reward that is divided with its group's rewards.

    They are over all groups, and over those that a filter of equal groups leaves.
    """
    half, tenth = (group_std(solved, group_size) for solved in (0.5, 0.1))
    filtered = f"× {half.beta_in_reward:.3g} and × {tenth.beta_in_reward:.3g}"
    short = (
        f"β × {half.over_all(beta):.3g} at 50% solved, × {tenth.over_all(beta):.3g} at 10% solved; "
        f"with a filter of equal groups {filtered}"
    )
    text = (
        f"in groups of {group_size}, for a normal KL of deviation 1 that does not depend on "
        f"success: {short}; at 10% the KL is alone in {tenth.equal:.0%} of groups"
    )
    return text, short


@cache
def by_mean_ratio(low: float, high: float) -> tuple[str, str]:
    """Return the factor on β under GSPO's clipped mean ratio, in the laboratory's example of a lag.

    The result is a text for the effect and a short text for the headline.
    """
    from orchestrator.exact.surrogates import FAR_AHEAD, PolicyLoss, forces

    factor = forces(FAR_AHEAD, PolicyLoss("gspo", low, high)).beta_factor
    token = forces(FAR_AHEAD, PolicyLoss()).beta_factor
    where = "in the laboratory's example of a lag"
    text = f"{where}: β × {factor:.3g}, with the token ratio × {token:.3g}"
    return text, f"β × {factor:.3g} {where}"


@cache
def by_weight(
    weight: EngineWeight, estimator: str, placement: Placement, *, corrects_kl: bool
) -> tuple[str, str]:
    """Return the factor on β under an importance weight that corrects the inference engine.

    The result is a text for the effect and a short text for the headline. Both are empty if the
    laboratory has no number.
    """
    from orchestrator.exact.surrogates import weight_effect

    if estimator not in TABLE:
        return "", ""
    try:
        effect = weight_effect(weight, estimator, placement, corrects_kl=corrects_kl)
    except LaboratoryError:
        return "", ""
    unit = "tokens" if weight.kind.endswith("token") else "responses"
    cut = f"{effect.cut:.2g} of them" if effect.cut else "none of them"
    text = (
        f"; in the laboratory's example of a mismatch: β × {effect.beta:.3g} of what it is without "
        f"it, to first order in β (the weights of {unit} are {effect.smallest:.2g} to "
        f"{effect.largest:.2g} there, and the bounds cut {cut})"
    )
    return text, f"β × {effect.beta:.3g} in the laboratory's example"


@cache
def by_clip(
    kind: str, clip: tuple[float, float], estimator: str, *, in_reward: bool
) -> NumberWords:
    """Return the factor on β next to a clipped policy loss, at a short and at a long lag."""
    from orchestrator.exact.surrogates import (  # NumPy
        FAR_AHEAD,
        NEAR_BEHIND,
        PolicyLoss,
        forces,
    )

    placement: Placement = "reward" if in_reward else "loss"
    factors: list[float | None] = []
    for who in (NEAR_BEHIND, FAR_AHEAD):
        with_it, without = (
            forces(who, how, estimator, placement)
            for how in (PolicyLoss(kind, *clip), PolicyLoss())
        )
        nothing = min(with_it.reward.pull, without.reward.pull) <= 0 or without.kl.pull == 0
        factors.append(None if nothing else with_it.beta_factor / without.beta_factor)
    if not any(is_changed(each) for each in factors):
        return "; in the laboratory's examples of a lag: no effect", ""
    short, long = (_times(each) for each in factors)
    text = f"; exactly, to first order in β: {short} at the laboratory's short lag, {long} at its"
    text += " long one; the launch does not say how far its policy moves in a batch"
    return text, f" ({short} at a short lag, {long} at a long one: the launch does not say its lag)"


@cache
def by_clamp(clamp: Clamp, estimator: str, placement: Placement, *, old: bool) -> NumberWords:
    """Return the share of a KL's gradient that remains if each token's KL is clamped."""
    from orchestrator.exact.surrogates import clamp_effect  # NumPy

    effect = clamp_effect(clamp, estimator, placement, old=old)
    places = {
        "0.08 nats from the reference": effect.near,
        "18 nats from it": effect.far,
        "a token of 2% that the reference gives 50%": effect.rare,
    }
    none = " and ".join(where for where, fraction in places.items() if not is_changed(fraction))
    parts = [f"no effect at {none}"] if none else []
    changed = {where: fraction for where, fraction in places.items() if is_changed(fraction)}
    parts += [f"× {fraction:.2g} at {where}" for where, fraction in changed.items()]
    short = (
        f"× {effect.rare:.2g} where it has 2% and the reference 50%"
        if is_changed(effect.rare)
        else ""
    )
    return f"; of its expected gradient, exactly: {', '.join(parts)}", short


def is_changed(factor: float | None) -> bool:
    """Return True if a factor differs from 1 by LEAST_CHANGE or more, or is None."""
    return factor is None or abs(factor - 1) >= LEAST_CHANGE


def _times(factor: float | None) -> str:
    if factor is None:
        return "no pull of the task is left"
    return f"β × {factor:.3g}" if is_changed(factor) else "no effect"


def estimator_name(term: InReward | InLoss) -> str:
    """Return the name of a term's estimator in orch's table: `k3`, `k3+`, `sg_rho_k2`."""
    if isinstance(term, InLoss) and term.weighted:
        return "sg_rho_k2"
    if isinstance(term, InLoss) and term.straight_through:
        return f"{term.estimator}+"
    return str(term.estimator)


def is_rescaled(reading: LaunchReading) -> bool:
    """Return True if a KL in the reward is divided by the standard deviation of its group."""
    around = reading.surroundings
    if around is None:
        return False
    divided = around.advantage_divided_by == "group_std" and around.division_includes_kl
    return divided and bool(reading.in_reward.active)


def _division(
    reading: LaunchReading, around: Surroundings, *, in_reward: bool, in_loss: bool
) -> Iterator[Effect]:
    size, beta = reading.group_size, reading.in_reward.beta

    def exactly(*, reward: bool) -> tuple[str, str]:
        if by != "group_std" or size is None or not 1 < size <= MOST_ROLLOUTS:
            return "", ""
        if reward and not beta:
            return "", ""
        text, short = (
            by_deviation_in_reward(size, abs(beta)) if reward and beta else by_deviation(size)
        )
        return f"; {text}", f" ({short})"

    by, because = around.advantage_divided_by, _because(around.divided_because)
    deviation = "the standard deviation of its group" if by == "group_std" else "that of the batch"
    if by not in ("group_std", "batch_std"):
        return
    if in_reward and around.division_includes_kl and by == "group_std":
        number, short = exactly(reward=True)
        yield Effect(
            f"the advantage, the KL included, is divided by {deviation}{because}: each prompt has "
            "a β of its own, and where all task rewards of a group are equal, the KL is left "
            f"alone, at unit size whatever β is{number}",
            f"rescaled for each prompt by its group's standard deviation{short}",
            "rewards and KL are divided by each group's standard deviation",
        )
    elif in_reward and around.division_includes_kl:
        yield Effect(
            f"the advantage, the KL included, is divided by the standard deviation of the batch"
            f"{because}: one factor for both, so β keeps its meaning"
        )
    if in_loss or (in_reward and not around.division_includes_kl):
        place = "in the loss" if in_loss else "in the reward, which is subtracted afterwards"
        words = "each group's" if by == "group_std" else "the batch's"
        number, short = exactly(reward=False)
        yield Effect(
            f"the task's advantage is divided by {deviation}{because}, and the KL {place} is not: "
            f"β counts in units of that deviation{number}",
            f"against rewards divided by {words} standard deviation{short}",
            f"the task's reward is divided by {words} standard deviation, and the KL is not",
        )


def _clip(
    around: Surroundings, in_reward: InReward | None, in_loss: InLoss | None
) -> Iterator[Effect]:
    """Yield the off-policy effects of clipping the token ratio, one for each KL term."""
    if around.clip is None or around.ratio != "token" or around.loss_mode not in ("", "CISPO"):
        return
    low, high = around.clip
    kind = "cispo" if around.loss_mode else "ppo"
    span = f"[{1 - low:g}, {1 + high:g}]"
    if in_reward is not None and estimator_name(in_reward) in TABLE:
        number, short = by_clip(kind, around.clip, estimator_name(in_reward), in_reward=True)
        words = "is weighed by that bound" if around.loss_mode else "gets no gradient"
        yield Effect(
            f"a token whose ratio leaves {span} {words}, from the KL in the reward too, where the "
            f"clip cuts{number}",
            f"through a clip{short}" if short else "",
            "the ratio's clip cuts the KL too" if short else "",
        )
    if in_loss is not None:
        number, short = by_clip(kind, around.clip, "k2", in_reward=False)
        yield Effect(
            f"the clip {span} cuts the task's gradient and not that of the KL in the loss{number}",
            f"against clipped rewards{short}" if short else "",
            "the ratio's clip cuts the task's gradient, and not the KL's" if short else "",
        )


def _clamp(around: Surroundings, reading: LaunchReading) -> Iterator[Effect]:
    """Yield the effect of clamping each token's KL, one for each KL term."""
    if around.clamp == UNCLAMPED:
        return
    bounds = [
        f"{what} within ±{bound:g}"
        for what, bound in zip(("the log-ratio", "the KL"), around.clamp, strict=True)
        if bound is not None
    ]
    clamp = around.clamp.value or around.clamp.log_ratio
    old = reading.regime.on_policy is not True
    for placement, term in _placed(reading):
        name = estimator_name(term)
        form = TABLE.get(name)
        if around.clamp_of and (form.base if form else name) not in around.clamp_of:
            continue
        number, short = "", ""
        if form is not None and form.is_of_a_token:
            number, short = by_clamp(around.clamp, name, placement, old=old)
        yield Effect(
            f"a token's KL is held ({' and '.join(bounds)}), without gradient beyond{number}",
            f"held within ±{clamp:g} a token ({short})" if short else "",
            f"a token's KL is cut at ±{clamp:g}" if short else "",
        )


def _placed(reading: LaunchReading) -> Iterator[tuple[Placement, InReward | InLoss]]:
    """Yield the KL terms that have a gradient."""
    if reading.in_reward.active:
        yield "reward", reading.in_reward
    if reading.in_loss.active and not reading.no_gradient:
        yield "loss", reading.in_loss


def _ratio(around: Surroundings, *, in_reward: bool, old: bool) -> Iterator[Effect]:
    mode = around.loss_mode
    if in_reward and old and around.ratio == "sequence_mean":
        number, short = "", ""
        if around.clip and mode == "GSPO":
            number, short = (f" ({each})" for each in by_mean_ratio(*around.clip))
        yield Effect(
            f"{mode or 'the policy loss'} weighs a response by the geometric mean of its ratios, "
            f"not by their product: the laboratory's number for the token ratio does not hold"
            f"{number}",
            f"through {mode or 'a sequence'}'s mean ratio{short}",
        )
    elif in_reward and old and around.ratio == "none":
        yield Effect(
            "no ratio to the policy that sampled multiplies the KL in the reward: it is the policy "
            "gradient of other samples than the policy's, and the laboratory has no number for it",
            "without a ratio to the policy that sampled",
        )
    elif in_reward and old and mode:
        yield Effect(
            f"{mode} takes the place of PPO's clipped loss: the laboratory's number is of the "
            "token ratio without a clip",
            f"through {mode}",
        )
    elif mode:
        text = f"{mode} is the policy loss"
        if in_reward:
            yield Effect(f"{text}: on-policy its ratio is 1, and the gradient is a policy gradient")
        else:
            yield Effect(f"{text}: the KL in the loss is added to it as it is")


def _correction(
    around: Surroundings, in_reward: InReward | None, in_loss: InLoss | None
) -> Iterator[Effect]:
    if not around.correction:
        return
    within = in_reward or (in_loss if around.correction_includes_kl else None)
    if within is not None:
        number, short = _by_weight(around, within)
        yield Effect(
            f"{around.correction} multiplies the KL with the policy loss{number}",
            f"with {around.correction}{short}",
        )
    if in_loss is not None and not around.correction_includes_kl:
        number, short = _by_weight(around, in_loss)
        yield Effect(
            f"{around.correction} multiplies the policy loss and not the KL in the loss: where its "
            "weight is below 1, β counts that much more, and where it masks, the KL is alone"
            f"{number}",
            f"outside {around.correction}{short}",
        )


def _by_weight(around: Surroundings, term: InReward | InLoss) -> tuple[str, str]:
    """Return the laboratory's number for the correction, as a text and for the headline."""
    if around.engine_weight is None:
        return "", ""
    placement: Placement = "loss" if isinstance(term, InLoss) else "reward"
    text, short = by_weight(
        around.engine_weight,
        estimator_name(term),
        placement,
        corrects_kl=placement == "loss" and around.correction_includes_kl,
    )
    return text, f" ({short})" if short else ""


def _discount(around: Surroundings, *, in_reward: bool) -> Iterator[Effect]:
    if around.discount and in_reward:
        text = (
            f"the advantage discounts later tokens ({around.discount}): the KL of later tokens "
            "counts less, or is the critic's estimate of it"
        )
        yield Effect(text, f"with later tokens discounted ({around.discount})")


def _controller(around: Surroundings) -> Iterator[Effect]:
    if around.controller:
        text = f"a controller moves β while it trains ({around.controller}): β is its first value"
        yield Effect(text, "at a β that a controller moves")


def _moving(around: Surroundings) -> Iterator[Effect]:
    if around.moving_reference:
        text = f"the reference policy moves: {around.moving_reference}"
        yield Effect(text, "to a reference that moves")


def _lengths(around: Surroundings, *, in_loss: bool) -> Iterator[Effect]:
    because = _because(around.aggregation_because)
    if around.length_weighted:
        yield Effect(
            f"each response's tokens are averaged before the responses{because}: a response counts "
            "by 1 / its length, in the KL as in the task reward",
            "each response weighted by 1 / its length",
        )
    if not in_loss:
        return
    if around.kl_loss_factor is None:
        yield Effect(
            f"the KL in the loss is aggregated in another way than the policy loss{because}: its "
            "weight per token depends on the responses' lengths",
            "at a weight that the responses' lengths decide",
        )
    elif around.kl_loss_factor != 1:
        yield Effect(
            f"the KL in the loss counts {around.kl_loss_factor:.3g} times as much per token as the "
            f"policy loss{because}",
            f"at {around.kl_loss_factor:.3g} times its β",
        )


def effective_betas(reading: LaunchReading) -> tuple[EffectiveBeta, ...]:
    """Return the effective β of each KL term that has a gradient and a known β."""
    around, betas = reading.surroundings, []
    if around is None:
        return ()
    if reading.in_reward.active and reading.in_reward.beta is not None:
        betas.append(_effective(reading, reading.in_reward, around))
    if reading.in_loss.active and reading.in_loss.beta is not None and not reading.no_gradient:
        betas.append(_effective(reading, reading.in_loss, around))
    return tuple(betas)


def _effective(
    reading: LaunchReading, term: InReward | InLoss, around: Surroundings
) -> EffectiveBeta:
    beta = term.beta or 0.0
    placement = "loss" if isinstance(term, InLoss) else "reward"
    size = reading.group_size if (reading.group_size or 0) > 1 else None
    unit = "a nat of a token" if placement == "loss" else "a nat of the response"
    factor: float | None = 1.0
    parts, per_reward = [], ""
    divided = around.advantage_divided_by
    if divided == "nothing" or (placement == "reward" and around.division_includes_kl):
        per_reward = "a task reward of 1"
        if divided == "group_std":
            per_reward = (
                "a task reward of 1 where a group's task rewards differ (both divided alike, by "
                "another number each prompt); in the other groups the KL is alone, whatever β"
            )
            factor = None
    elif divided == "group_std":
        # The largest deviation of n rewards of 0 and 1, with the divisor n - 1.
        factor = 0.5 * math.sqrt(size / (size - 1)) if size else None
        parts.append("σ of the group's rewards")
    else:
        factor = None
        parts.append("σ of the batch's advantages" if divided else "an unknown factor")
    if around.own_rollout_in_mean and (placement == "loss" or not around.baseline_includes_kl):
        parts.append(f"1 / (1 - 1/{size or 'G'})")
        factor = factor / (1 - 1 / size) if factor is not None and size else None
    if placement == "loss" and around.kl_loss_factor != 1:
        known = around.kl_loss_factor
        parts.append(f"{known:.3g}" if known is not None else "the responses' lengths")
        factor = factor * known if factor is not None and known is not None else None
    at_most = None if factor is None else beta * factor
    if not parts:
        text = f"{beta:g} for {unit}, against {per_reward}"
    else:
        text = f"{beta:g} × {' × '.join(parts)} for {unit}, against a task reward of 1"
        if at_most is not None and divided == "group_std":
            text += f": at most {at_most:.3g} for rewards of 0 and 1"
        elif at_most is not None:
            text += f": {at_most:.3g}"
    if around.correction and placement == "loss" and not around.correction_includes_kl:
        text += "; more where the correction's weight is below 1"
    return EffectiveBeta(placement, beta, at_most, text)


def _because(text: str) -> str:
    return f" ({text})" if text else ""
