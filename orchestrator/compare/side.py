"""One side of a comparison of libraries: predicted by rehearsals, or observed in the libraries.

The two are never mixed: each has its own records, its own metric and its own differences, and a
page shows them beside each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.compare import gaps
from orchestrator.compare.configurations import IN_DOMAIN, OUT_OF_DOMAIN
from orchestrator.compare.estimates import Estimate
from orchestrator.compare.gaps import Gap, Value, value_in
from orchestrator.compare.libraries import Asked, Question, curve_at, questions
from orchestrator.compare.runs import Run, is_accuracy, measure
from orchestrator.compare.semantics import beta_effective, ledger_gaps, meanings, omitted, refused
from orchestrator.errors import SelectionError
from orchestrator.types import Record, Score

CURVES = ("eval/accuracy_in_domain", "train/reward_mean", "eval/in_domain/mean")
Name = Literal["predicted", "observed"]


@dataclass(frozen=True)
class Side:
    """Questions with the runs that answer them at one scale."""

    name: Name
    questions: tuple[Question, ...]
    runs: Mapping[str, Run]
    """By cell id."""
    metric: str | None
    """The main result; None before anything finished."""

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for q in self.questions for name in q.asked))

    def value(self, metric: str | None = None) -> Value:
        """Final values by cell id."""
        return value_in(self.runs.values(), metric or self.metric or "")


def side(
    name: Name,
    asked: Sequence[Asked],
    records: Sequence[Record],
    scores: Sequence[Score],
    metric: str | None = None,
) -> Side:
    """A side, its main metric the preferred one that any run has, or the one asked for.

    Raises SelectionError where no cell is asked of two libraries.
    """
    runs = {run.record.cell.id: run for run in measure(records, scores)}
    known = {m for run in runs.values() for m in run.finals}
    if metric is not None and known and metric not in known:
        raise SelectionError(f"no run measured {metric} (there are: {', '.join(sorted(known))})")
    chosen = metric or next((m for m in IN_DOMAIN if m in known), None)
    return Side(name, tuple(questions(asked)), runs, chosen)


def plain(found: Side, base: str, spec: str) -> dict[str, Any]:
    """Everything a page says of one side, as plain data."""
    known = {m for run in found.runs.values() for m in run.finals}
    outside = next((m for m in OUT_OF_DOMAIN if m in known), None)
    value = found.value()
    return {
        "metric": found.metric, "out_of_domain": outside, "base": base,
        "scores": [_scores(found, q, library, outside)
                   for q in found.questions for library in q.asked],
        "curves": [_curve(found, q) for q in found.questions],
        "differences": [told(gap) for gap in gaps.gaps(found.questions, base, value)],
        "overall": [told(gap) for gap in gaps.overall(found.questions, value)],
        "missing": gaps.missing(found.questions, value, spec),
    }  # fmt: skip


def _scores(found: Side, question: Question, library: str, outside: str | None) -> dict[str, Any]:
    asked = question.asked[library]
    beta = question.one(library).cell.settings.kl.beta
    share = found.metric is not None and is_accuracy(found.metric)
    shared = [
        name
        for name, others in question.asked.items()
        if name != library
        and any(others[s].id == asked[s].id for s in asked.keys() & others.keys())
    ]
    return {
        "question": question.name, "library": library, "seeds": len(asked),
        "in_domain": numbers(
            gaps.finals(question, library, found.value(), is_share=share)
        ),
        "out_of_domain": numbers(
            gaps.finals(question, library, found.value(outside), is_share=True) if outside else None
        ),
        "beta": beta if question.one(library).cell.settings.kl.placement else None,
        "beta_effective": numbers(beta_effective(found.runs, question, library)),
        "one_run_with": shared,
    }  # fmt: skip


def _curve(found: Side, question: Question) -> dict[str, Any]:
    for metric in CURVES:
        at, curves = curve_at(found.runs, question, metric)
        if at:
            return {"question": question.name, "metric": metric, "samples": at, "curves": curves}
    return {"question": question.name, "metric": None, "samples": (), "curves": {}}


def told(gap: Gap) -> dict[str, Any]:
    """A difference as plain data."""
    return {
        "question": gap.question, "left": gap.left, "right": gap.right,
        "difference": numbers(gap.effect), "p_corrected": gap.p_corrected, "verdict": gap.verdict,
    }  # fmt: skip


def numbers(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def meaning(found: Sequence[Question], base: str) -> list[dict[str, Any]]:
    """What each library means differently than the base, and what its rehearsal leaves out."""
    libraries = dict.fromkeys(name for q in found for name in q.asked)
    return [
        {
            "library": library,
            "differs": [asdict(m) for m in meanings(found, base, library)],
            "ledger": [asdict(g) for g in ledger_gaps(found, base, library)],
            "omits": omitted(found, library),
            "refused": refused(found, library),
        }
        for library in libraries
        if library != base
    ]
