"""What a search varies: ranges and choices of spec fields, as written and as Optuna takes them.

kl.beta: log(0.001, 1)               a number, on a logarithmic scale
optimizer.weight_decay: uniform(0, 0.1)
batch.num_minibatches: [1, 2, 4]     alternatives, as an axis of a study would list them
kl.beta: {low: 0.001, high: 1, log: true}
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from orchestrator.errors import did_you_mean
from orchestrator.fields import FIELDS, LABELS, text_of, unknown
from orchestrator.sentences import shown

DIGITS = 4
"""A proposed number is rounded to so many significant digits: it stays readable in names, and a
value that was tried once is the same cell when it comes again."""

_CALL = re.compile(r"(log|uniform)\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)")
_GRAMMAR = "log(low, high), uniform(low, high) or a list of alternatives"


class Dimension(NamedTuple):
    """One field a search varies: a range, or alternatives (label -> value)."""

    field: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    """Only whole numbers."""
    choices: Mapping[str, Any] | None = None

    @property
    def is_range(self) -> bool:
        return self.choices is None

    def value(self, proposed: Any) -> Any:
        """What the field is set to for a proposal of the sampler's."""
        if self.choices is not None:
            return self.choices[proposed]
        if self.whole:
            return int(proposed)
        return min(self.high, max(self.low, float(f"{float(proposed):.{DIGITS}g}")))

    def param(self, value: Any) -> Any:
        """The sampler's name for a field's value. Raises LookupError if it lies outside."""
        if self.choices is not None:
            for label, choice in self.choices.items():
                if choice == value:
                    return label
            raise LookupError(value)
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise LookupError(value)
        return value

    def plain(self) -> object:
        """As JSON; equal for equal dimensions, however they were written."""
        if self.choices is not None:
            return dict(self.choices)
        return {"low": self.low, "high": self.high, "log": self.log}

    def __str__(self) -> str:
        if self.choices is not None:
            return ", ".join(self.choices)
        return f"{'log' if self.log else 'uniform'}({self.low:g}, {self.high:g})"


def dimension(field: str, written: object) -> Dimension:
    """Reads one entry of `tune.space`. Raises ValueError with a sentence."""
    name = LABELS.get(field) or field
    if name == "seed":
        raise ValueError("a search does not choose the seed; write `tune.seeds: [...]`")
    if name not in FIELDS:
        raise ValueError(unknown(field))
    if isinstance(written, list | tuple):
        return Dimension(name, choices=_choices(field, written))
    low, high, log = _range(field, written)
    if FIELDS[name].section is not None or not _is_number(name):
        raise ValueError(f"{field} is no number, so it has no range; list its alternatives")
    whole = float not in _types(name)
    if whole and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{field} takes whole numbers; got {low:g} to {high:g}")
    if low >= high:
        told = "is empty" if low == high else "is inverted"
        raise ValueError(f"the range of {field} {told}: low must be below high; got {low:g} "
                         f"and {high:g}")  # fmt: skip
    if log and low <= 0:
        raise ValueError(f"a logarithmic scale has no {low:g}; write {field}: uniform({low:g}, "
                         f"{high:g}), or start above 0")  # fmt: skip
    return Dimension(name, low, high, log, whole)


def distributions(space: Sequence[Dimension]) -> dict[str, Any]:
    """The space as Optuna takes it."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, Any] = {}
    for each in space:
        if each.choices is not None:
            found[each.field] = CategoricalDistribution(tuple(each.choices))
        elif each.whole:
            found[each.field] = IntDistribution(int(each.low), int(each.high), log=each.log)
        else:
            found[each.field] = FloatDistribution(each.low, each.high, log=each.log)
    return found


def _choices(field: str, written: Sequence[object]) -> dict[str, Any]:
    if not written:
        raise ValueError(f"the space of {field} is empty; list at least two alternatives")
    labels = [text_of(value) for value in written]
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise ValueError(f"{label} is among the alternatives of {field} twice")
    return dict(zip(labels, written, strict=True))


def _range(field: str, written: object) -> tuple[float, float, bool]:
    if isinstance(written, str):
        call = _CALL.fullmatch(written.strip())
        if call is None:
            raise ValueError(f"the space of {field} is {_GRAMMAR}; got {shown(written)}")
        return _number(field, call[2]), _number(field, call[3]), call[1] == "log"
    if isinstance(written, Mapping):
        for key in written:
            if key not in ("low", "high", "log"):
                hint = did_you_mean(str(key), ("low", "high", "log"))
                raise ValueError(f"the range of {field} has low, high and log, no {key!r}{hint}")
        if "low" not in written or "high" not in written:
            raise ValueError(f"the range of {field} needs low and high")
        log = written.get("log", False)
        if not isinstance(log, bool):
            raise ValueError(f"log of {field} must be true or false; got {shown(log)}")
        return _number(field, written["low"]), _number(field, written["high"]), log
    raise ValueError(f"the space of {field} is {_GRAMMAR}; got {shown(written)}")


def _number(field: str, written: object) -> float:
    try:
        value = float(written)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if isinstance(written, bool) or not abs(value) < float("inf"):
        raise ValueError(f"the ends of {field} are finite numbers; got {shown(written)}")
    return value


def _types(field: str) -> set[object]:
    """The types an annotation allows, at any depth."""
    found: set[object] = set()
    stack: list[Any] = [FIELDS[field].annotation]
    while stack:
        one = stack.pop()
        stack += get_args(one)
        found.add(one)
    return found


def _is_number(field: str) -> bool:
    return bool(_types(field) & {int, float}) and bool not in _types(field)
