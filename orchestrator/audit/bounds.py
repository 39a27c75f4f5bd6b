"""Say what holds a launch's policy to what: its policy loss, and its weights against the engine.

A KL to a reference policy bounds the drift over the whole training. Nothing here does: a clip, a
mask or a truncation bounds one step from the policy that the ratio is to, and mostly without
bringing back what is beyond the bound. What each loss does stands in orchestrator.losses.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.library.launches import BoundNote, LaunchReading, Surroundings
from orchestrator.losses.table import LOSS_STEPS

To = Literal["the policy before the step", "the policy that sampled", "nothing", "not known"]
_OLD = {"sync": "of the last sync", "batch": "before the batch"}
NEVER_CUTS = 0.05
"""A bound on a response's geometric mean ratio from which on next to no response is cut: the
GSPO paper has 3e-4 and 4e-4 (arXiv 2507.18071, section 5.1)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What bounds a launch's policy, beside a KL to a reference policy.

    `to`: the policy that it is bound to in one step. `step`: how, in a clause. `dropped`: what
    loses its gradient without a word, empty if nothing. `failure`: what is known to go wrong.
    `mask`: what is rejected for its ratio to the engine, and by which key, in a sentence. `loss`:
    the policy loss, empty where it is not known.
    """

    to: To
    step: str
    dropped: str = ""
    failure: str = ""
    mask: str = ""
    loss: str = ""


def bound(reading: LaunchReading) -> Bound | None:
    """Return what bounds the policy of a launch, or None if its reader does not read the loss."""
    around = reading.surroundings
    if reading.rollout_kl:
        words = f"a KL to the policy that sampled (weight {reading.rollout_kl:g}) moves it back"
        of_loss = LOSS_STEPS.get(around.policy_loss) if around is not None else None
        if of_loss is None or not of_loss.pulls_back or around is None or around.clip is None:
            step = f"{words}; tokens beyond its mask still have it"
            return Bound("the policy that sampled", step)
        step = f"{words}; {of_loss.acts.format(high=f'{around.clip[1]:g}')}"
        return Bound("the policy that sampled", step, of_loss.drops, of_loss.failure)
    if around is None or reading.decided is not None:
        return None
    own = _of_loss(around, reading.regime.on_policy)
    against = f"against the engine {around.correction}" if around.correction else ""
    step = "; ".join(filter(None, (own.step, against, *_low_precision(reading))))
    mask = ""
    if around.rejected:
        mask = f"A mask against the engine takes {around.rejected} out ({around.rejected_because})."
    loss = around.policy_loss if around.policy_loss != "ppo" or around.clip else ""
    to: To = "the policy that sampled" if around.correction and own.to == "nothing" else own.to
    return replace(own, to=to, step=step, mask=mask, loss=loss)


def _of_loss(around: Surroundings, on_policy: bool | None) -> Bound:
    name = around.policy_loss
    own = LOSS_STEPS.get(name)
    if own is not None and own.bound == "none" and own.ratio != "none":
        return Bound("nothing", f"{own.said} has no bound: a token moves however far its ratio is")
    weighed = (around.ratio != "none" or around.old_of) and (own is None or own.bound != "none")
    if not weighed and not (own is not None and own.pulls_back):
        why = "no ratio to the policy that sampled: nothing weighs or stops old samples"
        if on_policy:
            why = "no ratio, and one update a batch: the learning rate alone bounds a step"
        return Bound("nothing", why)
    if own is None:
        return Bound("not known", f"the policy loss {name or 'of this launch'} is not one orch has")
    if name == "ppo" and around.clip is None:
        return Bound("not known", "orch does not read the clip of this launch")
    span, high = "its bounds", "its bound"
    if around.clip is not None:
        low, most = around.clip
        span = f"[{1 - low:g}, {1 + most:g}]"
        high = f"{most:g}"
    to: To = "the policy that sampled" if around.old_is_sampler else "the policy before the step"
    since = around.old_of or "batch"
    is_one = one_update(around, on_policy=on_policy)
    if is_one:
        what = own.said or f"the clip {span}"
        text = (
            f"one update a {since}, so each ratio is 1 and {what} never acts: the learning rate "
            "alone bounds a step"
        )
        return Bound("nothing", text + around.unweighed)
    text = own.acts.format(span=span, high=high)
    if not own.pulls_back:
        text += "; it moves nothing back"
    if around.old_of:
        text += (
            f"; its ratio is to the trainer's own policy {_OLD[around.old_of]}{around.unweighed}"
        )
    if is_one is None:
        text = f"if a {since} has more than one update, {text} (with one it never acts)"
    dropped = own.drops
    if around.ratio == "sequence":  # the product over the response, and one clip of it
        text, dropped = (each.replace("token", "response") for each in (text, dropped))
    drops = "; ".join(filter(None, [dropped, around.also_drops]))
    when = " (with more than one update)" if is_one is None else ""
    return Bound(to, text, drops and drops + when, own.failure and own.failure + when)


def one_update(around: Surroundings, *, on_policy: bool | None) -> bool | None:
    """Return True if each ratio is 1, for its old policy is the one that is updated."""
    if around.old_is_sampler or around.one_update or on_policy is False:
        return around.one_update
    return on_policy


def _low_precision(reading: LaunchReading) -> Iterator[str]:
    """Yield a clause if the engine samples in 8 bits."""
    for key, values in reading.given.items():
        text = values[-1].text.lower()
        of_engine = any(part in key for part in ("rollout", "vllm", "sglang", "inference"))
        if of_engine and ("fp8" in text or ("fp8" in key and text in ("true", "1", ""))):
            weighed = reading.surroundings is not None and bool(reading.surroundings.correction)
            how = "" if weighed else ", and nothing weighs the difference"
            yield f"the engine samples in fp8 ({key}): another policy than the trainer's{how}"
            return


def bound_notes(reading: LaunchReading) -> Iterator[BoundNote]:
    """Yield where a bound does not do what its name says: the library's own, then common ones."""
    around = reading.surroundings
    if around is None:
        return
    yield from around.bound_notes
    lows = around.clip
    if around.policy_loss == "gspo" and lows is not None and min(lows) >= NEVER_CUTS:
        yield BoundNote(
            f"GSPO's bounds are {lows[0]:g} and {lows[1]:g}: a geometric mean over a response "
            "hardly ever moves so far, so next to nothing is cut",
            "bounds of about 3e-4 below and 4e-4 above",
        )
    weight = around.engine_weight
    if weight is None or weight.kind not in ("mis_sequence", "reject_sequence"):
        return
    becomes = "leaves any fixed bound, so long responses are nearly all dropped"
    if weight.least <= 0:  # the mean of the ratios is 1
        few = f"at most 1 in {weight.most:g} is dropped"
        becomes = f"is small for most of them, so long responses count little; {few}"
    if weight.least > 0 or weight.kind == "mis_sequence":
        yield BoundNote(
            f"{around.correction}: the product of a long response's ratios {becomes}",
            "weights of tokens instead of whole responses",
        )
