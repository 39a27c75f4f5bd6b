"""What a log says by itself: numbers of staleness and of the engine, cut responses, a KL that is
not 0 at first or grows, a negative β, entropy that grows, a value that is not finite."""

from collections.abc import Callable

import numpy as np

from orchestrator.audit.diagnose.course import REWARD
from orchestrator.audit.diagnose.run import (
    CLIP,
    ENTROPY,
    GRADIENT,
    LENGTH,
    MISMATCH,
    SILENT,
    STALENESS,
    CauseFound,
    Certainty,
    Evidence,
    Run,
)
from orchestrator.audit.diagnose.term import KL, TERM
from orchestrator.audit.diagnose.trace import CUT, LONGEST, PROBABILITY, Trace, running_mean

SHOWN = (
    *("staleness", "engine_mismatch", "length", "length_collapse", "other_reference"),
    *("negative_beta", "entropy_growth", "not_finite", "entropy_collapse", "not_trained"),
    *("cut_from_start", "explodes"),
)
"""Causes that a log shows by a number of their own."""
NEVER_HEALTHY = ("length", "cut_from_start", "length_collapse", "no_signal", "negative_beta")
"""Causes that no healthy run shows, though they be only possible."""
_STALE = 2.0
"""Train steps between sampling and use from which samples count as stale."""
_FAR, _VERY_FAR = 0.02, 0.05
"""KL of engine and trainer a token, in nats: rounding in bf16 has 1e-5 to 1e-4, fp8 up to 5e-3."""
_PROBABILITIES = 0.05
"""The same, as the mean distance of the probabilities of sampled tokens; bf16 has about 0.005."""
_CUT, _MANY_CUT = 0.5, 1 / 3
"""Share of responses cut at the limit at the end, and of those that are cut all along."""
_LONG, _OFTEN = 64, 5
"""Tokens that no fixed answer has, and rows in which a mean length is the limit by no chance."""
_SHORT = 20
"""Tokens below which a response is short: all answers of a task may have one such length."""
_FIRST_KL = 0.02
"""KL of a token at the first step, in nats; the policy is then its reference, but for rounding."""
_FAR_ALL_ALONG = 0.1
"""KL of a token, in nats, that no few train steps make."""
_TOO_FAR, _FAR_OFF = 1.0, 0.5
"""KL of a token, in nats, at which a policy writes other texts than its reference, and that no
healthy run grows to."""
_UNMOVED, _MANY = 1e-5, 40
"""KL of a token, in nats, that is rounding; and the rows that show what does not change."""
_NOISE = 3.0
"""Nats a token with which a policy draws from 20 words alike: no text is written so."""
_EXPLODED, _TIMES_USUAL = 100.0, 1000.0
"""KL of a token, in nats, that no sampled word has but where the two policies are strangers; and
times its median at which a value explodes."""


def _evidence(run: Run, metric: str, least: float, text: str) -> Evidence:
    """Return the evidence at the first step from which on a metric's mean is at least so large."""
    smooth = running_mean(run.trace.values(metric), 3)
    at = np.flatnonzero(smooth >= least)
    return run.shown(int(at[0]) if len(at) else len(smooth) - 1, metric, text)


def _stale(run: Run) -> CauseFound | None:
    until = run.course.before_the_fall
    lag = run.mean(STALENESS, until) or 0.0
    far = run.mean(MISMATCH, until) or 0.0
    if lag < _STALE or not (run.hurt or far > _FAR):
        return None
    apart = far > _FAR / 2
    certainty: Certainty = "likely" if apart or run.course.fell else "possible"
    evidence = [_evidence(run, STALENESS, _STALE, f"samples are {lag:.3g} train steps old")]
    if apart:
        text = f"engine and trainer differ by {far:.2g} nats a token"
        evidence.append(_evidence(run, MISMATCH, _FAR / 2, text))
    return CauseFound("staleness", certainty, (*evidence, *run.fall))


def _engine(run: Run) -> CauseFound | None:
    """Find an engine that differs: from the first step on, or, with fresh samples, later."""
    until = run.course.before_the_fall
    first, late = (run.mean(MISMATCH, part) or 0.0 for part in (slice(0, 1), until))
    if not run.course.fell:  # what differs after a fall is its consequence
        late = max(late, run.mean(MISMATCH, run.ends[1]) or 0.0)
    apart = run.mean(PROBABILITY, until) or 0.0
    stale = (run.mean(STALENESS, until) or run.facts.staleness or 0) >= _STALE
    certainty: Certainty = "likely" if run.hurt or first > _VERY_FAR else "possible"
    if first >= _FAR and first >= 0.1 * late:
        text = f"engine and trainer differ by {first:.2g} nats a token from the first step on"
        evidence = run.shown(0, MISMATCH, text)
    elif apart >= _PROBABILITIES:
        text = f"the probabilities of engine and trainer differ by {apart:.2g}"
        evidence = _evidence(run, PROBABILITY, _PROBABILITIES, text)
    elif late >= _FAR and not stale and (run.facts.minibatches or run.trace.steps_a_batch) == 1:
        text = f"engine and trainer part: by {late:.2g} nats a token, from {first:.2g} at first"
        evidence = _evidence(run, MISMATCH, _FAR / 2, text)
    else:
        return None
    return CauseFound("engine_mismatch", certainty, (evidence, *run.fall))


def _cut(run: Run) -> CauseFound | None:
    """Find responses that come to be cut at the limit, or that all are from the first step on."""
    early, late = (run.mean(CUT, part) for part in run.ends)
    if early is None or late is None or late < _MANY_CUT or ends_unmarked(run.trace):
        return None
    before, after = (run.mean(LENGTH, part) for part in run.ends)
    longer = before is None or after is None or after > 1.3 * before
    many = late - early >= 0.3
    all_now = late > 0.95 and 1 - late < 0.2 * (1 - early)
    comes = late >= _CUT and ((many and longer) or (run.hurt and (many or all_now)))
    nearly_all = early > 0.9 and late > 0.8
    counts = run.hurt or after is None or after >= _SHORT
    if nearly_all or (early >= _MANY_CUT and 2 * late > early and counts and not comes):
        text = f"{early:.0%} of the responses are cut at the limit from the first step on"
        text += f", and {late:.0%} at the end" * (late < early)
        found: Certainty = "likely" if run.hurt and nearly_all else "possible"
        return CauseFound("cut_from_start", found, (run.shown(0, CUT, text), *run.fall))
    if not comes:
        return None
    text = f"{late:.0%} of the responses are cut at the limit, from {early:.0%}"
    certainty: Certainty = "likely" if many and longer and (run.hurt or late > 0.8) else "possible"
    return CauseFound("length", certainty, (_evidence(run, CUT, _CUT, text), *run.fall))


def _reaches_limit(run: Run) -> CauseFound | None:
    """Find a mean length that is one largest number again and again, in a log without the share of
    cut responses: all of a batch are then cut."""
    lengths = run.trace.values(LENGTH)
    limit = np.nanmax(lengths, initial=0.0)
    at = np.flatnonzero(lengths == limit)
    below = lengths[lengths < limit]
    is_mean = len(below) > 0 and 3 * np.sum(below % 1 > 0) >= len(below)
    if run.trace.get(CUT) is not None or limit < _LONG or not is_mean:
        return None
    if limit % 1 or len(at) < max(_OFTEN, 0.05 * len(lengths)):
        return None
    text = f"the mean length is {limit:g} in {len(at)} rows, and never more"
    name = "cut_from_start" if at[0] < len(lengths) // 3 else "length"
    return CauseFound(name, "possible", (run.shown(int(at[0]), LENGTH, text), *run.fall))


def ends_unmarked(trace: Trace) -> bool:
    """Return True if nearly all responses count as cut, at mean lengths that no one limit makes."""
    lengths = trace.values(LENGTH)[trace.values(CUT) > 0.9]
    lengths = lengths[np.isfinite(lengths)]
    longest = np.nanmax(trace.values(LONGEST), initial=np.max(lengths, initial=0.0))
    return 2 * len(lengths) > len(trace.steps) and bool(np.median(lengths) < 0.8 * longest)


def _explodes(run: Run) -> CauseFound | None:
    """Find single steps at which the KL of a token, the loss or the gradient leaves its range."""
    for name, words in ((TERM, "KL"), ("train/loss", "loss"), (GRADIENT, "gradient's norm")):
        values = np.abs(run.trace.values(name))
        usual = float(np.nanmedian(values)) if name in run.trace.series else 0.0
        far = np.flatnonzero(values > max(_EXPLODED, _TIMES_USUAL * usual))
        if len(far):
            text = f"the {words} jumps (rows: {len(far)}), to {np.nanmax(values):.3g} at most; "
            evidence = run.shown(int(far[0]), name, f"{text}its median is {usual:.2g}")
            return CauseFound("explodes", "likely", (evidence, *run.fall))
    return None


def _lost_signal(run: Run) -> CauseFound | None:
    """Find groups whose rewards are equal in the last third, of a reward that is not won."""
    rewards = run.course.rewards
    part = slice(-max(6, len(rewards) // 3), None)
    late = rewards[part][np.isfinite(rewards[part])]
    share = run.mean(SILENT, part) or 0.0
    same = float(np.unique(late, return_counts=True)[1].max(initial=0)) / max(len(late), 1)
    silent = float(run.trace.is_silent[part].mean())
    if run.course.won or len(late) < 6:
        return None
    if share > 0.9:
        text = f"in {share:.0%} of the groups all rewards are equal from here on"
    elif same >= 0.6 and (not run.course.rose or silent >= 0.6):
        text = f"in {max(same, silent):.0%} of the rows from here on the reward is one number"
    else:
        return None
    return CauseFound("no_signal", "possible", (run.shown(-len(late), REWARD, text),))


def _alike(run: Run) -> CauseFound | None:
    """Find groups most of which have equal rewards, of a reward that does not rise. Groups that
    become alike late have lost their signal by something else."""
    silent, unit = run.trace.values(SILENT), "groups"
    if np.isnan(silent).all():
        silent, unit = run.trace.is_silent.astype(np.float64), "rows"
    share = np.nanmean(silent)
    early = np.nanmean([share, *silent[: len(silent) // 3]])
    is_few = len(silent) < _FEWEST_SILENT or share < 0.5 or early < 0.25
    if is_few or not run.hurt or run.course.won:
        return None
    text = f"in {share:.0%} of the {unit} all rewards are equal: only the rest teaches"
    certainty: Certainty = "likely" if min(share, early) > 0.8 and silent[0] > 0.7 else "possible"
    return CauseFound("no_signal", certainty, (run.shown(0, SILENT, text), *run.fall))


_FEWEST_SILENT = 8
"""Rows of groups without a difference that make a rule."""


def _short(run: Run) -> CauseFound | None:
    """Find responses that shrink to next to nothing."""
    early, late = (run.mean(LENGTH, part) for part in run.ends)
    if early is None or late is None or early < _SHORT or late > min(0.2 * early, _SHORT):
        return None
    text = f"the responses have {late:.0f} tokens, from {early:.0f}"
    values = run.trace.series[LENGTH]
    at = int(np.flatnonzero(running_mean(values, 3) <= 0.3 * early)[0])
    certainty: Certainty = "likely" if run.hurt else "possible"
    return CauseFound("length_collapse", certainty, (run.shown(at, LENGTH, text), *run.fall))


def other_reference(run: Run) -> CauseFound | None:
    """Find a KL that is large at the first step, where the policy should be its reference."""
    if not run.trace.from_start or run.facts.own_reference:
        return None
    for name, least, unit in ((TERM, _FIRST_KL, "token"), (KL, 1.0, "response")):
        values = run.trace.values(name)
        finite = values[np.isfinite(values)]
        first = float(np.min(finite[:3], initial=np.inf))
        if len(finite) and first >= max(least, 0.3 * float(np.median(np.abs(finite)))):
            text = f"the KL is {finite[0]:.2g} nats a {unit} at the first step"
            # an adapter that is trained on learns so
            is_adapter = name == TERM and first < _FAR_ALL_ALONG and not run.hurt
            certainty: Certainty = "possible" if is_adapter else "likely"
            return CauseFound("other_reference", certainty, (run.shown(0, name, text),))
    return None


def grows(run: Run) -> bool:
    """Return True if the KL of a token grows by five times, or explodes, to where no healthy run
    is."""
    third = max(len(run.trace.steps) // 3, 1)
    early = middle(run, run.ends[0] if run.hurt else slice(0, third))
    late = middle(run, slice(-third, None))
    exploded = bool((np.abs(run.trace.values(TERM)) > _EXPLODED).any())
    return late > _FAR_OFF and (late > 5 * early or exploded)


def middle(run: Run, part: slice) -> float:
    """Return the median of the KL of a token; 0 without one."""
    values = run.trace.values(TERM)[part]
    finite = values[np.isfinite(values)]
    return float(np.median(np.abs(finite))) if len(finite) else 0.0


def _grows(run: Run) -> CauseFound | None:
    if not grows(run) or run.facts.has_kl is False or (run.facts.beta or 0) < 0:
        return None
    late = middle(run, run.ends[1])
    text = f"the KL grows over {_FAR_OFF:g} nats a token, and is {late:.2g} at the end"
    text += f", with {run.beta_in_words}" * (run.facts.beta is not None)
    evidence = _evidence(run, TERM, _FAR_OFF, text)
    certainty: Certainty = "likely" if late > _TOO_FAR else "possible"
    return CauseFound("kl_without_effect", certainty, (evidence, *run.fall), _HOLD)


_HOLD = (
    "Lower the learning rate or the updates of a batch, and see that the KL has a gradient towards "
    "the reference policy (`orch explain`); a larger beta comes after that."
)


def _negative(run: Run) -> CauseFound | None:
    if (run.facts.beta or 0) >= 0:
        return None
    text = f"{run.beta_in_words}: it pays for leaving the reference policy"
    # Not sure: a copy of the library may subtract the KL.
    return CauseFound("negative_beta", "possible", (run.shown(0, TERM, text),))


def _entropy_grows(run: Run) -> CauseFound | None:
    """Find an entropy that grows to noise, or while the reward does not; and a coefficient of the
    wrong sign."""
    early, late = (run.mean(ENTROPY, part) for part in run.ends)
    bonus = run.facts.entropy
    if early is None or late is None or early <= 0:
        return None
    if bonus and bonus < 0 and late < 0.3 * early:
        text = f"the entropy coefficient is {bonus:g}, of the wrong sign: it takes entropy away"
        return CauseFound("entropy_collapse", "likely", (run.shown(0, ENTROPY, text),), text + ".")
    # Of batches of one prompt each has another entropy.
    error = 4 * float(np.nanstd(np.diff(run.trace.values(ENTROPY)))) / run.ends[0].stop ** 0.5
    is_noise = late > max(_NOISE, 5 * early)
    if late - early < max(0.8 * early, error) or not (run.hurt or is_noise):
        return None
    text = f"the entropy grows from {early:.2g} nats a token, to {late:.2g} at the end"
    evidence = (_evidence(run, ENTROPY, 1.4 * early, text), *run.fall)
    return CauseFound("entropy_growth", "likely", evidence)


def _not_finite(run: Run) -> CauseFound | None:
    """Find a value that is not finite from some step to the end."""
    if not run.trace.lost:
        return None
    step, name = min((step, name) for name, step in run.trace.lost.items())
    evidence = Evidence(step, name, f"{name} is not finite from here on")
    return CauseFound("not_finite", "sure", (evidence,))


def no_gain(run: Run) -> CauseFound | None:
    """Find a reward that neither rises nor falls in many rows, and whether the policy moves."""
    course, moved = run.course, np.abs(run.trace.values(TERM)[1:])
    largest = np.nanmax(moved, initial=0.0)
    count = np.isfinite(course.rewards).sum()
    if course.rose or course.fell or count < _MANY:
        return None
    if 0 < largest <= _UNMOVED:
        text = f"the KL of a token is at most {largest:.2g} nats"
        return CauseFound("policy_unmoved", "likely", (run.shown(0, TERM, text),))
    if course.climbs or course.won:
        return None
    text = f"the reward is {course.start:.3g} ± {2 * course.error_of_start:.2g}, and "
    text += f"{course.end:.3g} at the end of {count} rows"
    return CauseFound("no_gain", "likely", (run.shown(0, REWARD, text),))


def _not_trained(run: Run) -> CauseFound | None:
    """Find gradients that are 0 in each step, though the rewards of a group differ."""
    gradient, rewards = run.trace.get(GRADIENT), run.course.rewards
    silent = run.mean(SILENT, slice(None))
    if gradient is None or np.nanmax(np.abs(gradient)) > 0 or np.isfinite(gradient).sum() < 4:
        return None
    if not np.nanmax(rewards) > np.nanmin(rewards) or (silent is not None and silent > 0.9):
        return None
    if run.trace.is_rounded:
        return None
    text = "the norm of the gradient is 0 in each step, and the rewards differ"
    return CauseFound("not_trained", "likely", (run.shown(0, GRADIENT, text),))


def at_a_bound(run: Run) -> bool:
    """Return True if a measured quantity ends where no healthy run does."""
    early, late = run.ends
    entropy = run.mean(ENTROPY, early) or 0.0
    used_up = entropy > 0 and (run.mean(ENTROPY, late) or entropy) < 0.02 * entropy
    begins_far = bool((np.abs(run.trace.values(TERM)[:3]) > _FAR_ALL_ALONG).all())
    return (
        grows(run)
        or (used_up and run.course.end < 0.8)
        or (run.mean(MISMATCH, late) or 0.0) > _VERY_FAR
        or (run.mean(CLIP, late) or 0.0) > 0.5
        or middle(run, late) > 5 * _TOO_FAR
        or (begins_far and middle(run, late) > _FAR_ALL_ALONG and not run.facts.own_reference)
    )


SIGNS: tuple[Callable[[Run], CauseFound | None], ...] = (
    _not_finite,
    _negative,
    _stale,
    _engine,
    _cut,
    _reaches_limit,
    _explodes,
    _lost_signal,
    _alike,
    _short,
    other_reference,
    _grows,
    _entropy_grows,
    _not_trained,
)
