"""How far apart libraries are on the same questions, seed by seed, and what that says.

Libraries that mean the same by a question share one training run at micro scale: their difference
is 0 by identity, not by measurement.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from orchestrator.compare.estimates import ALPHA, Estimate, estimate, holm, seeds_needed, tails
from orchestrator.compare.libraries import Question
from orchestrator.compare.phrases import counted
from orchestrator.compare.runs import Run

MARGIN = 0.03
"""Accuracies closer than this are called indistinguishable, where the interval says so."""

Value = Callable[[str], float | None]
"""Cell id -> final value of the metric that is compared; None: not there."""


@dataclass(frozen=True)
class Gap:
    """`right` minus `left` on one question, paired on seeds."""

    question: str
    left: str
    right: str
    effect: Estimate | None
    """None: no seed is finished in both."""
    same: bool
    """One training run under both names."""
    p: float = 1.0
    p_corrected: float = 1.0

    @property
    def verdict(self) -> str:
        """`same mathematics`, `differs`, `indistinguishable` (surely closer than MARGIN, as where
        the 95 % interval lies within it),
        or `underpowered` with the seeds that would tell."""
        if self.same:
            return "same mathematics"
        if self.effect is None:
            return "not comparable yet"
        if self.p_corrected < ALPHA:
            return "differs"
        if max(tails(self.effect, -MARGIN)[0], tails(self.effect, MARGIN)[1]) < ALPHA / 2:
            return "indistinguishable"
        more = self._more_seeds()
        return f"underpowered ({more})" if more else "underpowered"

    def _more_seeds(self) -> str:
        """How many seeds more would tell, if effect and spread stay as seen."""
        effect = self.effect
        if effect is None or effect.n < 2:
            return "2 seeds or more are needed"
        apart = max(abs(effect.mean), MARGIN - abs(effect.mean))
        needed = seeds_needed(apart, effect.sd)
        return f"about {counted(max(1, needed - effect.n), 'more seed')}" if needed else ""


def gaps(found: Sequence[Question], base: str, value: Value) -> list[Gap]:
    """Every library against `base`, question by question, with Holm's correction over all."""
    listed = [
        _gap(question, base, library, value)
        for question in found
        if base in question.asked
        for library in question.asked
        if library != base
    ]
    return corrected(listed)


def overall(found: Sequence[Question], value: Value) -> list[Gap]:
    """Every pair of libraries, over all questions both were asked: the mean over them, by seed."""
    libraries = list(dict.fromkeys(name for q in found for name in q.asked))
    listed = []
    for at, left in enumerate(libraries):
        for right in libraries[at + 1 :]:
            both = [q for q in found if left in q.asked and right in q.asked]
            same = bool(both) and all(_is_one_run(q, left, right) for q in both)
            values = [_by_seed(q, left, right, value) for q in both]
            seeds = set.intersection(*(set(v) for v in values)) if values else set()
            effect = estimate(fmean(v[s] for v in values) for s in seeds) if seeds else None
            name = f"all {len(both)} questions"
            listed.append(Gap(name, left, right, effect, same, _p(effect)))
    return corrected(listed)


def corrected(listed: Sequence[Gap]) -> list[Gap]:
    """With p-values corrected over those that were measured."""
    measured = [gap for gap in listed if gap.effect is not None and not gap.same]
    told = dict(zip(map(id, measured), holm([gap.p for gap in measured]), strict=True))
    return [replace(gap, p_corrected=told.get(id(gap), 1.0)) for gap in listed]


def _gap(question: Question, left: str, right: str, value: Value) -> Gap:
    by_seed = _by_seed(question, left, right, value)
    effect = estimate(by_seed.values()) if by_seed else None
    same = _is_one_run(question, left, right)
    return Gap(question.name, left, right, effect, same, _p(effect))


def _p(effect: Estimate | None) -> float:
    return 1.0 if effect is None or effect.n < 2 else min(1.0, 2 * min(tails(effect, 0.0)))


def _is_one_run(question: Question, left: str, right: str) -> bool:
    one, other = question.asked[left], question.asked[right]
    return all(one[s].id == other[s].id for s in one.keys() & other.keys())


def _by_seed(question: Question, left: str, right: str, value: Value) -> dict[int, float]:
    one, other = question.asked[left], question.asked[right]
    pairs = {s: (value(one[s].id), value(other[s].id)) for s in sorted(one.keys() & other.keys())}
    return {s: b - a for s, (a, b) in pairs.items() if a is not None and b is not None}


def finals(
    question: Question, library: str, value: Value, *, is_share: bool = False
) -> Estimate | None:
    """A library's mean over the seeds that are finished; a share lies in [0, 1]."""
    values = [value(each.id) for each in question.asked[library].values()]
    known = [v for v in values if v is not None]
    if not known:
        return None
    found = estimate(known)
    return found.within(0.0, 1.0) if is_share else found


def missing(found: Iterable[Question], value: Value, spec: str) -> list[str]:
    """Sentences: seeds that a library lacks and another has, and what makes them comparable."""
    said: dict[tuple[str, str], list[str]] = {}
    for question in found:
        seeds = sorted({seed for each in question.asked.values() for seed in each})
        for library, each in question.asked.items():
            if lacks := [s for s in seeds if s not in each]:
                what = f"declares no seed {_listed(lacks)}: give it the seeds of the others in the "
                said.setdefault((library, what + "spec"), []).append(question.name)
            if lacks := [s for s in seeds if s in each and value(each[s].id) is None]:
                name = library.partition("@")[0]
                wanted = ",".join(map(str, lacks))
                what = f"has no result for seed {_listed(lacks)}: run `orch run {spec} -w backend="
                said.setdefault((library, f"{what}{name} -w seed={wanted}`"), []).append(
                    question.name
                )
    return [f"{library} {what} (in {_some(where)})" for (library, what), where in said.items()]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _listed(seeds: Sequence[int]) -> str:
    return " and ".join([", ".join(map(str, seeds[:-1])), str(seeds[-1])]).removeprefix(" and ")


def value_in(runs: Iterable[Run], metric: str) -> Value:
    """Final values of a metric by cell id."""
    by_id = {run.record.cell.id: run.finals.get(metric) for run in runs}
    return by_id.get
