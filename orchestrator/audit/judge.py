"""Turn a library's reading of a launch into a verdict, with the laboratory's table."""

from collections.abc import Iterator

from orchestrator.audit.findings import AuditFinding
from orchestrator.audit.key_check import KeyFinding, key_findings
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.kl.verdicts import GradientVerdict, verdict
from orchestrator.library.launches import (
    AuditNote,
    AuditVerdict,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchReading,
    ReadSetting,
)
from orchestrator.settings import AdvantageEstimator, Kl, Placement

Judgement = tuple[AuditVerdict, str, GradientVerdict | None]
"""The verdict, why, and what the laboratory has measured of the term."""
_IN_LOSS: dict[ObjectiveKind, tuple[AuditVerdict, str]] = {
    ObjectiveKind.ZERO: (
        "zero_mean_noise",
        "its gradient is zero in expectation: it adds noise and regularises nothing",
    ),
    ObjectiveKind.TOKEN_FORWARD_KL: (
        "token_forward_kl",
        "its gradient is that of the forward KL of each token, not of the reverse KL it estimates",
    ),
    ObjectiveKind.TOKEN_REVERSE_KL: (
        "token_reverse_kl",
        "the gradient of the reverse KL of each token at the states visited",
    ),
    ObjectiveKind.SEQUENCE_REVERSE_KL: (
        "unbiased_reverse_kl",
        "the gradient of the sequence's reverse KL",
    ),
}
_ADVANTAGES: dict[str, AdvantageEstimator] = {
    "rloo": "rloo",
    "grpo": "grpo",
    "group_norm": "grpo",
    "dr_grpo": "dr_grpo",
}
_NOTHING_TO_CHANGE = ("unbiased_reverse_kl", "no_kl", "rollout_policy_kl_only")
MOST_NAMED = 3
"""Keys that one sentence names."""


def judge(reading: LaunchReading, launch: Launch, file: str) -> AuditFinding:
    """Return the finding: the verdict, its reasons, and the measurements."""
    name, why, measured = _judgement(reading)
    if launch.cut_off is not None and any("kl" in flag.lower() for flag in launch.cut_off[1]):
        why += f" (its KL flags from line {launch.cut_off[0]} on are cut off: see the conflict)"
    contradictions = tuple(_contradictions(reading, launch))
    wrong_keys = tuple(key_findings(reading.held)) if reading.held is not None else ()
    cited: list[ReadSetting | AuditNote | Inactive | KeyFinding] = [
        *reading.settings,
        *contradictions,
        *reading.inactive,
        *wrong_keys,
    ]
    regime = _off_policy_summary(reading) if measured is not None else ""
    off_policy = bool(regime) and reading.regime.on_policy is False
    keep = name in _NOTHING_TO_CHANGE and not contradictions
    return AuditFinding(
        file=file,
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
        contradictions=contradictions,
        verdict=name,
        why=why,
        lines=tuple(sorted({launch.line, *(n for each in cited for n in each.lines)})),
        rollout_kl=reading.rollout_kl,
        settings=reading.settings,
        rules=reading.rules,
        measured="" if measured is None else f"{measured.summary}. {measured.bias.text}",
        change=() if keep else reading.change,
        change_note=reading.change_note,
        assumes=tuple(
            dict.fromkeys(
                (
                    *reading.assumes,
                    *launch.caveats,
                    *_assumed(wrong_keys),
                    *([] if off_policy or not regime else [regime]),
                )
            )
        ),
        notes=() if measured is None else tuple(measured.notes),
        regime=regime if off_policy else "",
        off_policy=off_policy,
        key_findings=wrong_keys,
    )


def _contradictions(reading: LaunchReading, launch: Launch) -> Iterator[AuditNote]:
    """Yield notes: the library's own, a negative weight, a KL without gradient, lost flags."""
    yield from reading.contradictions
    for term in (reading.in_reward, reading.in_loss):
        if term.active and (term.beta or 0) < 0:
            yield AuditNote(
                f"β = {term.beta:g} is negative: it pays for leaving the reference policy"
            )
    if reading.no_gradient and reading.in_loss.active:
        lines = sorted({n for each in reading.settings for n in each.lines if "kl" in each.key})
        text = f"a KL in the loss is asked for, and {reading.no_gradient}"
        yield AuditNote(text, tuple(lines))
    if launch.cut_off is not None:
        line, flags = launch.cut_off
        named = ", ".join([flag for flag in flags if "kl" in flag.lower()][:MOST_NAMED])
        text = (
            f"the command ends before line {line}: a comment, or a blank after the `\\`, breaks "
            "its continuation, and the flags that follow are not handed to it"
        )
        yield AuditNote(f"{text} ({named} among them)" if named else text, (line,))


def _assumed(wrong_keys: tuple[KeyFinding, ...]) -> Iterator[str]:
    """Yield the assumptions of a verdict if the release does not accept every key."""
    unknown = [each.key for each in wrong_keys if each.consequence == "unknown"]
    if unknown:
        named = ", ".join(unknown[:MOST_NAMED])
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        yield (
            f"{named}{more}: not keys of this release; a fork that has them leaves the KL as "
            "the library has it"
        )
    refused = [each.key for each in wrong_keys if each.consequence not in ("unknown", "is ignored")]
    if refused:
        yield f"the launch is read as if {', '.join(refused[:MOST_NAMED])} were not in the way"


def _judgement(reading: LaunchReading) -> Judgement:
    reward, loss = reading.in_reward, reading.in_loss
    if reading.unknown:
        return "undetermined", "; ".join(reading.unknown), None
    if reading.decided is not None:
        return *reading.decided, None
    if reward.active and loss.active and not reading.no_gradient:
        return _both(reading)
    if reward.active:
        return _in_reward(reading)
    if loss.active and reading.no_gradient:
        why = (
            f"{loss.estimator} stands in the loss with β = {loss.beta:g}, but without gradient: "
            f"{reading.no_gradient}. The policy is not regularised"
        )
        return "no_kl", why, None
    if loss.active:
        return _in_loss(reading)
    if reading.rollout_kl:
        why = (
            f"its only KL is to the policy that sampled (weight {reading.rollout_kl:g}); nothing "
            "keeps the policy near a reference policy"
        )
        return "rollout_policy_kl_only", why, None
    return "no_kl", _no_kl(reward, loss), None


def _no_kl(reward: InReward, loss: InLoss) -> str:
    for place, term in (("reward", reward), ("loss", loss)):
        if term.beta == 0:
            return f"the KL in the {place} is multiplied by 0"
    return "no KL term is switched on: nothing keeps the policy near a reference policy"


def _in_reward(reading: LaunchReading) -> Judgement:
    term = reading.in_reward
    measured = _measure(reading, term, "reward")
    text = f"{term.estimator} in the reward, β = {term.beta:g}"
    if measured.objective is ObjectiveKind.SEQUENCE_REVERSE_KL:
        return "unbiased_reverse_kl", f"{text}: the gradient of the sequence's reverse KL", measured
    why = f"{text}: the policy gradient of that reward is not the gradient of the reverse KL"
    return "biased_reward", why, measured


def _in_loss(reading: LaunchReading) -> Judgement:
    term = reading.in_loss
    measured = _measure(reading, term, "loss")
    unnamed: tuple[AuditVerdict, str] = (
        "undetermined",
        f"{measured.summary}; the list of verdicts has no name for it",
    )
    name, words = _IN_LOSS.get(measured.objective, unnamed)
    return name, f"{_estimator_of(term)} in the loss, β = {term.beta:g}: {words}", measured


def _both(reading: LaunchReading) -> Judgement:
    reward, loss = reading.in_reward, reading.in_loss
    why = (
        f"{reward.estimator} in the reward (β = {reward.beta:g}) and {_estimator_of(loss)} in the "
        f"loss (β = {loss.beta:g}): two KL terms add up"
    )
    measured = None
    if reward.estimator == loss.estimator and not loss.straight_through:
        measured = _measure(reading, loss, "reward_and_loss")
    return "both", why, measured


def _estimator_of(term: InLoss) -> str:
    return f"{term.estimator} with k2's gradient" if term.straight_through else str(term.estimator)


def _off_policy_summary(reading: LaunchReading) -> str:
    """Return the effect of the term on old samples; empty if training is on-policy."""
    regime, reward, loss = reading.regime, reading.in_reward, reading.in_loss
    if regime.on_policy:
        return ""
    term: InReward | InLoss = loss if loss.active and not reading.no_gradient else reward
    placement: Placement = "loss" if term is loss else "reward"
    if reward.active and loss.active and not reading.no_gradient:
        placement = "reward_and_loss"
    summary = _measure(reading, term, placement, on_policy=False).summary
    if regime.on_policy is None:
        return f"training is on-policy ({regime.why}). Otherwise: {summary}"
    return f"off-policy: {regime.why}. There, {summary}"


def _measure(
    reading: LaunchReading,
    term: InReward | InLoss,
    placement: Placement,
    *,
    on_policy: bool = True,
) -> GradientVerdict:
    """Return the laboratory's verdict on a term."""
    straight = isinstance(term, InLoss) and term.straight_through
    estimator = f"{term.estimator}+" if straight else str(term.estimator)
    kl = Kl(estimator=estimator, placement=placement, beta=abs(term.beta or 1.0))
    advantage = _ADVANTAGES.get(reading.advantage_estimator or "", "rloo")
    group = reading.group_size if (reading.group_size or 0) > 1 else None
    return verdict(kl, on_policy=on_policy, advantage=advantage, group_size=group)
