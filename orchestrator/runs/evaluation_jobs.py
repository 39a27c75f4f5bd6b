"""How the evaluation jobs of cells stand: what they wrote, or else what the scheduler says."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.launch.slurm import poll, submissions
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import ON_CLUSTER, RunFolder
from orchestrator.runs.retries import retry_limit
from orchestrator.spec.site_options import SlurmOptions

_WAITS: frozenset[str] = ON_CLUSTER | {"planned", "preempted", "timed_out"}
_OVER: frozenset[str] = frozenset({"failed", "cancelled"})


class EvaluationState(NamedTuple):
    """The last evaluation job of one cell."""

    state: State
    """pending: waits for its cell or for a node; unknown: the scheduler cannot tell."""
    exit: ExitRecord | None = None
    failures: int = 0
    """How often evaluations of this cell ended in this way."""
    log: str = ""
    """What the job printed."""
    submission: str = ""
    which: int = 0
    written: bool = True
    """Whether its end is on disk; else the scheduler told it."""


class _Element(NamedTuple):
    sent: submissions.Submission
    which: int
    exit: ExitRecord | None
    word: str
    """How it ended, as the name of its file says; empty while there is none."""


def last_evaluations(folder: RunFolder, states: Mapping[str, State]) -> dict[str, EvaluationState]:
    """Cell's directory -> its last evaluation job, of cells that have one.

    states: of the cells asked about. Writes nothing; asks the scheduler, in the call that is made
    for training anyway, only of cells that are trained and whose evaluation has no last word.
    """
    found: dict[str, list[_Element]] = {}
    for sent in submissions.read(folder).values():
        if sent.kind != "evaluate" or sent.dropped:
            continue
        ends = submissions.ends(folder, sent.id)
        elements = submissions.read_manifest(folder, sent.id).get("elements", ())
        for index, (name, _) in enumerate(elements):
            if name in states:
                found.setdefault(name, []).append(_element(sent, index, ends.get(index)))
    return {name: _seen(folder, states[name], all_of) for name, all_of in found.items()}


def _element(sent: submissions.Submission, index: int, end: Path | None) -> _Element:
    word = end.stem.partition(".")[2] if end is not None else ""
    record = submissions.read_end(end) if end is not None and word != "succeeded" else None
    return _Element(sent, index, record, word)


def _seen(folder: RunFolder, state: State, elements: list[_Element]) -> EvaluationState:
    newest = elements[-1]
    log = str(folder.submission(newest.sent.id) / f"{newest.sent.job}_{newest.which}.log")
    mine = newest.sent.id, newest.which, bool(newest.word)
    if newest.word and newest.exit is None:
        return EvaluationState("succeeded", None, 0, log, *mine)
    told, record = (newest.exit.state, newest.exit) if newest.exit else _ask(folder, state, newest)
    if record is None:
        return EvaluationState(told, None, 0, log, *mine)
    if not newest.word:  # it may have said its last word between the two looks
        late = submissions.ends(folder, newest.sent.id).get(newest.which)
        if late is not None:
            return _seen(folder, state, [*elements[:-1], _element(newest.sent, newest.which, late)])
    counted = [e.exit.failure for e in elements if e.exit and e.word != submissions.FORGIVEN]
    counted += [record.failure] if not newest.word else []
    return EvaluationState("failed", record, counted.count(record.failure), log, *mine)


def _ask(folder: RunFolder, state: State, element: _Element) -> tuple[State, ExitRecord | None]:
    """An evaluation without a last word."""
    if state != "succeeded":
        return ("pending" if state in _WAITS else "cancelled"), None
    if element.sent.job is None:
        return "pending", None
    seen, ended, _ = poll.polled_element(folder, element.sent, element.which)
    if ended is None:
        return ("unknown" if seen == "unknown" else "pending"), None
    if ended.failure:
        return "failed", ended
    why = ended.message.partition("\n")[0]
    classes = {"preempted": "node", "cancelled": "cancelled"}  # cancelled: a person is to say more
    return "failed", _lost(why, classes.get(seen, "lost"))


def _lost(why: str, failure: str = "lost") -> ExitRecord:
    now = time.time()
    return ExitRecord(state="failed", failure=failure, message=why, started=now, ended=now)


def may_repeat(seen: EvaluationState, options: SlurmOptions) -> bool:
    """Whether a failed evaluation is to be submitted again without a person's word."""
    if seen.state != "failed" or seen.exit is None:
        return False
    return seen.failures <= retry_limit(seen.exit.failure, options)


def forgive(folder: RunFolder, names: Iterable[str]) -> set[str]:
    """Lets failed evaluations of trained cells go again; the directories of those that will."""
    states: dict[str, State] = dict.fromkeys(names, "succeeded")
    forgiven = set()
    for name, each in last_evaluations(folder, states).items():
        if each.exit is None:
            continue
        submissions.forgive(folder, each.submission, each.which, each.exit)
        forgiven.add(name)
    return forgiven


def record_ends(
    folder: RunFolder, states: Mapping[str, State], seen: Mapping[str, EvaluationState]
) -> None:
    """Writes down what only the scheduler knew of ends, and which submissions are over."""
    for each in seen.values():
        if each.exit is not None and not each.written:
            submissions.write_end(folder, each.submission, each.which, each.exit)
    for sent in submissions.read(folder).values():
        if sent.kind != "evaluate" or sent.job is None or sent.drained:
            continue
        ends = submissions.ends(folder, sent.id)
        elements = submissions.read_manifest(folder, sent.id).get("elements", ())
        if all(
            index in ends
            or states.get(name, "planned") in _OVER
            or (name in seen and seen[name].submission != sent.id)
            for index, (name, _) in enumerate(elements)
        ):
            submissions.note(folder, submissions.DRAINED, sent.id)


def counts(seen: Iterable[EvaluationState]) -> dict[str, int]:
    """How many are in each state."""
    states = [each.state for each in seen]
    return {state: states.count(state) for state in dict.fromkeys(states)}
