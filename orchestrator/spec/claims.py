"""The grammar of claims: what an experiment is meant to test, as text that can be judged.

    claim      = side relation (side | number | "predicted") ["+-" number] {condition}
    side       = metric ["[" choice {"," choice} "]"]
    relation   = ">" | ">=" | "<" | "<=" | "~"
    condition  = "at" place {("and" | ",") place} | "in" "study" (name | list)
    place      = choice | "every" axis | "equal" metric
    choice     = axis ("=" value | "in" list)
    list       = "[" value {"," value} "]"

`eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss] at beta in [0.05, 0.1]`
`eval/accuracy_in_domain[kl=k1.reward] ~ predicted +- 0.05 in study onpolicy`
`collapse[kl=k3.reward] > collapse[kl=none] at beta=1`

`collapse` is the share of runs that collapsed, `unstable` the share of those that collapsed or were
unstable (orchestrator/analysis/phases.py). Accuracies are those of runs that did not collapse.
`at every beta` holds if it holds at each beta; without it, the effect is the mean over them.
`at equal eval/in_domain/kl_reverse` compares the two curves that the betas of a side draw: the mean
distance of their points from the other curve, interpolated, where they overlap.
`unstable[study=a] > unstable[study=b]` compares two studies in the settings that they share.

`works` is the share of runs that trained to their
end, did not collapse and were evaluated as the spec asks; a claim on it (`works >= 1`) is counted
on these very runs and infers nothing about others. Any other metric is a canonical name
(orchestrator/metrics/names.py). `eval/in_domain/mean` and `eval/out_of_domain/mean` are mean@k over
the tasks of a domain, for the k that was run, at every scale; `mean@32` needs k = 32. An axis is a
field as in `--where` (`kl`, `beta`, `model`, `kl.estimator`, ...). `~` means "equal within the
margin", `>=` with a margin means "not lower by more than the margin". `predicted` is the value of
the backend's closed form for the same settings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NoReturn, TypeVar, cast

from orchestrator.errors import did_you_mean
from orchestrator.metrics.names import METRICS
from orchestrator.spec.expand import Expansion, Pointer, SpecProblem
from orchestrator.spec.select import OF_A_CELL, term

Relation = Literal[">", ">=", "<", "<=", "~"]
COLLAPSE, UNSTABLE = "collapse", "unstable"
SHARES = (COLLAPSE, UNSTABLE)
"""Metrics that are shares of runs."""
WORKS = "works"

_OF_A_TERM = ("beta", "kl.beta", "kl.placement")

_METRIC = r"[A-Za-z_][\w./@-]*"
_NAME = r"[A-Za-z_][\w.]*"
_VALUE = r"[A-Za-z0-9][\w.+-]*"
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_RELATION = r">=|<=|>|<|~"
_MARGIN = r"\+-|±|\+/-"


@dataclass(frozen=True, slots=True)
class AxisCondition:
    """An axis takes one of these values."""

    axis: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        """Return the condition as a `--where` term: `kl.beta=0.05,0.1`."""
        return f"{self.axis}={','.join(self.values)}"

    def each(self) -> "tuple[AxisCondition, ...]":
        """Return one condition per value."""
        return tuple(AxisCondition(self.axis, (value,)) for value in self.values)


@dataclass(frozen=True, slots=True)
class ClaimSide:
    """One side of a claim: the final value of a metric, over the runs that satisfy the
    conditions."""

    metric: str
    where: tuple[AxisCondition, ...] = ()

    def __str__(self) -> str:
        return f"{self.metric}[{', '.join(map(str, self.where))}]" if self.where else self.metric

    @property
    def studies(self) -> tuple[str, ...]:
        """Return the studies that the conditions name."""
        return tuple(name for each in self.where if each.axis == "study" for name in each.values)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim `left relation right`. It is judged in every setting that `at` and `studies`
    allow."""

    text: str
    left: ClaimSide
    relation: Relation
    right: "ClaimSide | float | Literal['predicted']"
    margin: float = 0.0
    at: tuple[AxisCondition, ...] = ()
    studies: tuple[str, ...] = ()
    """Empty: every study."""
    every: str = ""
    """The axis at each value of which the claim has to hold; empty: none."""
    equal: str = ""
    """The metric at equal values of which the sides are compared; empty: at equal settings."""

    @property
    def sides(self) -> tuple[ClaimSide, ...]:
        """Return the sides that name results: only the left one if the right side is a number or
        `predicted`."""
        return (self.left, self.right) if isinstance(self.right, ClaimSide) else (self.left,)

    @property
    def studies_compared(self) -> tuple[str, ...]:
        """Return the studies that the sides name; empty for a claim within studies."""
        return tuple(name for side in self.sides for name in side.studies)


def parse(text: str) -> Claim:
    """Return the claim that a text states. Raise ValueError with the place and what it expected."""
    reader = _Reader(text)
    left = _side(reader)
    relation = cast(
        "Relation", reader.take(_RELATION, "a relation (>, >=, <, <= or ~) after the left side")
    )
    right = _right(reader)
    margin = _margin(reader, relation)
    at, studies, every, equal = _conditions(reader)
    _check_shares(left, right, margin)
    _check_works(left, relation, right)
    compared = isinstance(right, ClaimSide) and right.metric == left.metric
    if equal and (every or left.metric in (*SHARES, WORKS) or not compared):
        raise ValueError(
            "`at equal` is for a claim that compares one evaluated metric of two sides"
        )
    words = " ".join(text.split())
    return Claim(words, left, relation, right, margin, at, studies, every, equal)


Item = TypeVar("Item")


class _Reader:
    """A reader of a claim's text, with its position in the text."""

    def __init__(self, text: str):
        self.text, self.at = text, len(text) - len(text.lstrip())

    def accept(self, pattern: str) -> str | None:
        """Return the text at the position if it matches the pattern, and go beyond it."""
        match = re.compile(rf"({pattern})\s*").match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match and match[1]

    def take(self, pattern: str, expected: str) -> str:
        return self.accept(pattern) or self.fail(expected)

    def word(self, word: str) -> bool:
        return self.accept(rf"{word}(?![A-Za-z])") is not None

    def fail(self, expected: str) -> NoReturn:
        rest = self.text[self.at : self.at + 24]
        actual = f"'{rest}'" if rest else "the end"
        raise ValueError(f"expected {expected} at character {self.at + 1}, found {actual}")


def _side(reader: _Reader) -> ClaimSide:
    metric = reader.take(_METRIC, f"a metric ({COLLAPSE}, eval/in_domain/mean, ...)")
    _check_metric(metric)
    where: list[AxisCondition] = []
    if reader.accept(r"\["):
        where = _items(reader, lambda: _choice(reader, of_side=True))
    return ClaimSide(metric, tuple(where))


def _right(reader: _Reader) -> "ClaimSide | float | Literal['predicted']":
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


def _conditions(
    reader: _Reader,
) -> tuple[tuple[AxisCondition, ...], tuple[str, ...], str, str]:
    every, equal = "", ""
    at: list[AxisCondition] = []
    studies: list[str] = []
    while reader.at < len(reader.text):
        if reader.word("at"):
            while True:
                if reader.word("every"):
                    every = reader.take(_NAME, "an axis (beta, model, ...)")
                    term(every, "=", ("0",))
                elif reader.word("equal"):
                    equal = reader.take(_METRIC, "a metric (eval/in_domain/kl_reverse, ...)")
                    _check_metric(equal)
                else:
                    at.append(_choice(reader))
                if not (reader.accept(",") or reader.word("and")):
                    break
        elif reader.word("in"):
            if not reader.word("study"):
                reader.fail("'study' after 'in'")
            name = "a name or a list"
            studies += _list(reader) if reader.accept(r"\[") else (reader.take(_VALUE, name),)
        else:
            reader.fail("'at AXIS=VALUE', 'at every AXIS', 'in study NAME' or the end")
    return tuple(at), tuple(studies), every, equal


def _choice(reader: _Reader, *, of_side: bool = False) -> AxisCondition:
    axis = reader.take(_NAME, "an axis (kl, beta, model, ...)")
    if reader.word("in"):
        reader.take(r"\[", "a list ('[0.05, 0.1]') after 'in'")
        values = _list(reader)
    else:
        reader.take("=", f"'=' or 'in' after the axis '{axis}'")
        values = (reader.take(_VALUE, f"a value of the axis '{axis}'"),)
    if axis in OF_A_CELL and not (of_side and axis == "study"):
        raise ValueError(f"a claim cannot ask for '{axis}'; it names fields, or `in study NAME`")
    term(axis, "=", values)
    return AxisCondition(axis, values)


def _list(reader: _Reader) -> tuple[str, ...]:
    return tuple(_items(reader, lambda: reader.take(_VALUE, "a value of the list")))


def _items(reader: _Reader, item: Callable[[], Item]) -> list[Item]:
    """Return the items of a list up to its end; `item` reads one."""
    items = [item()]
    while not reader.accept("]"):
        reader.take(",", "',' or ']'")
        items.append(item())
    return items


def _check_shares(left: ClaimSide, right: "ClaimSide | float | str", margin: float) -> None:
    metrics = [side.metric if isinstance(side, ClaimSide) else "" for side in (left, right)]
    share = next((metric for metric in metrics if metric in SHARES), None)
    if share is None or (metrics[0] in SHARES and isinstance(right, float)):
        return
    if metrics[0] != metrics[1]:
        raise ValueError(f"{share} is a share of runs; compare it with {share} or with a number")
    if margin:
        raise ValueError(
            "two shares of runs are compared by > or <, without a margin; to say that "
            f"runs are stable, compare one with a number: {share}[...] <= 0.1"
        )


def _check_works(left: ClaimSide, relation: str, right: "ClaimSide | float | str") -> None:
    if WORKS not in (left.metric, right.metric if isinstance(right, ClaimSide) else ""):
        return
    share = isinstance(right, float) and 0 < right <= 1
    if left.metric != WORKS or relation != ">=" or not share:
        raise ValueError(
            f"{WORKS} is the share of runs that trained and were evaluated; say how many are "
            f"enough: '{WORKS} >= 1', or '{WORKS}[kl=none] >= 0.9'"
        )


def _check_metric(metric: str) -> None:
    parts = metric.split("/")
    evaluated = parts[0] == "eval" and len(parts) == 3 and all(parts)
    if metric not in (*SHARES, WORKS) and metric not in METRICS and not evaluated:
        known = [*SHARES, WORKS, *METRICS]
        raise ValueError(
            f"no metric is called '{metric}'{did_you_mean(metric, known)}; a metric "
            "is collapse, unstable, works, eval/<task>/<metric> or a name of "
            "`orchestrator/metrics/names.py`"
        )


def digests(claims: Mapping[str, str], families: Mapping[str, str]) -> dict[str, str]:
    """Return name -> digest of a claim's words and of the family that its p is corrected in."""
    return {
        name: sha256(f"{families.get(name, '')} {' '.join(text.split())}".encode()).hexdigest()[:12]
        for name, text in claims.items()
    }


def check_claims(
    claims: Mapping[str, str],
    done: Expansion,
    studies: Sequence[str],
    problems: list[SpecProblem],
    *,
    strict: bool,
    at: Pointer = (),
) -> None:
    """Report claims that cannot be parsed, and claims on names that the spec does not declare.

    strict: a claim about no cell is a fault. It is no fault once overrides have reduced the grid,
    nor where the studies have faults. at: the claims' family.
    """
    for name, text in claims.items():
        place: Pointer = ("claims", *at, name)
        try:
            claim = parse(text)
        except ValueError as error:
            problems.append(SpecProblem(f"claim '{name}': {error}", place))
            continue
        for study in (*claim.studies, *claim.studies_compared):
            if study not in studies and strict:
                hint = did_you_mean(study, studies)
                problems.append(
                    SpecProblem(f"claim '{name}': no study is called '{study}'{hint}", place)
                )
        for side in claim.sides:
            meant = [
                (w.axis, term(w.axis, "=", w.values))
                for w in (*side.where, *claim.at)
                if w.axis != "study"
            ]
            own = set(side.studies or claim.studies or studies)
            some = any(
                all(
                    condition.holds((cell.axes.get(axis, ""),))
                    # a run without a KL term is compared at every beta
                    or (axis in _OF_A_TERM and cell.settings.kl.placement is None)
                    for axis, condition in meant
                )
                and not own.isdisjoint(cell.studies)
                for cell in done.cells
            )
            if strict and done.cells and not some and not done.problems:
                problems.append(SpecProblem(f"claim '{name}': no cell has {side}", place))
