"""The states of evaluation jobs, from their exit records, or from the scheduler if they wrote none.

`cluster_standing` adds jobs that will never start.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.launch.ray import look as ray_look
from orchestrator.launch.slurm import poll, submissions
from orchestrator.launch.slurm.poll import stuck_jobs
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import ON_CLUSTER, RunFolder
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.runs.state import retry_limit
from orchestrator.spec.site_options import ClusterOptions, SlurmOptions

_WAITS: frozenset[str] = ON_CLUSTER | {"planned", "preempted", "timed_out"}
_OVER: frozenset[str] = frozenset({"failed", "cancelled"})


class EvaluationState(NamedTuple):
    """The last evaluation job of one cell."""

    state: State
    """pending: waits for its cell or for a node; unknown: the scheduler has no answer."""
    exit: ExitRecord | None
    failures: int
    """Number of evaluations of this cell that ended with this class of failure."""
    log: str
    """The file with what the job printed."""
    submission: str
    element: int
    written: bool
    """True if its exit record is on disk. Otherwise only the scheduler knows how it ended."""


class _Element(NamedTuple):
    sent: submissions.Submission
    element: int
    exit: ExitRecord | None
    word: str
    """The state in which the job ended, from the name of its file; empty before its end."""


def last_evaluations(folder: RunFolder, states: Mapping[str, State]) -> dict[str, EvaluationState]:
    """Return the directory of each cell -> its last evaluation job, for cells that have one.

    states: cell's directory -> state, for the cells in question. Write nothing. Ask the scheduler
    only about trained cells whose evaluation has no exit record, in the same call that asks about
    training.
    """
    elements_of: dict[str, list[_Element]] = {}
    for sent in _sent(folder):
        if sent.kind != "evaluate" or sent.dropped:
            continue
        ends = submissions.ends(folder, sent.id)
        for index, (name, _) in enumerate(submissions.elements(folder, sent.id)):
            if name in states:
                elements_of.setdefault(name, []).append(_element(sent, index, ends.get(index)))
    return {
        name: _evaluation_state(folder, states[name], all_of)
        for name, all_of in elements_of.items()
    }


def _sent(folder: RunFolder) -> Iterator[submissions.Submission]:
    """Yield all submissions of a folder, those to SLURM first."""
    for launcher in ("slurm", "ray"):
        yield from submissions.read(folder, launcher).values()


def _element(sent: submissions.Submission, index: int, end: Path | None) -> _Element:
    word = end.stem.partition(".")[2] if end is not None else ""
    record = submissions.read_end(end) if end is not None and word != "succeeded" else None
    return _Element(sent, index, record, word)


def _evaluation_state(
    folder: RunFolder, cell_state: State, elements: list[_Element]
) -> EvaluationState:
    newest = elements[-1]
    state: State = "succeeded"
    record = newest.exit
    if not newest.word:
        state, record = _poll(folder, cell_state, newest)
        late = submissions.ends(folder, newest.sent.id).get(newest.element) if record else None
        if late is not None:  # it ended between reading its files and asking the scheduler
            newest = _element(newest.sent, newest.element, late)
            return _evaluation_state(folder, cell_state, [*elements[:-1], newest])
    counted = [e.exit.failure for e in elements if e.exit and e.word != submissions.FORGIVEN]
    counted += [record.failure] if record and not newest.word else []
    return EvaluationState(
        state=state if record is None else "failed",
        exit=record,
        failures=counted.count(record.failure) if record else 0,
        log=str(folder.submission(newest.sent.id) / f"{newest.sent.job}_{newest.element}.log"),
        submission=newest.sent.id,
        element=newest.element,
        written=bool(newest.word),
    )


def _poll(folder: RunFolder, state: State, element: _Element) -> tuple[State, ExitRecord | None]:
    """Return state and exit record of an evaluation job that wrote no exit record."""
    if state != "succeeded":
        return ("pending" if state in _WAITS else "cancelled"), None
    if element.sent.job is None:
        return "pending", None
    if element.sent.launcher == "ray":
        reported, ended, _ = ray_look.polled_evaluation(element.sent)
    else:
        reported, ended, _ = poll.polled_element(folder, element.sent, element.element)
    if ended is None:
        return ("unknown" if reported == "unknown" else "pending"), None
    if ended.failure:
        return "failed", ended
    why, now = ended.message.partition("\n")[0], time.time()
    classes = {"preempted": "node", "cancelled": "cancelled"}  # cancelled: a person must retry it
    failure = classes.get(reported, "lost")
    lost = ExitRecord(state="failed", failure=failure, message=why, started=now, ended=now)
    return "failed", lost


def may_repeat(state: EvaluationState, options: ClusterOptions) -> bool:
    """Return True if a failed evaluation is submitted again automatically."""
    if state.state != "failed" or state.exit is None:
        return False
    return state.failures <= retry_limit(state.exit.failure, options)


def forgive(folder: RunFolder, names: Iterable[str]) -> set[str]:
    """Allow failed evaluations of trained cells to be submitted again. Return their directories."""
    failed = failed_evaluations(folder, names)
    for each in failed.values():
        if each.exit is not None:
            submissions.forgive(folder, each.submission, each.element, each.exit)
    return set(failed)


def failed_evaluations(folder: RunFolder, names: Iterable[str]) -> dict[str, EvaluationState]:
    """Return the failed evaluations of trained cells, by directory."""
    states: dict[str, State] = dict.fromkeys(names, "succeeded")
    return {
        name: each
        for name, each in last_evaluations(folder, states).items()
        if each.exit is not None
    }


def record_ends(
    folder: RunFolder, states: Mapping[str, State], evaluations: Mapping[str, EvaluationState]
) -> None:
    """Write the exit records that only the scheduler knew. Mark submissions that have ended."""
    for each in evaluations.values():
        if each.exit is not None and not each.written:
            submissions.write_end(folder, each.submission, each.element, each.exit)
    for sent in _sent(folder):
        if sent.kind != "evaluate" or sent.job is None or sent.drained:
            continue
        ends = submissions.ends(folder, sent.id)
        if all(
            index in ends
            or states.get(name, "planned") in _OVER
            # A later submission has taken the evaluation over.
            or (name in evaluations and evaluations[name].submission != sent.id)
            for index, (name, _) in enumerate(submissions.elements(folder, sent.id))
        ):
            submissions.note(folder, submissions.DRAINED, sent.id, launcher=sent.launcher)


def cluster_standing(experiment: Experiment, plan: Plan) -> dict[str, Any]:
    """Return {evaluations: {state: how many}, failed: {class: how many}, stuck: [sentence, ...]};
    empty where nothing was sent to a cluster."""
    if not any(True for _ in _sent(experiment.folder)):
        return {}
    states = {row.directory.path.name: row.state for row in plan.rows}
    evaluations = last_evaluations(experiment.folder, states).values()
    counts = Counter(each.state for each in evaluations)
    stuck = []
    if counts["pending"] or {"submitted", "pending"} & {*states.values()}:
        options = {**SlurmOptions().model_dump(), **experiment.spec.site.options}
        stuck = stuck_jobs(experiment.folder, options)
    failed = Counter(each.exit.failure for each in evaluations if each.exit is not None)
    return {"evaluations": dict(counts), "failed": dict(failed), "stuck": stuck}


def standing_sentences(standing: dict[str, Any]) -> list[str]:
    """Return what `cluster_standing` returns as sentences."""
    if not standing.get("evaluations"):
        return list(standing.get("stuck", ()))
    states = ", ".join(f"{n} {state}" for state, n in standing["evaluations"].items())
    why = ", ".join(f"{n} {failure}" for failure, n in standing["failed"].items())
    more = f" ({why}; see `orch logs --failed`)" if why else ""
    return [f"evaluation jobs: {states}{more}", *standing["stuck"]]
