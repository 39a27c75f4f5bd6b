"""Which runs a claim sets against which.

A *setting* is everything two runs share: the study and every axis that the claim's brackets do not
name. Within a setting the left runs are set against the right ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.claims import Claim, Side, Where
from orchestrator.compare.runs import Run
from orchestrator.errors import did_you_mean
from orchestrator.fields import LABELS

ONE_RUN = "what the claim tells apart is one cell at this scale"

Configuration = tuple[tuple[str, str], ...]
"""What runs that differ only in their seed are called."""


class NotTestableError(LookupError):
    """A claim these runs cannot decide; the sentence says what is missing."""


@dataclass(frozen=True)
class Setting:
    """The runs of one setting, left and right. Right is empty against a number."""

    study: str
    left: tuple[Run, ...]
    right: tuple[Run, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.left + self.right


def pair(claim: Claim, runs: Sequence[Run]) -> tuple[tuple[Setting, ...], list[str]]:
    """The settings of a claim, and notes on what has no counterpart. Raises NotTestableError."""
    chosen = [_chosen(claim, side, runs) for side in claim.sides]
    free = {trait for side in claim.sides for w in side.where for trait in _traits_named(w.axis)}
    found = _sides_by_setting(chosen, free)
    notes: list[str] = []
    settings: list[Setting] = []
    seen: set[tuple[frozenset[str], ...]] = set()
    for (study, key), (left, right) in found.items():
        if not left or (not right and len(claim.sides) == 2):
            lacking = claim.sides[0 if not left else 1]
            lacks = ", ".join(map(str, lacking.where)) or lacking.metric
            notes.append(f"left out {named(study, key, runs)}, which has no {lacks}")
            continue
        cells = tuple(frozenset(r.record.cell.id for r in side) for side in (left, right))
        if cells[0] & cells[1]:
            if cells[0] != cells[1]:
                raise _untestable(ONE_RUN)
            notes.append(f"left out {named(study, key, runs)}: {ONE_RUN}")
        elif cells not in seen:  # the same runs can belong to several studies
            seen.add(cells)
            settings.append(Setting(study, tuple(left), tuple(right)))
    if not settings:
        raise _untestable("; ".join(notes))
    for where in claim.at:
        for one in where.each():
            if not any(_holds_at(run, one) for setting in settings for run in setting.left):
                raise NotTestableError(f"no setting with {one} has runs on both sides")
    return tuple(settings), notes


def _sides_by_setting(
    chosen: Sequence[Sequence[tuple[str, Run]]], free: set[str]
) -> dict[tuple[str, Configuration], tuple[list[Run], list[Run]]]:
    """Left and right runs of every study and every value of the traits they share."""
    found: dict[tuple[str, Configuration], tuple[list[Run], list[Run]]] = {}
    for study in dict.fromkeys(study for side in chosen for study, _ in side):
        here = [[run for s, run in side if s == study] for side in chosen]
        shared = _shared_traits([run for side in here for run in side]) - free
        for index, side in enumerate(here):
            for run in side:
                traits = tuple((t, run.traits[t]) for t in sorted(shared))
                found.setdefault((study, traits), ([], []))[index].append(run)
    return found


def _untestable(told: str) -> NotTestableError:
    one_run = "the same run stands on both sides"
    return NotTestableError(
        f"{one_run if ONE_RUN in told else 'no setting has runs on both sides'}; {told}"
    )


def _chosen(claim: Claim, side: Side, runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """The runs of a side, once for each study they belong to."""
    studies = {study for run in runs for study in run.record.cell.studies}
    for study in claim.studies:
        if study not in studies:
            raise NotTestableError(f"no study is called '{study}'{did_you_mean(study, studies)}")
    chosen = [
        (study, run)
        for run in runs
        if all(run.holds(w) for w in side.where) and all(_holds_at(run, w) for w in claim.at)
        for study in run.record.cell.studies
        if not claim.studies or study in claim.studies
    ]
    for where in (*side.where, *claim.at):
        for one in where.each():
            if not any(run.holds(one) or _stands_beside(run, one) for _, run in chosen):
                raise NotTestableError(f"no run has {one}{_known(where.axis, runs)}")
    if not chosen:
        raise NotTestableError("nothing ran")
    return chosen


def _holds_at(run: Run, where: Where) -> bool:
    return _stands_beside(run, where) or run.holds(where)


def _stands_beside(run: Run, where: Where) -> bool:
    """A run without a KL term has no beta, and so is set against runs of every beta."""
    return not run.has_kl and _trait(where.axis) in ("beta", "kl.placement")


def _trait(axis: str) -> str:
    """`beta` for `kl.beta`, `model` for `model.name`: how traits call a field."""
    return next((label for label, field in LABELS.items() if field == axis), axis)


def _traits_named(axis: str) -> set[str]:
    if axis == "backend":  # a library is named with its release
        return {"backend", "backend.version"}
    return {"kl.estimator", "kl.placement"} if axis == "kl" else {_trait(axis)}


def _shared_traits(runs: Iterable[Run]) -> set[str]:
    """Traits every run has; without a KL term there is no placement and no beta to share."""
    sets = [set(run.traits) for run in runs]
    return set.intersection(*sets) if sets else set()


def _known(axis: str, runs: Sequence[Run]) -> str:
    if axis == "kl":
        values = {run.asked.kl.label for run in runs}
    else:
        values = {run.traits[_trait(axis)] for run in runs if _trait(axis) in run.traits}
    return f" (there are: {', '.join(sorted(values))})" if values else ""


def named(study: str, traits: Configuration, runs: Sequence[Run]) -> str:
    """`onpolicy (beta=0.1, model=qwen2.5-7b)`: the traits in which these runs differ."""
    differ = [(t, v) for t, v in traits if len({run.traits.get(t) for run in runs}) > 1]
    return f"{study} ({', '.join(f'{t}={v}' for t, v in differ)})" if differ else study
