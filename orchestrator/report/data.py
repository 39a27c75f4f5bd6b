"""What the figures draw, as small JSON: values rounded, step grids stored once.

    {"metrics": {name: label},
     "grids": [[step, ...], ...],
     "configurations": [{
        "study", "setting", "kl", "beta": number or null, "name", "seeds": declared,
        "finals": {metric: [mean, low, high, [value of each seed]]},
        "curves": {metric: {"g": grid, "s": {seed: [...]}, "m": [...], "l": [...], "h": [...]}},
        "collapsed": [count, ended], "predicted": number or null}]}

`l` and `h` are left out with one seed, `m` too (it is that seed). What is no number is null.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.compare import Configuration
from orchestrator.compare.curves import Curve
from orchestrator.compare.estimates import Estimate
from orchestrator.compare.words import metric as label_of
from orchestrator.names import METRICS

DIGITS = 4
CURVES = (
    "eval/in_domain/mean", "eval/out_of_domain/mean", "eval/accuracy_in_domain",
    "eval/accuracy_out_of_domain", "train/reward_mean", "train/kl_reference", "eval/kl_reverse",
    "eval/kl_forward", "eval/entropy", "train/entropy", "train/grad_norm",
    "rollout/response_tokens",
)  # fmt: skip
"""The curves a reader can choose from, in this order."""


def data(found: Sequence[Configuration]) -> dict[str, Any]:
    """See above."""
    grids: dict[tuple[int, ...], int] = {}
    settings = setting_names(found)
    plain = [
        {
            "study": c.study, "setting": setting, "kl": c.kl, "beta": c.beta, "name": c.name,
            "seeds": len(c.runs),
            "finals": {m: _final(c, m, e) for m, e in c.finals.items() if m.startswith("eval/")},
            "curves": {m: _curve(c.curves[m], grids) for m in CURVES if drawn(c, m)},
            "collapsed": [c.collapse.count, c.collapse.n],
            "predicted": rounded(c.predicted),
        }
        for c, setting in zip(found, settings, strict=True)
    ]  # fmt: skip
    used = {m for c in found for m in (*c.finals, *c.curves) if m in CURVES or m[:5] == "eval/"}
    return {
        "metrics": {m: label(m) for m in sorted(used)},
        "grids": [list(steps) for steps in grids],
        "configurations": plain,
    }


def drawn(c: Configuration, metric: str) -> bool:
    """Whether there is a curve to draw: a single point is told as a final value."""
    return metric in c.curves and len(c.curves[metric].steps) > 1


def label(metric: str) -> str:
    """A metric's name on an axis, with its unit."""
    unit = METRICS[metric].unit if metric in METRICS else ""
    text = label_of(metric)
    return f"{text} ({unit})" if unit else text


def setting_names(found: Sequence[Configuration]) -> list[str]:
    """What tells each configuration's setting from the others of its study: `qwen2.5-7b`."""
    return [_setting_name(c, [other for other in found if other.study == c.study]) for c in found]


def _setting_name(c: Configuration, siblings: Iterable[Configuration]) -> str:
    values: dict[str, set[str]] = {}
    for other in siblings:
        for trait, value in other.traits.items():
            values.setdefault(trait, set()).add(value)
    named = {
        trait: v for trait, v in c.traits.items() if trait == "model" or len(values[trait]) > 1
    }
    if "model" in named and "data" in named and len(values["data"]) == len(values["model"]):
        return f"{named.pop('model')} on {named.pop('data')}" + _rest(named)
    return named.pop("model", "") + _rest(named)


def _rest(traits: Mapping[str, str]) -> str:
    return "".join(f", {trait} {value}" for trait, value in traits.items())


def _final(c: Configuration, metric: str, found: Estimate) -> list[Any]:
    seeds = [rounded(value) for value in c.by_seed(metric).values()]
    return [rounded(found.mean), rounded(found.low), rounded(found.high), seeds]


def _curve(curve: Curve, grids: dict[tuple[int, ...], int]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "g": grids.setdefault(curve.steps, len(grids)),
        "s": {str(seed): [rounded(v) for v in values] for seed, values in curve.seeds.items()},
    }
    if len(curve.seeds) > 1:
        for key, values in (("m", curve.mean), ("l", curve.low), ("h", curve.high)):
            plain[key] = [rounded(v) for v in values]
    return plain


def rounded(value: float | None) -> float | int | None:
    """Rounded to DIGITS significant digits; None for what is no finite number."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
