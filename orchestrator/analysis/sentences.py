"""English sentences for claims and verdicts, and titles for metrics."""

from orchestrator.analysis.claims import ClaimEvidence, JudgedClaim
from orchestrator.analysis.text import counted, estimate_text, listed, number_text, p_text
from orchestrator.metrics.names import METRICS
from orchestrator.spec.claims import COLLAPSE, AxisCondition, Claim, ClaimSide

_RELATIONS = {
    ">": "is higher with {left} than with {right}",
    "<": "is lower with {left} than with {right}",
    ">=": "is not lower with {left} than with {right}",
    "<=": "is not higher with {left} than with {right}",
    "~": "is the same with {left} as with {right}",
}


_AGAINST_NUMBER = {
    ">": "is above {right} with {left}",
    "<": "is below {right} with {left}",
    ">=": "is not below {right} with {left}",
    "<=": "is not above {right} with {left}",
    "~": "is {right} with {left}",
}


_SHORT = {
    "eval/accuracy_in_domain": "exact in-domain accuracy",
    "eval/accuracy_out_of_domain": "exact out-of-domain accuracy",
    "eval/kl_forward": "forward KL, reference to policy",
    "eval/kl_reverse": "reverse KL, policy to reference",
    "eval/entropy": "entropy of the policy",
    "train/reward_mean": "training reward",
    "train/kl_reference": "training KL to the reference (k1)",
    "train/entropy": "training entropy",
    "train/grad_norm": "gradient norm before clipping",
    "rollout/response_tokens": "response length",
}


_DOMAINS = {
    "in_domain": "in-domain accuracy",
    "out_of_domain": "out-of-domain accuracy",
}


def statement(claim: Claim) -> str:
    """Return the claim as an English sentence."""
    right, left = claim.right, claim.left
    if isinstance(right, ClaimSide):
        other = (
            _runs_text(right)
            if right.metric == left.metric
            else f"{metric_title(right.metric)}, {right}"
        )
        words = _RELATIONS[claim.relation].format(left=_runs_text(left), right=other)
    else:
        number = "the closed form's prediction" if right == "predicted" else f"{right:g}"
        words = _AGAINST_NUMBER[claim.relation].format(left=_runs_text(left), right=number)
    text = f"{metric_title(left.metric)} {words}"
    if claim.margin:
        text += f", within {claim.margin:g}"
    if claim.at:
        text += f", at {' and '.join(map(_condition_text, claim.at))}"
    if claim.studies:
        text += f", in study {listed(claim.studies)}"
    return text[0].upper() + text[1:] + "."


def reason(finding: JudgedClaim) -> str:
    """Return the numbers behind a verdict in sentences, with advice if it is underpowered.

    For a claim that is not testable, return what is missing.
    """
    e = finding.evidence
    if e is None:
        return f"Not testable here: {finding.missing}."
    text = _numbers_text(finding, e)
    if finding.verdict == "underpowered":
        text += " " + _advice_text(finding, e)
    return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in e.contrast.notes)])


def _numbers_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    seeds, settings = len(e.contrast.seeds), len(e.contrast.settings)
    over = f"{counted(seeds, 'seed')}, {counted(settings, 'setting')}"
    p = p_text(e.p)
    if finding.family > 1:
        corrected = p_text(finding.p_corrected).removeprefix("p ").removeprefix("= ")
        p += f" ({corrected} corrected over {finding.family} claims)"
    if e.effect is None:
        sides = [estimate_text(side) for side in (e.left, e.right) if side is not None]
        return f"Collapsed: {' against '.join(sides)} ({over}); {p}."
    against = finding.claim.right if isinstance(finding.claim.right, float) else 0.0
    right = estimate_text(e.right, interval=False) if e.right else number_text(against)
    text = f"{estimate_text(e.left, interval=False)} against {right}"
    text += f", difference {estimate_text(e.effect, signed=True)} ({over})"
    if e.contrast.over_items is not None and e.contrast.over_items.low is not None:
        text += f", over seeds and items {estimate_text(e.contrast.over_items, signed=True)}"
    return f"{text}; {p}." if e.effect.n > 1 else f"{text}."


def _advice_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    if finding.num_seeds < 2 and e.effect is not None:
        return "One seed has no interval: at least 1 more is needed to say anything."
    if finding.more_seeds is None:
        return "More seeds would not settle it if it stays as seen here."
    more = counted(finding.more_seeds, "more seed")
    if finding.num_seeds < 2:
        return f"At least {more} would be needed."
    return f"About {more} would settle it if effect and spread stay as seen here."


def metric_title(name: str) -> str:
    """Return the canonical name of a metric in words, such as `training reward`."""
    if name == COLLAPSE:
        return "the share of collapsed runs"
    parts = name.split("/")
    if parts[0] == "eval" and len(parts) == 3:
        kind = "" if parts[2] == "mean" else f" ({parts[2]})"
        return _DOMAINS.get(parts[1], f"accuracy on {parts[1]}") + kind
    return _SHORT.get(name, METRICS[name].meaning if name in METRICS else name)


def _runs_text(side: ClaimSide) -> str:
    return ", ".join(map(_condition_text, side.where)) if side.where else "all runs"


def _condition_text(where: AxisCondition) -> str:
    values = " or ".join(where.values)
    if where.axis == "kl":
        return values if values != "none" else "no KL term"
    return f"{'β' if where.axis in ('beta', 'kl.beta') else where.axis} {values}"
