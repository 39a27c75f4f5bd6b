"""English sentences for claims and verdicts, and titles for metrics."""

from orchestrator.analysis.claims import ClaimEvidence, JudgedClaim, WorkingRuns
from orchestrator.analysis.stats import Rate
from orchestrator.analysis.text import counted, estimate_text, listed, number_text, p_text
from orchestrator.metrics.names import METRICS
from orchestrator.spec.claims import COLLAPSE, WORKS, AxisCondition, Claim, ClaimSide

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
    if left.metric == WORKS and isinstance(right, float):
        share = "every run" if right == 1 else f"at least {right:.0%} of runs"
        where = f" with {_runs_text(left)}" if left.where else ""
        text = f"{share}{where} trains to its end, without a collapse, and is evaluated"
        return text[0].upper() + text[1:] + _scope_text(claim) + "."
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
    return text[0].upper() + text[1:] + _scope_text(claim) + "."


def _scope_text(claim: Claim) -> str:
    """Return the conditions of a claim: `, at β 0.1, in study onpolicy`."""
    text = f", at {' and '.join(map(_condition_text, claim.at))}" if claim.at else ""
    text += f", in study {listed(claim.studies)}" if claim.studies else ""
    return text + (", over the population of items" if claim.over_items else "")


def working_text(runs: WorkingRuns) -> str:
    """Return the number of working runs, and the reasons why the others do not work."""
    text = f"{len(runs.works)} of {counted(runs.n, 'run')} trained to the end, without a collapse"
    text += ", and were evaluated"
    if not runs.failing:
        return f"{text}."
    lacks = [f"{slug} ({lack})" for slug, lack in runs.failing.items()]
    more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
    return f"{text}. Not so: {', '.join(lacks[:3])}{more}."


def reason(finding: JudgedClaim) -> str:
    """Return the numbers behind a verdict in sentences, with advice if it is underpowered.

    For a claim that is not testable, return the reason.
    """
    if finding.counted is not None:
        return f"{working_text(finding.counted)} Counted on these runs: no inference."
    e = finding.evidence
    if finding.verdict == "holds by construction":
        return (
            "Both sides are one training run here: orch found that at this scale the two mean the "
            "same mathematics. The difference is 0 and was not measured."
        )
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
    items = e.contrast.over_items
    if items is not None and items.low is not None and not e.over_items:
        text += f", over seeds and items {estimate_text(items, signed=True)}"
    if e.effect.n < 2:
        return f"{text}."
    if (interval := e.interval) is not None:
        text += f", at every look [{interval[0]:+.3f}, {interval[1]:+.3f}]"
    once = "" if e.p_once is None else f", {p_text(e.p_once)} if this were the only look"
    return f"{text}; {p} at every look{once}. {population_text(e)}"


def effect_sentence(claim: Claim, e: ClaimEvidence) -> str:
    """Return the measured effect, independent of the claim: `accuracy is 0.05 higher with ...`."""
    left, over = _runs_text(claim.left), counted(len(e.contrast.seeds), "seed")
    where = _scope_text(claim)
    if e.effect is None:
        sides = [
            f"{s.count} of {counted(s.n, 'run')}" for s in (e.left, e.right) if isinstance(s, Rate)
        ]
        right = _runs_text(claim.right) if isinstance(claim.right, ClaimSide) else ""
        other = f", and {right} in {sides[1]}" if right else ""
        return f"{left} collapsed in {sides[0]}{other}{where}"
    size = number_text(abs(e.effect.mean))
    way = "higher" if e.effect.mean >= 0 else "lower"
    if isinstance(claim.right, ClaimSide):
        other = f"{way} with {left} than with {_runs_text(claim.right)}"
    elif claim.right == "predicted":
        other = f"{way} with {left} than the closed form predicts"
    else:
        other = f"{'above' if e.effect.mean >= 0 else 'below'} {claim.right:g} with {left}"
    if e.effect.low is None or e.effect.high is None:
        interval = "one seed, no interval"
    else:
        bounds = sorted((abs(e.effect.low), abs(e.effect.high)))
        sign = 1 if e.effect.mean >= 0 else -1
        if e.effect.low * e.effect.high < 0:
            bounds = sorted((sign * e.effect.low, sign * e.effect.high))
        low, high = map(number_text, bounds)
        interval = f"95 % interval {low} to {high}, {over}"
    return f"{metric_title(claim.left.metric)} is {size} {other}{where} ({interval})"


def population_text(e: ClaimEvidence) -> str:
    """Return the population of a verdict: these items, or the tasks they were drawn from."""
    if e.over_items:
        return "It speaks of all seeds and of the tasks that the items were drawn from."
    if e.num_items:
        return f"It speaks of all seeds on these {e.num_items} items, not of other items."
    return "It speaks of all seeds on these evaluations."


def _advice_text(finding: JudgedClaim, e: ClaimEvidence) -> str:
    if finding.num_seeds < 2 and e.effect is not None:
        return "One seed has no interval: at least 1 more is needed to say anything."
    if finding.more_seeds is None:
        few = finding.more_seeds_range[0] if finding.more_seeds_range else None
        least = f" These seeds leave open that {few} are enough." if few is not None else ""
        return f"More seeds would not settle it if it stays as seen here.{least}"
    more = counted(finding.more_seeds, "more seed")
    if finding.num_seeds < 2:
        return f"At least {more} would be needed."
    text = f"About {more} would settle it if effect and spread stay as seen here"
    if finding.more_seeds_range is None:
        return f"{text}."
    few, many = finding.more_seeds_range
    if few == many:
        return f"{text}."
    ends = "any number up to a thousand" if few is None else str(few)
    most = "more than a thousand" if many is None else str(many)
    return f"{text}; these seeds leave open {ends} to {most}."


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
