"""From what a library makes of a launch to a verdict, through the laboratory's table."""

from dataclasses import replace

from orchestrator.audit.findings import AuditFinding
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.kl.verdicts import GradientVerdict as Measured
from orchestrator.kl.verdicts import verdict
from orchestrator.library.launches import AuditNote, AuditVerdict, Edit, Launch, LaunchReading
from orchestrator.settings import AdvantageEstimator, Kl, Placement

IN_LOSS: dict[ObjectiveKind, AuditVerdict] = {
    ObjectiveKind.ZERO: "zero_mean_noise",
    ObjectiveKind.TOKEN_FORWARD_KL: "token_forward_kl",
    ObjectiveKind.TOKEN_REVERSE_KL: "token_reverse_kl",
    ObjectiveKind.SEQUENCE_REVERSE_KL: "unbiased_reverse_kl",
}
_ADVANTAGES: dict[str, AdvantageEstimator] = {
    "rloo": "rloo",
    "grpo": "grpo",
    "group_norm": "grpo",
    "dr_grpo": "dr_grpo",
}


def judged(reading: LaunchReading, launch: Launch, name: str) -> AuditFinding:
    """The answer: the verdict, what it stands on, and what was measured."""
    found, why, measured = _verdict(reading)
    if launch.cut_off is not None and any("kl" in flag.lower() for flag in launch.cut_off[1]):
        why += f" (its KL flags from line {launch.cut_off[0]} on are cut off: see the conflict)"
    lines = sorted(
        {
            launch.line,
            *(line for each in reading.settings for line in each.lines),
            *(line for each in reading.contradictions for line in each.lines),
            *(line for each in reading.inactive for line in each.lines),
        }
    )
    notes = tuple(measured.notes) if measured is not None else ()
    return AuditFinding(
        file=name,
        line=launch.line,
        case=launch.case,
        usual=launch.usual,
        library=reading.library,
        version=reading.version,
        version_because=reading.version_because,
        entry_point=reading.entry_point,
        kl_in_reward=reading.in_reward,
        kl_in_loss=reading.in_loss,
        advantage_estimator=reading.advantage_estimator,
        reference_policy_loaded=reading.reference_policy_loaded,
        group_size=reading.group_size,
        inactive_flags=reading.inactive,
        contradictions=(*_contradictions(reading), *_lost(launch)),
        verdict=found,
        why=why,
        lines=tuple(lines),
        rollout_kl=reading.rollout_kl,
        settings=reading.settings,
        rules=reading.rules,
        measured=_measured(measured),
        change=_change(reading, found),
        change_note=reading.change_note,
        assumes=tuple(dict.fromkeys((*reading.assumes, *launch.caveats))),
        notes=notes,
    )


def _contradictions(reading: LaunchReading) -> tuple[AuditNote, ...]:
    """The library's, a KL with a negative weight, and one without gradient."""
    for each in (reading.in_reward, reading.in_loss):
        if each.active and (each.beta or 0) < 0:
            told = f"β = {each.beta:g} is negative: it pays for leaving the reference policy"
            reading = replace(reading, contradictions=(*reading.contradictions, AuditNote(told)))
    if not reading.no_gradient or not reading.in_loss.active:
        return reading.contradictions
    lines = sorted({n for each in reading.settings for n in each.lines if "kl" in each.key})
    told = f"a KL in the loss is asked for, and {reading.no_gradient}"
    return (*reading.contradictions, AuditNote(told, tuple(lines)))


def _lost(launch: Launch) -> tuple[AuditNote, ...]:
    """Flags behind a broken continuation."""
    if launch.cut_off is None:
        return ()
    line, flags = launch.cut_off
    named = ", ".join([f for f in flags if "kl" in f.lower()][:3])
    told = (
        f"the command ends before line {line}: a comment, or a blank after the `\\`, breaks its "
        "continuation, and the flags that follow are not handed to it"
    )
    return (AuditNote(f"{told} ({named} among them)" if named else told, (line,)),)


def _change(reading: LaunchReading, found: AuditVerdict) -> tuple[Edit, ...]:
    keep = found in ("unbiased_reverse_kl", "no_kl", "rollout_policy_kl_only")
    return () if keep and not reading.contradictions and not reading.no_gradient else reading.change


def _verdict(reading: LaunchReading) -> tuple[AuditVerdict, str, Measured | None]:
    reward, loss = reading.in_reward, reading.in_loss
    if reading.unknown:
        return "undetermined", "; ".join(reading.unknown), None
    if reading.decided is not None:
        return *reading.decided, None
    if reward.active and loss.active and not reading.no_gradient:
        return _both(reading)
    if loss.active and reading.no_gradient:
        if reward.active:
            return _in_reward(reading)
        why = (
            f"{loss.estimator} stands in the loss with β = {loss.beta:g}, but without gradient: "
            f"{reading.no_gradient}. The policy is not regularised"
        )
        return "no_kl", why, None
    if reward.active:
        return _in_reward(reading)
    if loss.active:
        return _in_loss(reading)
    if reading.rollout_kl:
        why = (
            f"its only KL is to the policy that sampled (weight {reading.rollout_kl:g}); nothing "
            "keeps the policy near a reference policy"
        )
        return "rollout_policy_kl_only", why, None
    return "no_kl", _nothing(reading), None


def _nothing(reading: LaunchReading) -> str:
    zero = [
        where
        for where, each in (("reward", reading.in_reward), ("loss", reading.in_loss))
        if each.beta == 0
    ]
    if zero:
        return f"the KL in the {zero[0]} is multiplied by 0"
    return "no KL term is switched on: nothing keeps the policy near a reference policy"


def _measure(
    reading: LaunchReading,
    estimator: str | None,
    placement: Placement,
    beta: float | None,
    *,
    straight: bool = False,
) -> Measured:
    name = f"{estimator}+" if straight else str(estimator)
    advantage = _ADVANTAGES.get(reading.advantage_estimator or "", "rloo")
    kl = Kl(estimator=name, placement=placement, beta=abs(beta or 1.0))
    group = reading.group_size if (reading.group_size or 0) > 1 else None
    return verdict(kl, on_policy=True, advantage=advantage, group_size=group)


def _in_reward(reading: LaunchReading) -> tuple[AuditVerdict, str, Measured]:
    reward = reading.in_reward
    found = _measure(reading, reward.estimator, "reward", reward.beta)
    unbiased = found.objective is ObjectiveKind.SEQUENCE_REVERSE_KL
    told = f"{reward.estimator} in the reward, β = {reward.beta:g}"
    if unbiased:
        return "unbiased_reverse_kl", f"{told}: the gradient of the sequence's reverse KL", found
    return (
        "biased_reward",
        f"{told}: the policy gradient of that reward is not the gradient of the reverse KL",
        found,
    )


def _in_loss(reading: LaunchReading) -> tuple[AuditVerdict, str, Measured]:
    loss = reading.in_loss
    found = _measure(reading, loss.estimator, "loss", loss.beta, straight=loss.straight_through)
    straight = " with k2's gradient" if loss.straight_through else ""
    told = f"{loss.estimator}{straight} in the loss, β = {loss.beta:g}"
    name = IN_LOSS.get(found.objective, "undetermined")
    words = {
        "zero_mean_noise": "its gradient is zero in expectation: it adds noise and regularises "
        "nothing",
        "token_forward_kl": "its gradient is that of the forward KL of each token, not of the "
        "reverse KL it estimates",
        "token_reverse_kl": "the gradient of the reverse KL of each token at the states visited",
        "unbiased_reverse_kl": "the gradient of the sequence's reverse KL",
        "undetermined": f"{found.summary}; the list of verdicts has no name for it",
    }[name]
    return name, f"{told}: {words}", found


def _both(reading: LaunchReading) -> tuple[AuditVerdict, str, Measured | None]:
    reward, loss = reading.in_reward, reading.in_loss
    straight = " with k2's gradient" if loss.straight_through else ""
    why = (
        f"{reward.estimator} in the reward (β = {reward.beta:g}) and {loss.estimator}{straight} in "
        f"the loss (β = {loss.beta:g}): two KL terms add up"
    )
    measured = None
    if reward.estimator == loss.estimator and not loss.straight_through:
        measured = _measure(reading, loss.estimator, "reward_and_loss", loss.beta)
    return "both", why, measured


def _measured(found: Measured | None) -> str:
    return "" if found is None else f"{found.summary}. {found.bias.text}"
