"""Compute the effects of the rest of a loss on its KL term, in words, and the effective β.

A library's reader gives the facts (orchestrator.library.launches.Surroundings). This module has the
mathematics for all libraries.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from orchestrator.audit.bounds import one_update
from orchestrator.estimators import TABLE
from orchestrator.kl.estimators import UNCLAMPED
from orchestrator.kl.groups import group_std
from orchestrator.library.launches import InLoss, InReward, LaunchReading, Surroundings
from orchestrator.losses.table import Bounds, said
from orchestrator.settings import Placement

LEAST_CHANGE = 0.0005
"""Minimum distance of a factor from 1. A factor nearer to 1 counts as no effect."""
MOST_ROLLOUTS = 256
"""Largest group size for which factors are computed."""
_FILTER = re.compile(
    r"(dynamic_(sampling(\.type)?|filtering(_enable)?)|dynamic-sampling-filter-path"
    r"|filter_groups\.enable|filter_zero_std_samples|online_filtering)$"
)
"""Keys of the libraries that leave out a group of equal rewards."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect on the KL term, with its number; `headline`: its words in the headline."""

    text: str
    headline: str = ""


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
    return () if around is None else tuple(_effects(reading, around))


def _effects(reading: LaunchReading, around: Surroundings) -> Iterator[Effect]:
    terms = list(_placed(reading))
    if around.rejected:
        yield Effect(
            f"rejected {around.rejected} leave the loss, and with it the KL "
            f"({around.rejected_because}); their reward stays in the mean of their group, the KL "
            "in the reward included: the objective is of what is kept",
            f"of the {around.rejected} that are kept",
        )
    for placement, term in terms:
        if placement == "reward":
            yield from _on_reward(reading, around, term)
        else:
            yield from _on_loss(reading, around, term)
    if terms:
        yield from _on_both(around)
    if around.entropy:
        sign = "bonus" if around.entropy > 0 else "penalty"
        text = f"an entropy {sign} with the coefficient {abs(around.entropy):g}"
        yield Effect(f"the loss has {text}", f"with an entropy {sign} of {abs(around.entropy):g}")
    yield from map(Effect, around.notes)


def _on_reward(
    reading: LaunchReading, around: Surroundings, term: InReward | InLoss
) -> Iterator[Effect]:
    """Yield the effects on a KL in the reward, which the advantage and the policy loss take in."""
    if around.division_includes_kl:
        yield from _division_with_kl(reading, around)
    else:
        place = "in the reward, which is subtracted afterwards"
        yield from _division_beside_kl(reading, around, place)
    yield from _ratio(reading, around)
    if around.correction:
        text = f"{around.correction} multiplies the KL with the policy loss"
        yield Effect(text, f"with {around.correction}")
    cut = "is weighed by that bound" if around.policy_loss != "ppo" else "gets no gradient"
    what = f"a token whose ratio leaves the clip {cut}, from the KL in the reward too"
    yield from _clip(reading, estimator_name(term), "reward", what, "through a clip")
    if around.discount:
        yield Effect(
            f"the advantage discounts later tokens ({around.discount}): the KL of later tokens "
            "counts less, or is the critic's estimate of it",
            f"with later tokens discounted ({around.discount})",
        )
    yield from _clamp(reading, around, term, "reward")


def _on_loss(
    reading: LaunchReading, around: Surroundings, term: InReward | InLoss
) -> Iterator[Effect]:
    """Yield the effects on a KL in the loss, which stands beside the policy loss."""
    yield from _division_beside_kl(reading, around, "in the loss")
    masks = re.search(r"\bmask(?:s|ed)\b", around.correction)
    if around.correction:
        yield Effect(
            f"{around.correction} multiplies the policy loss and not the KL in the loss: where "
            f"its weight is below 1, β counts that much more"
            f"{', and where it masks, the KL is alone' if masks else ''}",
            f"outside {around.correction}",
        )
    what = "the clip cuts the task's gradient and not that of the KL in the loss"
    yield from _clip(reading, "k2", "loss", what, "beside a clipped policy loss")
    because = _because(around.aggregation_because)
    if around.kl_loss_factor is None:
        yield Effect(
            f"the KL in the loss is aggregated in another way than the policy loss{because}: its "
            "weight per token depends on the responses' lengths",
            "at a weight that the responses' lengths decide",
        )
    elif around.kl_loss_factor != 1:
        times = f"{around.kl_loss_factor:.3g} times"
        text = f"the KL in the loss counts {times} as much per token as the policy loss{because}"
        yield Effect(text, f"at {times} its β")
    yield from _clamp(reading, around, term, "loss")


def _on_both(around: Surroundings) -> Iterator[Effect]:
    """Yield the effects on a KL in either place."""
    if around.length_weighted:
        because = _because(around.aggregation_because)
        yield Effect(
            f"each response's tokens are averaged before the responses{because}: a response counts "
            "by 1 / its length, in the KL as in the task reward",
            "each response weighted by 1 / its length",
        )
    if around.controller:
        text = f"a controller moves β while it trains ({around.controller}): β is its first value"
        yield Effect(text, "at a β that a controller moves")
    if around.moving_reference:
        text = f"the reference policy moves: {around.moving_reference}"
        yield Effect(text, "to a reference that moves")


def _division_with_kl(reading: LaunchReading, around: Surroundings) -> Iterator[Effect]:
    """Yield the effect of a group's deviation; a batch's is one factor for the KL and the task."""
    if around.advantage_divided_by != "group_std":
        return
    number, size, beta = "", _group(reading), reading.in_reward.beta
    if size is not None and beta:
        half, tenth = (group_std(solved, size) for solved in (0.5, 0.1))
        number = (
            f"; in groups of {size}, for a normal KL of deviation 1 that does not depend on "
            f"success: β × {half.over_all(abs(beta)):.3g} at 50% solved, "
            f"× {tenth.over_all(abs(beta)):.3g} at 10% solved, where the KL is alone in "
            f"{tenth.equal:.0%} of groups"
        )
    if not _drops_equal(reading):
        equal = ", and where all task rewards of a group are equal, the KL is left alone, at unit "
        number = f"{equal}size whatever β is{number}"
    yield Effect(
        "the advantage, the KL included, is divided by the standard deviation of its group"
        f"{_because(around.divided_because)}: each prompt has a β of its own{number}",
        "rescaled for each prompt by its group's standard deviation",
    )


def _division_beside_kl(
    reading: LaunchReading, around: Surroundings, place: str
) -> Iterator[Effect]:
    by = around.advantage_divided_by
    if by not in ("group_std", "batch_std"):
        return
    whose, number, size = "the batch's", "", _group(reading)
    if by == "group_std":
        whose = "each group's"
        if size is not None:
            half, tenth = (group_std(solved, size) for solved in (0.5, 0.1))
            number = (
                f"; exactly, to first order in β, in groups of {size}: β × {half.beta_in_loss:.3g} "
                f"where 50% of rollouts solve the prompt and × {tenth.beta_in_loss:.3g} where 10% "
                f"do; at 10% the KL is alone in {tenth.equal:.0%} of groups"
            )
    yield Effect(
        f"the task's advantage is divided by {whose} standard deviation"
        f"{_because(around.divided_because)}, and the KL {place} is not: β counts in units of that "
        f"deviation{number}",
        f"against rewards divided by {whose} standard deviation",
    )


def _group(reading: LaunchReading) -> int | None:
    """Return the size of a group, if the factors of its statistics are computed: they are those of
    all groups, with the rollout itself in the mean."""
    size, around = reading.group_size, reading.surroundings
    computed = around is not None and around.own_rollout_in_mean and not _drops_equal(reading)
    return size if computed and size is not None and 1 < size <= MOST_ROLLOUTS else None


def _drops_equal(reading: LaunchReading) -> bool:
    """Return True if a setting leaves out groups whose task rewards are all equal."""
    if (held := reading.held) is None:
        return False
    texts = {**held.defaults, **{key: each[-1].text for key, each in held.given.items()}}
    off = ("false", "null", "none")
    return any(_FILTER.search(key) and text.lower() not in off for key, text in texts.items())


def _ratio(reading: LaunchReading, around: Surroundings) -> Iterator[Effect]:
    """Yield what multiplies a KL in the reward beside the token ratio."""
    mode = said(around.policy_loss)
    if reading.regime.on_policy is True:
        return
    if around.ratio == "sequence_mean":
        yield Effect(
            f"{mode or 'the policy loss'} weighs a response by the geometric mean of its ratios, "
            "not by their product: the laboratory's number for the token ratio does not hold",
            f"through {mode or 'a sequence'}'s mean ratio",
        )
    elif around.ratio == "none":
        yield Effect(
            "no ratio to the policy that sampled multiplies the KL in the reward: it is the policy "
            "gradient of other samples than the policy's, and the laboratory has no number for it",
            "without a ratio to the policy that sampled",
        )
    elif mode:
        yield Effect(
            f"{mode} takes the place of PPO's clipped loss: the laboratory's number is of the "
            "token ratio without a clip",
            f"through {mode}",
        )


def _clip(
    reading: LaunchReading, estimator: str, placement: Placement, text: str, headline: str
) -> Iterator[Effect]:
    """Yield the off-policy effect of clipping the token ratio, where it has a factor on β."""
    around = reading.surroundings
    if around is None or around.clip is None or reading.regime.on_policy or estimator not in TABLE:
        return
    is_one = one_update(around, on_policy=reading.regime.on_policy)
    if is_one or around.ratio != "token" or around.policy_loss not in ("ppo", "cispo"):
        return
    low, high = around.clip
    short, long = _clip_factors(around.policy_loss, around.clip, estimator, placement)
    if _is_changed(short) or _is_changed(long):
        number = f"{_times(short)} at the laboratory's short lag, {_times(long)} at its long one"
        span = f"[{1 - low:g}, {1 + high:g}]"
        when = " (if a batch has more than one update)" if is_one is None else ""
        text = f"{text} ({span}); exactly, to first order in β: {number}"
        yield Effect(text + when, headline + when)


@cache
def _clip_factors(
    kind: str, clip: tuple[float, float], estimator: str, placement: Placement
) -> tuple[float | None, float | None]:
    """Return the factor on β next to a clipped policy loss, at a short and at a long lag.

    None: no pull of the task or of the KL is left.
    """
    from orchestrator.exact.surrogates import FAR_AHEAD, NEAR_BEHIND, forces

    factors: list[float | None] = []
    for who in (NEAR_BEHIND, FAR_AHEAD):
        with_it, without = (
            forces(who, *loss, estimator, placement)
            for loss in ((kind, Bounds(*clip)), ("ppo", Bounds()))
        )
        nothing = min(with_it.reward, without.reward) <= 0 or without.kl == 0
        factors.append(None if nothing else with_it.beta_factor / without.beta_factor)
    return factors[0], factors[1]


def _clamp(
    reading: LaunchReading, around: Surroundings, term: InReward | InLoss, placement: Placement
) -> Iterator[Effect]:
    """Yield the effect of clamping each token's KL, with the share of its gradient that remains."""
    from orchestrator.exact.surrogates import clamp_effect

    name = estimator_name(term)
    form = TABLE.get(name)
    if around.clamp == UNCLAMPED or form is None or not form.is_of_a_token:
        return
    if around.clamp_of and form.base not in around.clamp_of:
        return
    left = clamp_effect(around.clamp, name, placement, old=reading.regime.on_policy is not True)
    if _is_changed(left.rare):
        most = around.clamp.value or around.clamp.log_ratio
        yield Effect(
            f"a token's KL is held within ±{most:g}, without gradient beyond: of its expected "
            f"gradient, exactly, × {left.near:.2g} is left 0.08 nats from the reference, "
            f"× {left.far:.2g} 18 nats from it, × {left.rare:.2g} of a token of 2% that the "
            "reference gives 50%",
            f"held within ±{most:g} a token",
        )


def _is_changed(factor: float | None) -> bool:
    """Return True if a factor differs from 1 by LEAST_CHANGE or more, or is None."""
    return factor is None or abs(factor - 1) >= LEAST_CHANGE


def _times(factor: float | None) -> str:
    if factor is None:
        return "no pull of the task is left"
    return f"β × {factor:.3g}" if _is_changed(factor) else "no effect"


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


def _placed(reading: LaunchReading) -> Iterator[tuple[Placement, InReward | InLoss]]:
    """Yield the KL terms that have a gradient."""
    if reading.in_reward.active:
        yield "reward", reading.in_reward
    if reading.in_loss.active and not reading.no_gradient:
        yield "loss", reading.in_loss


def effective_betas(reading: LaunchReading) -> tuple[EffectiveBeta, ...]:
    """Return the effective β of each KL term that has a gradient and a known β."""
    around = reading.surroundings
    if around is None or around.no_reward:
        return ()
    return tuple(
        _effective(reading, placement, term.beta, around)
        for placement, term in _placed(reading)
        if term.beta is not None
    )


def _effective(
    reading: LaunchReading, placement: Placement, beta: float, around: Surroundings
) -> EffectiveBeta:
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
                "another number each prompt)"
            )
            if not _drops_equal(reading):
                per_reward += "; in the other groups the KL is alone, whatever β"
            factor = None
    elif divided == "group_std":
        # The largest deviation of n rewards of 0 and 1.
        whole = size if around.own_rollout_in_mean else None
        factor = 0.5 * math.sqrt(whole / (whole - (not around.divisor_n))) if whole else None
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
    if around.correction and placement == "loss":
        text += "; more where the correction's weight is below 1"
    return EffectiveBeta(placement, beta, at_most, text)


def _because(text: str) -> str:
    return f" ({text})" if text else ""
