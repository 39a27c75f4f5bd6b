"""The rules: each looks for one cause in a run, and cites the steps that show it.

What a log says by itself (signs.py) comes before what is only inferred from the reward's course.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.audit.diagnose import signs
from orchestrator.audit.diagnose.course import REWARD, course_of
from orchestrator.audit.diagnose.facts import TrainingFacts
from orchestrator.audit.diagnose.run import (
    CERTAINTIES,
    CLIP,
    ENGINE_NATS,
    ENTROPY,
    ESS,
    GRADIENT,
    LENGTH,
    MISMATCH,
    RATIO,
    SILENT,
    STALENESS,
    CauseFound,
    Certainty,
    Diagnosis,
    Evidence,
    Run,
)
from orchestrator.audit.diagnose.term import KL, TERM, term_of
from orchestrator.audit.diagnose.trace import FEWEST_STEPS, Series, Trace, running_mean


def diagnose(trace: Trace, facts: TrainingFacts | None = None) -> Diagnosis:
    """Return what went wrong first, why, and how sure that is."""
    known = facts or TrainingFacts()
    course = course_of(trace.get(REWARD))
    logged = term_of(trace)
    named = trace.get("train/beta")
    ran = math.nan if named is None else float(np.nanmedian(named))
    differ = known.beta is not None and abs(ran - known.beta) > max(5e-4, 0.05 * abs(ran))
    beta_untold = f"which beta counts: {known.source} has {known.beta}; the log's {ran:.3g} is used"
    known = replace(known, beta=ran) if differ else known
    if known.estimator is None:
        known = replace(
            known,
            beta=logged.beta if known.beta is None else known.beta,
            placement=known.placement or logged.place,
        )
    notes = tuple(_notes(trace, known))
    if course is None:
        shown = (Evidence(trace.at(0), REWARD, _NONE_DIFFERS),) if len(trace.steps) > 1 else ()
        silent = shown and trace.is_silent.all()
        candidates = [CauseFound("no_signal", "likely", shown)] if silent else []
        count = int(np.isfinite(trace.values(REWARD)).sum())
        untold = [
            f"what happened: the rules need {FEWEST_STEPS} steps with a reward; it has {count}"
            if count
            else "what happened: the log has no task reward that orch knows; "
            "--metric THEIRS=train/reward_mean names it"
        ]
    else:
        run = Run(trace, known, course, logged)
        candidates = _ordered([each for rule in RULES if (each := rule(run)) is not None])
        faults = [
            c for c in candidates if c.certainty != "possible" or c.cause in signs.NEVER_HEALTHY
        ]
        if not faults and (flat := signs.no_gain(run)) is not None:
            candidates = [flat, *candidates]
        elif not faults and not signs.at_a_bound(run):
            candidates = [*_nothing_wrong(run), *candidates]
        untold = [*_untold(run, candidates[0] if candidates else None)]
    untold = [*([beta_untold] if differ else []), *untold]
    return Diagnosis(tuple(candidates), notes, tuple(untold), trace.unit)


_NONE_DIFFERS = "all rewards of a batch, or all its advantages, are one number"


def _ordered(found: Iterable[CauseFound]) -> list[CauseFound]:
    """Return one entry for each cause, the surest first. A learning rate is inferred: it comes
    after what the log itself shows."""
    best: dict[str, CauseFound] = {}
    for each in found:
        known = best.get(each.cause)
        if known is None or CERTAINTIES.index(each.certainty) < CERTAINTIES.index(known.certainty):
            in_order = sorted(each.evidence, key=lambda shown: shown.step)
            best[each.cause] = replace(each, evidence=tuple(in_order))
    shown = any(c.certainty != "possible" for name, c in best.items() if name in signs.SHOWN)
    is_cut = any(best[n].certainty == "likely" for n in ("length", "cut_from_start") if n in best)
    inferred = (*(["learning_rate"] if shown else []), *(["no_signal"] if is_cut else []))
    for name in inferred:
        if name in best:
            best[name] = replace(best[name], certainty="possible")
    return sorted(best.values(), key=lambda c: (CERTAINTIES.index(c.certainty), c.first))


def _no_signal(run: Run) -> CauseFound | None:
    """Find rewards that are one number in the first quarter: no advantage differs from 0.

    A signal that the first step has was lost and is not missing.
    """
    rewards = run.course.rewards
    count = max(4, len(rewards) // 4)
    early = rewards[:count]
    early = early[np.isfinite(early)]
    share = run.mean(SILENT, slice(0, count))
    if len(early) >= 4 and np.ptp(early) == 0 and not run.course.rose:
        text = f"the reward is {early[0]:g} in each of the first {len(early)} steps"
        certain: Certainty = "sure" if early[0] == round(early[0]) else "likely"
        return CauseFound("no_signal", certain, (run.shown(0, REWARD, text),))
    first = run.mean(SILENT, slice(0, 1))
    had_one = first is not None and first <= _LOST_SIGNAL
    if share is not None and share > 0.9 and not had_one:
        text = f"in {share:.0%} of the groups all rewards are equal"
        return CauseFound("no_signal", "sure", (run.shown(0, SILENT, text),))
    hits = float(np.mean(early)) if len(early) else 0.5
    if not had_one and not run.course.rose and (0 <= hits < 0.005 or 0.995 < hits <= 1):
        text = f"the mean reward of the first {len(early)} steps is {hits:.2g}"
        return CauseFound("no_signal", "likely", (run.shown(0, REWARD, text),))
    return None


_LOST_SIGNAL = 0.7
"""Share of groups without a signal in the first step up to which there was one to lose."""


def _off_policy(run: Run) -> CauseFound | None:
    """Find samples that are far from the policy, and which of three reasons they have.

    An engine that rounds differs from the first step on. Stale samples begin fresh, and their
    distance grows with the policy's. Several train steps of one batch move the ratio, while engine
    and trainer stay equal at its begin.
    """
    facts, until = run.facts, run.course.before_the_fall
    levels = _levels(run, until)
    minibatches = facts.minibatches or run.trace.steps_a_batch
    several = minibatches > 1
    stale = facts.staleness
    if stale is None and not several:
        stale = math.ceil(run.mean(STALENESS, until) or 0)
    at_once, later = (run.mean(MISMATCH, part) or 0.0 for part in (slice(0, 1), until))
    if at_once > max(ENGINE_NATS, 0.1 * later) and not stale and not several:
        certain: Certainty = "likely" if run.course.fell or levels else "possible"
        text = f"engine and trainer differ by {at_once:.2g} nats a token, before a sample is stale"
        evidence = (run.shown(0, MISMATCH, text), *levels, *run.fall)
        return CauseFound("engine_mismatch", certain, evidence)
    if not levels:
        return _unbounded(run, minibatches)
    is_stale = later > ENGINE_NATS if several or not facts.staleness else True
    cause = "staleness" if is_stale else "minibatches"
    certainty: Certainty = "sure" if run.hurt and len(levels) > 1 else "likely"
    differs = signs.other_reference(run) is not None
    if {each.metric for each in levels} == {CLIP} and (differs or not run.hurt):
        certainty = "possible"  # clipped tokens have no gradient: the bound holds
    return CauseFound(cause, certainty, (*levels, *run.fall))


def _unbounded(run: Run, minibatches: int) -> CauseFound | None:
    """Find several train steps a batch that hurt, where no token is ever clipped and no metric of
    the ratio is logged.

    The reward falls; or it ends below its start while the loss falls within a batch. The loss is 0
    at a batch's first train step, so minus the loss is what the batch expects to gain.
    """
    course, clipped = run.course, run.trace.get(CLIP)
    is_logged = any(run.trace.get(name) is not None for name in (RATIO, ESS))
    if minibatches < 4 or is_logged or (clipped is not None and np.nanmax(clipped) > 0):
        return None
    text = f"each rollout batch makes {minibatches} train steps, and no token is clipped in any"
    evidence = [run.shown(0, REWARD, text)]
    if not course.fell:
        names = ("train/policy_loss", "train/loss")
        name = next((each for each in names if run.trace.get(each) is not None), "")
        loss = run.trace.get(name)
        expected_gain = 0.0 if loss is None else -float(np.nanpercentile(loss, 20))
        if course.end >= course.start or expected_gain < _EXPECTED_GAIN:
            return None
        text = (
            f"over a batch the loss falls by {expected_gain:.2g}, and the reward does not rise: it "
            f"goes from {course.start:.2g} to {course.end:.2g}"
        )
        evidence.append(run.shown(minibatches - 1, name, text))
    return CauseFound("minibatches", "likely", (*evidence, *run.fall))


_EXPECTED_GAIN = 0.02
"""Units of the advantage by which the loss of a batch falls before a rule looks at it."""


_LEAST_KL = 1e-5
"""KL of a response, in nats, below which the policy is its reference, whatever the log says."""


def _levels(run: Run, until: slice) -> tuple[Evidence, ...]:
    """Return what shows that samples are far from the policy, by a middle step.

    The ratio is 1 at the first train step of each batch, so its fourth fifth counts. Where the
    reward is lost, a smaller ratio is enough.
    """
    tests = (
        (ESS, 50, -1, 0.9, "only {:.0%} of the samples count under the ratio"),
        (CLIP, 50, 1, 0.03 if run.hurt else 0.1, "{:.1%} of the tokens are clipped"),
        (RATIO, 80, 1, 2.0 if run.hurt else 5.0, "the largest ratio of a token is {:.3g}"),
    )
    evidence = []
    if 0 < np.max(np.abs(_kl_values(run.trace)), initial=0.0) < _LEAST_KL:
        return ()
    for name, percent, sign, bound, text in tests:
        values = run.trace.values(name)[until]
        middle = np.nan if np.isnan(values).all() else np.nanpercentile(values, percent)
        if sign * (middle - bound) > 0:
            first = int(np.flatnonzero(sign * (values - bound) > 0)[0])
            evidence.append(run.shown(first, name, text.format(middle)))
    return tuple(evidence)


def _learning_rate(run: Run) -> CauseFound | None:
    """Find a policy that leaves within few steps, on policy: by its KL, else by its reward.

    A policy whose success rate goes from p to q needs a KL of q ln(q/p) + (1-q) ln((1-q)/(1-p))
    nats, and no more. A KL that the log begins with is of no step in it.
    """
    course, trace = run.course, run.trace
    if (course.rose and not course.fell) or _levels(run, course.before_the_fall):
        return None
    moved = trace.get(KL)
    until = course.before_the_fall.stop + trace.window
    early = course.at_fall is not None and course.at_fall < len(trace.steps) // 3
    early = early and trace.from_start
    if moved is None:
        if not early or trace.get(GRADIENT) is None or not _is_on_policy(run):
            return None
        text = "on policy, the reward is lost within these first train steps"
        return CauseFound("learning_rate", "likely", (run.shown(0, REWARD, text), *run.fall))
    end = run.mean(KL, slice(-trace.window, None)) or 0.0
    jumps = _jumps(moved)[:until]
    largest = float(np.max(jumps, initial=0.0))
    at = int(np.argmax(jumps)) + 1
    needed = max(_needed(course.start, each) for each in (course.best, course.end))
    before = moved[:at][np.isfinite(moved[:at])]
    scatter = float(np.std(np.diff(before))) if len(before) > 2 else 0.0
    lost = course.end <= course.start - 2 * course.error_of_start
    if end < max(5.0 if lost else _FAR_ANYWAY, 5 * needed):
        return None
    if largest < max(1.0, 2 * scatter, run.error(KL), 0.25 * end):
        return None
    is_tiny = 0 < trace.values("train/learning_rate")[at] < _TINY_RATE
    if is_tiny or (before > 0.5 * end)[:1].any():
        return None
    text = (
        f"the KL to the reference policy moves by {largest:.3g} nats a response within few train "
        f"steps and ends at {end:.3g}; its best or last reward needs {needed:.2g}"
    )
    certainty: Certainty = "sure" if early and largest > 3 else "likely"
    differs = (run.mean(MISMATCH, slice(0, 1)) or 0.0) > ENGINE_NATS
    if differs or not lost or not trace.from_start or len(moved) < _FEWEST_TO_GAIN:
        certainty = "possible"  # an engine that differs comes first
    return CauseFound("learning_rate", certainty, (run.shown(at, KL, text), *run.fall))


def _jumps(values: Series) -> Series:
    """Return by how much the median of five values (at the end three) differs from that of the five
    before, at each step but the first: a spread of single estimates is no move."""
    count = len(values)
    sides = ((values[max(0, i - 5) : i], values[i : i + 5]) for i in range(1, count - 2))
    with warnings.catch_warnings(action="ignore"):  # a part without a value has no median
        moves = [abs(np.nanmedian(after) - np.nanmedian(before)) for before, after in sides]
    return np.nan_to_num(np.array(moves, dtype=np.float64))


_FAR_ANYWAY = 20.0
"""KL of a response, in nats, at which a policy is looked at that lost no reward."""
_TINY_RATE = 1e-7
"""Learning rate below which a step of Adam moves no weight by as much as bf16 rounds it."""


def _is_on_policy(run: Run) -> bool:
    """Return whether each batch makes one train step: by the launch, or if no token is clipped."""
    if run.facts.on_policy is not None:
        return run.facts.on_policy
    clipped = run.trace.get(CLIP)
    never = clipped is not None and float(np.nanmax(clipped)) == 0
    return never and run.trace.steps_a_batch == 1


def _needed(before: float, after: float) -> float:
    """Return the least KL in nats that moves a success rate; 1 for rewards that are no rates."""
    if not (0 <= before <= 1 and 0 <= after <= 1):
        return 1.0
    p, q = (min(max(x, 1e-4), 1 - 1e-4) for x in (before, after))
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def _tail(run: Run) -> CauseFound | None:
    """Find steps at which the KL estimate and the gradient jump together.

    In the loss k3's value may jump and its gradient does not: only in the reward does the value
    multiply a score.
    """
    facts, trace = run.facts, run.trace
    term, gradient, moved = trace.get(TERM), trace.get(GRADIENT), trace.get(KL)
    if facts.has_kl is False or facts.placement == "loss" or term is None or gradient is None:
        return None
    same = moved is not None and np.allclose(term, moved, rtol=1e-3, atol=1e-6, equal_nan=True)
    if same or run.logged.is_k1:
        return None  # the estimate is k1, which has no tail
    logged = np.isfinite(term) & np.isfinite(gradient)
    if logged.sum() < 8:
        return None
    of_gradient = _spikes(gradient, logged, trace.window)
    together = _spikes(term, logged, trace.window) & of_gradient
    count = int(together.sum())
    if count < 2 or count < 0.3 * of_gradient.sum():
        return None
    at = int(np.flatnonzero(together)[np.argmax(term[together])])
    times = gradient[at] / max(float(np.median(gradient[logged])), 1e-12)
    text = (
        f"in {count} train steps the KL estimate and the gradient jump together; in the largest "
        f"the estimate is {term[at]:.3g} and the gradient {times:.3g} times its median"
    )
    in_reward = facts.estimator == "k3" and facts.placement in ("reward", "reward_and_loss")
    certainty: Certainty = "sure" if in_reward else "likely"
    if facts.placement is None and not run.course.fell:
        certainty = "possible"  # of a KL in the loss the two may jump together by chance
    return CauseFound("k3_reward_tail", certainty, (run.shown(at, TERM, text), *run.fall))


def _spikes(values: Series, logged: NDArray[np.bool_], window: int) -> NDArray[np.bool_]:
    """Return the steps at which a positive quantity is over 3 times the median around it."""
    around = [
        float(np.median(near)) if (near := part[np.isfinite(part)]).size else 0.0
        for part in (values[max(0, i - window) : i + window + 1] for i in range(len(values)))
    ]
    with np.errstate(invalid="ignore"):
        spikes: NDArray[np.bool_] = logged & (values > 3 * np.maximum(around, 1e-12))
    return spikes


def _kl_without_effect(run: Run) -> CauseFound | None:
    """Find a KL term that does not pull: by its gradient, if the settings or the log tell the term;
    or by a reward that a reverse KL would not leave."""
    facts, trace, course = run.facts, run.trace, run.course
    if facts.has_kl and facts.pulls is False:
        text = f"{facts.why_not} ({facts.source})" if facts.source else facts.why_not
        return CauseFound("kl_without_effect", "sure", (run.shown(0, TERM, text),))
    if facts.biased and (best := _best_reward(run, 4)) is not None and course.end > best:
        at = int(np.flatnonzero(course.smooth > best)[0])
        text = (
            f"the reward ends at {course.end:.2g}, and a reverse KL with {run.beta_in_words} would "
            f"leave at most {best:.2g}: {facts.estimator} in the reward does not hold the policy"
        )
        return CauseFound("kl_without_effect", "likely", (run.shown(at, REWARD, text),))
    if facts.pulls is None and facts.placement == "loss" and run.logged.is_k1:
        values = trace.get(TERM)
        at = 0 if values is None else int(np.nanargmin(values))
        text = (
            "the KL in the loss goes below 0, as of the estimators only k1 does, and the gradient "
            "of k1 in the loss is zero on average (but for a variant that only has its value)"
        )
        return CauseFound("kl_without_effect", "likely", (run.shown(at, TERM, text),))
    return None


def _best_reward(run: Run, noise: float = 0.0) -> float | None:
    """Return the largest mean reward that a reverse KL with this beta leaves to a policy that
    starts so many standard errors higher; None where beta or the reward's scale is not known.

    The optimum of the reward minus beta times the KL is the reference policy, times e to the reward
    over beta. Of all rewards in [0, 1] with the mean p, those of 0 and 1 gain the most by it: then
    the mean becomes sigmoid(logit p + 1 / beta).
    """
    course, beta = run.course, run.facts.beta or 0.0
    if beta <= 0 or not course.is_rate:
        return None
    p = min(max(course.start + noise * course.error_of_start, 1e-4), 1 - 1e-4)
    return 1 / (1 + (1 - p) / p * math.exp(-1 / beta))


def _kl_too_strong(run: Run) -> CauseFound | None:
    """Find a KL that costs more than the reward gains, or a beta that leaves no reward to win.

    At the optimum of reward minus beta times the KL the KL costs less than the reward gains: the
    reference policy itself gains nothing and costs nothing. Both hold of a reverse KL alone.
    """
    facts, course = run.facts, run.course
    if facts.has_kl is False or facts.pulls is False or facts.biased or facts.own_reference:
        return None
    if course.fell or signs.grows(run) or not run.trace.from_start:
        return None
    gain, p, best = course.end - course.start, course.start, _best_reward(run)
    moved = run.mean(KL, slice(len(run.trace.steps) // 2, None))
    spent = facts.beta * moved if facts.beta and moved is not None else None
    if facts.has_kl and best is not None and 0 < p < 1:
        gains_little = gain <= 0.1 or (spent is not None and spent > gain)
        if gains_little and best - p <= min(0.1, 0.5 * (1 - p)):
            text = f"with {run.beta_in_words} the best reward is about {best:.2g}"
            evidence = [run.shown(0, REWARD, f"{text}; it starts at {p:.2g}")]
            if spent is not None:
                text = f"{run.beta_in_words} times the KL is {spent:.2g} a response, and the reward"
                text += f" goes from {p:.2g} to {course.end:.2g}"
                evidence.append(run.shown(len(course.rewards) // 2, KL, text))
            return CauseFound("kl_too_strong", "sure", tuple(evidence))
    if len(course.rewards) < _FEWEST_TO_GAIN:
        return None
    return None if facts.beta or spent is not None else _still(run)


_FEWEST_TO_GAIN = 20
"""Train steps without which a gain may still come."""


_HELD = 2.0
"""KL of a response, in nats, up to which a policy counts as held near its reference."""
_MOST_OF_GRADIENT = 3.0
"""Times the gradient of the reward alone, from which on the KL has the most of it."""


def _still(run: Run) -> CauseFound | None:
    """Find a KL, an entropy and a reward that stand still under the gradient of the KL.

    At the first step the KL has none: what the gradient has more later is the KL's.
    """
    course = run.course
    half, p = len(course.rewards) // 2, course.start
    at_first, early, late = (
        run.mean(KL, part) for part in (slice(0, 1), slice(1, half), slice(half, None))
    )
    first, rest = (run.mean(GRADIENT, part) or 0.0 for part in (slice(0, 1), slice(half, None)))
    if run.trace.get(TERM) is None or early is None or late is None or not 0.01 < p < 0.99:
        return None
    if not first or rest < _MOST_OF_GRADIENT * first or (at_first or 0.0) > 0.1 * late:
        return None
    before, after = (
        run.mean(ENTROPY, part) for part in (slice(0, run.trace.window), slice(half, None))
    )
    is_still = before is None or after is None or after > 0.8 * before
    if course.end - p > 0.1 or not (0 < late < min(1.5 * early, _HELD) and is_still):
        return None
    text = (
        f"the gradient is {rest / first:.2g} times that of the first step, where the KL is 0; the "
        f"KL stays at {late:.2g} nats a response, and the reward at {course.end:.2g}"
    )
    return CauseFound("kl_too_strong", "likely", (run.shown(half, KL, text),))


def _kl_too_weak(run: Run) -> CauseFound | None:
    """Find a KL that costs next to nothing of the reward that is won, with a policy much farther
    than that reward needs."""
    facts, course = run.facts, run.course
    moved = run.trace.get(KL)
    if facts.pulls is False or facts.has_kl is False or moved is None:
        return None
    if facts.beta is None or facts.beta <= 0 or facts.own_reference or not course.is_rate:
        return None
    end, first = (run.mean(KL, p) or 0.0 for p in (slice(len(moved) // 2, None), run.ends[0]))
    times = end / max(_needed(course.start, course.end), 0.1)
    gain, cost = course.end - course.start, facts.beta * end
    if not course.rose or end <= 2 * first or times < 5 or cost > 0.01 * gain:
        return None
    certainty: Certainty = "likely" if times >= 10 and cost <= 0.001 * gain else "possible"
    text = (
        f"the policy is {end:.2g} nats a response from the reference policy, {times:.0f} times "
        f"what this reward needs, which costs {cost:.2g} of {gain:.2g} won, "
        f"with {run.beta_in_words}"
    )
    return CauseFound("kl_too_weak", certainty, (run.shown(len(moved) // 2, KL, text),))


def _moved_reference(run: Run) -> CauseFound | None:
    """Find a KL below the least that the change of the reward needs, or what the launch moves.

    No policy takes the mean of a reward in [0, 1] from p to q with less than q ln(q/p) + (1-q)
    ln((1-q)/(1-p)) nats (data processing), so the KL is not that to the first policy.
    """
    facts, course, moved = run.facts, run.course, run.trace.get(KL)
    moves, by_launch, change = facts.moving_reference, None, ""
    if moves:
        change = f"Switch off what moves the reference policy in {facts.source}: {moves}."
        text = f"the reference policy moves {moves} ({facts.source})"
        sure: Certainty = "likely" if run.hurt else "possible"
        shown = (run.shown(0, KL, text), *run.fall)
        by_launch = CauseFound("moved_reference", sure, shown, change)
    if moved is None or not course.is_rate or facts.own_reference:
        return by_launch
    if not (moved[np.isfinite(moved)].any() or facts.has_kl):
        return by_launch  # without beta a trainer logs 0
    half = len(moved) // 2
    measured = run.mean(KL, slice(half, None))
    after = float(np.nanmean(course.rewards[half:]))
    margin = 2 * course.error_of_start
    if measured is None or abs(after - course.start) <= margin:
        return by_launch
    needed = _needed(course.start + math.copysign(margin, after - course.start), after)
    if needed < 0.05 or measured > needed / 3:
        return by_launch
    text = (
        f"the KL is {measured:.2g} nats a response, and a reward that goes from "
        f"{course.start:.2g} to {after:.2g} needs {needed:.2g}"
    )
    never = 0 < float(np.nanmax(np.abs(moved))) < 1e-4 * needed
    certainty: Certainty = "sure" if never or moves else "likely"
    return CauseFound("moved_reference", certainty, (run.shown(half, KL, text),), change)


def _reward_hacking(run: Run) -> CauseFound | None:
    """Find another score that falls while the reward rises; a summand of it is no other score."""
    if not run.course.rose or run.course.fell:
        return None
    for name, values in run.trace.scores.items():
        other = course_of(values)
        if other is None or (_is_summand(run, name) and not signs.grows(run)):
            continue
        lost = other.start - other.end > 4 * other.error_of_start and other.start > 0
        most = max(4 * other.error_of_start, 0.5 * (other.best - other.start))
        back = other.best - other.end > most
        if other.fell or (other.rose and back) or (lost and other.end < 0.9 * other.start):
            high = max(other.start, other.best)
            text = f"it falls from {high:.2g} to {other.end:.2g} while the reward rises"
            at = other.at_fall if other.at_fall is not None else len(values) - 1
            rise = f"the reward rises from {run.course.start:.2g} to {run.course.end:.2g}"
            evidence = (run.shown(at, name, f"{name}: {text}"), run.shown(at, REWARD, rise))
            return CauseFound("reward_hacking", "likely", evidence)
    return None


def _unpaid_part(run: Run) -> CauseFound | None:
    """Find parts of a reward that are 0 in each row; a penalty may be."""
    unpaid = []
    for name, values in run.trace.scores.items():
        paid = values[np.isfinite(values)]
        is_part = _PART.match(name) and not _PENALTY.search(name)
        if is_part and len(paid) >= _FEWEST_OF_A_PART and not paid.any():
            unpaid.append(name)
    if not unpaid or not np.nanmax(run.course.rewards) > np.nanmin(run.course.rewards):
        return None
    text = f"{' and '.join(unpaid)}: 0 in each row up to here"
    # The last step: what else a log shows comes first.
    return CauseFound("unpaid_part", "possible", (run.shown(-1, unpaid[0], text),))


_PENALTY = re.compile("penal|punish|overlong")
_FEWEST_OF_A_PART = 8
"""Rows with one value from which on a part of the reward is looked at."""


def _is_summand(run: Run, name: str) -> bool:
    """Return whether a part of the reward counts in it: the others are no longer the whole."""
    parts = {n: v for n, v in run.trace.scores.items() if _PART.match(n)}
    if parts.pop(name, None) is None:
        return False
    rest = np.abs(run.course.rewards - sum(parts.values()))
    is_whole = rest < 0.01 * np.nanmax(np.abs(run.course.rewards))
    return not is_whole[np.isfinite(rest)].all()


_PART = re.compile(r"(?:train/)?rewards/")


def _entropy_collapse(run: Run) -> CauseFound | None:
    """Find an entropy at a tenth of its start, or a quarter where the reward falls, while most of
    the reward is not yet won."""
    values, course = run.trace.get(ENTROPY), run.course
    if values is None or course.end > 0.8:
        return None
    entropy = running_mean(values, run.trace.window)
    start = run.mean(ENTROPY, run.ends[0]) or 0.0
    share = 0.25 if course.fell else 0.1
    low = np.flatnonzero((entropy < share * start) & (start - entropy > run.error(ENTROPY)))
    if not len(low):
        return None
    at = int(low[0])
    fall = len(values) if course.at_fall is None else course.at_fall + run.trace.window
    if at > fall or course.smooth[at] > 0.8:
        return None
    text = f"the entropy is {entropy[at]:.2g} nats a token, from {start:.2g}, at a reward of "
    evidence = (run.shown(at, ENTROPY, f"{text}{course.smooth[at]:.2g}"), *run.fall)
    plain = entropy[at] < 0.1 * start and at <= (course.at_fall or at)
    certainty: Certainty = "likely" if plain else "possible"
    return CauseFound("entropy_collapse", certainty, evidence)


Rule = Callable[[Run], CauseFound | None]
RULES: tuple[Rule, ...] = (
    *signs.SIGNS,
    _no_signal,
    _off_policy,
    _learning_rate,
    _tail,
    _kl_without_effect,
    _kl_too_strong,
    _kl_too_weak,
    _moved_reference,
    _reward_hacking,
    _unpaid_part,
    _entropy_collapse,
)


_FEWEST_TO_PRAISE = 6
"""Values of the reward without which nothing is said to be right."""


def _nothing_wrong(run: Run) -> Iterator[CauseFound]:
    course = run.course
    rewards = course.rewards[np.isfinite(course.rewards)]
    is_won = course.start > 0.8 and course.is_rate
    stays = course.end - course.start > course.error_of_start
    is_fine = is_won or (course.rose and stays)
    if course.fell or not is_fine or run.trace.fault or len(rewards) < _FEWEST_TO_PRAISE:
        return
    moves = "goes" if course.rose and stays else "stays high,"
    text = f"the reward {moves} from {course.start:.3g} to {course.end:.3g}"
    evidence = (run.shown(0, REWARD, text),)
    yield CauseFound("nothing_wrong", "likely", evidence)


def _notes(trace: Trace, facts: TrainingFacts) -> Iterator[str]:
    """Yield what people take for a fault and is none."""
    loss = trace.get("train/policy_loss")
    if loss is None and not facts.has_kl:
        loss = trace.get("train/loss")
    gradient = trace.get(GRADIENT)
    learns = gradient is None or float(np.nanmedian(gradient)) > 0
    learns = learns and 2 * trace.is_silent.sum() <= len(trace.steps)
    on_policy = facts.on_policy
    if on_policy is None:
        largest, clipped = (np.nanmax(trace.values(n), initial=0.0) for n in (RATIO, CLIP))
        on_policy = bool(largest < _RATIO_OF_ONE and clipped == 0)
    zero = 0.0 if loss is None else float(np.mean(np.abs(loss[np.isfinite(loss)]) < _ZERO_LOSS))
    if zero >= _MOST_STEPS and on_policy and learns and not trace.is_rounded:
        yield (
            f"The policy loss is 0 in {'each step' if zero == 1 else f'{zero:.0%} of the steps'}, "
            "as it should be: with one train step a batch the ratio is 1, and the advantages of a "
            "group sum to 0. Its gradient is not 0."
        )
    if signs.ends_unmarked(trace):
        yield "Responses that count as cut end at no limit: a stop string leaves no end token."
    kl = _kl_values(trace)
    is_zero = len(kl) >= FEWEST_STEPS and not kl.any()
    if is_zero and not facts.has_kl:
        yield "The KL is 0 in each step, as with beta 0; with any other the reference policy moves."
    elif len(kl) and kl[0] == 0 and not is_zero:
        yield (
            "The KL is 0 in the first step, as it should be: the policy is still the reference "
            "policy."
        )
    elif len(kl) and facts.own_reference:
        yield f"The KL is not 0 in the first step, as it should be: it is to {facts.own_reference}."
    for name, (meaning, values) in trace.namesakes.items():
        is_zero = not np.nanmax(np.abs(values), initial=0.0) > _ZERO_LOSS
        if is_zero or not len(kl):
            yield f"{name} is {'0 in each step. It is ' if is_zero else ''}{meaning}."


def _kl_values(trace: Trace) -> Series:
    """Return the logged values of the KL of a response, else of a token."""
    values = trace.values(KL if trace.get(KL) is not None else TERM)
    return values[np.isfinite(values)]


_ZERO_LOSS, _RATIO_OF_ONE, _MOST_STEPS = 1e-4, 1.001, 0.8
"""Up to which a loss is 0 and a largest ratio is 1; the share of steps that makes a rule."""


def _untold(run: Run, first: CauseFound | None) -> Iterator[str]:
    """Yield what this log cannot tell, with the metric that would, by the library's own name."""
    facts, trace = run.facts, run.trace
    if trace.fault:
        yield f"why a value is not finite: {trace.fault}"
    absent = {name for name in (KL, ENTROPY, RATIO, MISMATCH, CLIP) if trace.get(name) is None}
    is_sure = first is not None and first.certainty == "sure"
    if first is None:
        yield from (f"why {each.text}" for each in run.fall)
    if run.hurt and not is_sure:
        if KL in absent and facts.has_kl is not False:
            no_term = trace.get(TERM) is None
            # tokens times the KL term are a response's KL: with the term, the length is missing
            metric = trace.own_names.get(TERM, KL) if no_term else trace.own_name(LENGTH)
            yield f"whether the policy left the reference policy: {metric} would tell"
        if {RATIO, MISMATCH, CLIP} <= absent and not facts.on_policy:
            yield f"whether samples are off policy: {trace.own_name(CLIP)} would tell"
        if ENTROPY in absent:
            yield f"whether the entropy was lost first: {trace.own_name(ENTROPY)} would tell"
    if facts.estimator is None and _kl_values(trace).any():
        what = "whether the KL term pulls" + (", and whether beta fits" * (facts.beta is None))
        tells = (
            f"{facts.source} alone does not fix it (`orch audit {facts.source}` says what is "
            "missing; --library NAME@VERSION names the release)"
            if facts.source
            else "the launch would tell (--script)"
        )
        yield f"{what}: {tells}"
