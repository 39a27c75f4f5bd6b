"""The grammar of claims: what an experiment is meant to test, as text that can be judged.

    claim      = side relation (side | number | "predicted") ["+-" number] {condition}
    side       = metric ["[" choice {"," choice} "]"]
    relation   = ">" | ">=" | "<" | "<=" | "~"
    condition  = "at" choice {("and" | ",") choice} | "in" "study" (name | list)
    choice     = axis ("=" value | "in" list)
    list       = "[" value {"," value} "]"

`eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss] at beta in [0.05, 0.1]`
`eval/accuracy_in_domain[kl=k1.reward] ~ predicted +- 0.05 in study onpolicy`
`collapse[kl=k3.reward] > collapse[kl=none] at beta=1`

`collapse` is the share of runs that collapsed; any other metric is a canonical name
(orchestrator/names.py). `eval/in_domain/mean` and `eval/out_of_domain/mean` are mean@k over the
tasks of a domain whatever k ran, and hold at every scale; `mean@32` needs k = 32. An axis is a
field as `--where` knows it (`kl`, `beta`, `model`, `kl.estimator`, ...). `~` says "equal within the
margin", `>=` with a margin "not lower by more than the margin". `predicted` is the backend's closed
form of the same settings.
"""

import re
from dataclasses import dataclass
from typing import Literal, NoReturn, cast

from orchestrator.errors import did_you_mean
from orchestrator.names import METRICS
from orchestrator.select import OF_A_CELL, term

Relation = Literal[">", ">=", "<", "<=", "~"]
COLLAPSE = "collapse"

_METRIC = re.compile(r"[A-Za-z_][\w./@-]*")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_VALUE = re.compile(r"[A-Za-z0-9][\w.+-]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_RELATION = re.compile(r">=|<=|>|<|~")
_MARGIN = re.compile(r"\+-|±|\+/-")
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Where:
    """An axis takes one of these values."""

    axis: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        """As a `--where` term: `kl.beta=0.05,0.1`."""
        return f"{self.axis}={','.join(self.values)}"

    def each(self) -> "tuple[Where, ...]":
        """One for each value."""
        return tuple(Where(self.axis, (value,)) for value in self.values)


@dataclass(frozen=True, slots=True)
class Side:
    """A metric, final value of the runs that hold these axes."""

    metric: str
    where: tuple[Where, ...] = ()

    def __str__(self) -> str:
        return f"{self.metric}[{', '.join(map(str, self.where))}]" if self.where else self.metric


@dataclass(frozen=True, slots=True)
class Claim:
    """`left relation right`, in every setting that `at` and `studies` leave."""

    text: str
    left: Side
    relation: Relation
    right: "Side | float | Literal['predicted']"
    margin: float = 0.0
    at: tuple[Where, ...] = ()
    studies: tuple[str, ...] = ()
    """Empty: every study."""

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.left, self.right) if isinstance(self.right, Side) else (self.left,)


def parse(text: str) -> Claim:
    """The claim a text states. Raises ValueError: the place, and what was expected there."""
    reader = _Reader(text)
    left = _side(reader)
    relation = cast(
        "Relation", reader.take(_RELATION, "a relation (>, >=, <, <= or ~) after the left side")
    )
    right = _right(reader)
    margin = _margin(reader, relation)
    at, studies = _conditions(reader)
    _check_collapse(left, right, margin)
    return Claim(" ".join(text.split()), left, relation, right, margin, at, studies)


class _Reader:
    """The text and how far it was read."""

    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.skip()

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def peek(self, pattern: re.Pattern[str] | str) -> str | None:
        """What stands here, if it is of the pattern or starts with the literal text."""
        if isinstance(pattern, str):
            return pattern if self.text.startswith(pattern, self.at) else None
        found = pattern.match(self.text, self.at)
        return found.group() if found else None

    def accept(self, pattern: re.Pattern[str] | str) -> str | None:
        found = self.peek(pattern)
        if found is not None:
            self.at += len(found)
            self.skip()
        return found

    def take(self, pattern: re.Pattern[str] | str, expected: str) -> str:
        found = self.accept(pattern)
        return self.fail(expected) if found is None else found

    def word(self, word: str) -> bool:
        return self.peek(_WORD) == word and self.accept(_WORD) is not None

    def fail(self, expected: str) -> NoReturn:
        rest = self.text[self.at : self.at + 24]
        found = f"'{rest}'" if rest else "the end"
        raise ValueError(f"expected {expected} at character {self.at + 1}, found {found}")


def _side(reader: _Reader) -> Side:
    metric = reader.take(_METRIC, f"a metric ({COLLAPSE}, eval/in_domain/mean, ...)")
    _check_metric(metric)
    where: list[Where] = []
    if reader.accept("["):
        while True:
            where.append(_choice(reader))
            if reader.accept("]"):
                break
            reader.take(",", "',' or ']'")
    return Side(metric, tuple(where))


def _right(reader: _Reader) -> "Side | float | Literal['predicted']":
    number = reader.accept(_NUMBER)
    if number is not None:
        return float(number)
    return "predicted" if reader.word("predicted") else _side(reader)


def _margin(reader: _Reader, relation: Relation) -> float:
    if not reader.accept(_MARGIN):
        if relation == "~":
            reader.fail("a margin ('+- 0.02'), since '~' says equal within one,")
        return 0.0
    if relation in (">", "<"):
        raise ValueError(f"'{relation}' takes no margin; use '{relation}=' for 'within a margin'")
    margin = float(reader.take(_NUMBER, "a number after '+-'"))
    if margin <= 0:
        raise ValueError(f"a margin is a positive number; got {margin:g}")
    return margin


def _conditions(reader: _Reader) -> tuple[tuple[Where, ...], tuple[str, ...]]:
    at: list[Where] = []
    studies: list[str] = []
    while reader.at < len(reader.text):
        if reader.word("at"):
            at.append(_choice(reader))
            while reader.accept(",") or reader.word("and"):
                at.append(_choice(reader))
        elif reader.word("in"):
            if not reader.word("study"):
                reader.fail("'study' after 'in'")
            studies += _values(reader)
        else:
            reader.fail("'at AXIS=VALUE', 'in study NAME' or the end")
    return tuple(at), tuple(studies)


def _choice(reader: _Reader) -> Where:
    axis = reader.take(_NAME, "an axis (kl, beta, model, ...)")
    if reader.word("in"):
        if not reader.peek("["):
            reader.fail("a list ('[0.05, 0.1]') after 'in'")
        return _checked(axis, _values(reader))
    reader.take("=", f"'=' or 'in' after the axis '{axis}'")
    return _checked(axis, (reader.take(_VALUE, f"a value of the axis '{axis}'"),))


def _checked(axis: str, values: tuple[str, ...]) -> Where:
    if axis in OF_A_CELL:
        raise ValueError(f"a claim cannot ask for '{axis}'; it names fields, or `in study NAME`")
    term(axis, "=", values)
    return Where(axis, values)


def _values(reader: _Reader) -> tuple[str, ...]:
    if not reader.accept("["):
        return (reader.take(_VALUE, "a name or a list"),)
    values = [reader.take(_VALUE, "a value of the list")]
    while not reader.accept("]"):
        reader.take(",", "',' or ']'")
        values.append(reader.take(_VALUE, "a value of the list"))
    return tuple(values)


def _check_collapse(left: Side, right: "Side | float | str", margin: float) -> None:
    collapses = [isinstance(side, Side) and side.metric == COLLAPSE for side in (left, right)]
    if not any(collapses) or (collapses[0] and isinstance(right, float)):
        return
    if not all(collapses):
        raise ValueError("collapse is a share of runs; compare it with collapse or with a number")
    if margin:
        raise ValueError(
            "two shares of collapsed runs are compared by > or <, without a margin; to say that "
            "runs are stable, compare one with a number: collapse[...] <= 0.1"
        )


def _check_metric(metric: str) -> None:
    parts = metric.split("/")
    evaluated = parts[0] == "eval" and len(parts) == 3 and all(parts)
    if metric != COLLAPSE and metric not in METRICS and not evaluated:
        raise ValueError(
            f"no metric is called '{metric}'{did_you_mean(metric, [COLLAPSE, *METRICS])}; a metric "
            "is collapse, eval/<task>/<metric> or a name of `orchestrator/names.py`"
        )
