"""Numbers and metrics as text: estimates, shares, p-values, counts, lists, titles of metrics."""

import math
from collections.abc import Iterable

from orchestrator.analysis.stats import Estimate, Rate
from orchestrator.metrics.names import METRICS, is_divergence
from orchestrator.spec.claims import COLLAPSE, UNSTABLE
from orchestrator.spec.sentences import MOST_NAMED as MOST_NAMED
from orchestrator.spec.sentences import counted as counted
from orchestrator.spec.sentences import few as few

_SHORT = {
    "eval/accuracy_in_domain": "exact in-domain accuracy",
    "eval/accuracy_out_of_domain": "exact out-of-domain accuracy",
    "eval/kl_forward": "forward KL, reference to policy",
    "eval/kl_reverse": "reverse KL, policy to reference",
    "eval/entropy": "entropy of the policy",
    "eval/validation/mean": "accuracy on the validation set",
    "eval/out_over_in/mean": "accuracy out of domain over accuracy in domain",
    "train/reward_mean": "training reward",
    "train/kl_reference": "training KL to the reference (k1)",
    "train/entropy": "training entropy",
    "train/grad_norm": "gradient norm before clipping",
    "rollout/response_tokens": "response length",
}

_OF_RUNS = {
    COLLAPSE: "the share of collapsed runs",
    UNSTABLE: "the share of collapsed or unstable runs",
}
_DOMAINS = {
    "in_domain": "in-domain accuracy",
    "out_of_domain": "out-of-domain accuracy",
}


def estimate_text(value: Estimate | Rate, *, interval: bool = True, signed: bool = False) -> str:
    """Return an estimate as `0.123 [0.100, 0.146]`, a share as `3 of 12 runs [0.05, 0.57]`."""
    if isinstance(value, Rate):
        text = f"{value.count} of {value.n} runs"
        return f"{text} [{value.low:.2f}, {value.high:.2f}]" if interval else text
    sign = "+" if signed else ""
    # In an interval with a half width of 0.001 or more, a bound of 0.000324 is written as 0.000.
    wide = value.half_width is not None and value.half_width >= 0.001

    def written(number: float) -> str:
        if wide and abs(number) < 0.001:
            return f"{number:{sign}.3f}".replace("-", "−")
        return number_text(number, sign)

    if not interval:
        return written(value.mean)
    if value.low is None or value.high is None:
        return f"{written(value.mean)} (one seed: no interval)"
    return f"{written(value.mean)} [{written(value.low)}, {written(value.high)}]"


def number_text(value: float, sign: str = "") -> str:
    """Return a number with three decimals, or three significant digits if large or small."""
    if not math.isfinite(value):
        return "not a number"
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:{sign}.3f}".replace("-", "−")
    return f"{value:{sign}.3g}".replace("-", "−")


def p_text(p: float | None) -> str:
    """Return a p-value as `p = 0.032`, or `p < 0.001`."""
    if p is None:
        return "no p"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.995 else "p = 1"


def listed(values: Iterable[object]) -> str:
    """Return the values as a list in English: `0`, `0 and 1`, `0, 1 and 2`."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} and {last}" if first else last


def metric_title(name: str) -> str:
    """Return the canonical name of a metric in words, such as `training reward`."""
    if name in _OF_RUNS:
        return _OF_RUNS[name]
    parts = name.split("/")
    if name in _SHORT:
        return _SHORT[name]
    if parts[0] == "eval" and is_divergence(parts[-1]) and len(parts) == 3:
        measure = _SHORT.get(f"eval/{parts[2]}", parts[2].replace("_", " "))
        return f"{measure}, {_DOMAINS.get(parts[1], parts[1]).removesuffix(' accuracy')} prompts"
    if parts[0] == "eval" and len(parts) == 3:
        kind = "" if parts[2] == "mean" else f" ({parts[2]})"
        what, _, k = parts[2].partition("@")
        if what in _COUNTS:
            where = _DOMAINS.get(parts[1], parts[1]).removesuffix(" accuracy")
            return f"{_COUNTS[what].format(k=k)}, {where}"
        return _DOMAINS.get(parts[1], f"accuracy on {parts[1]}") + kind
    return METRICS[name].meaning if name in METRICS else name


_COUNTS = {"distinct": "different answers among {k}", "unboxed": "share of answers without a box"}
