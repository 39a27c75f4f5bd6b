"""Evaluation on a cluster: each cell's is a job of its own, and a login node evaluates nothing."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from orchestrator.compare.runs import measure
from orchestrator.evaluate import read_scores
from orchestrator.launch.slurm import book, poll, scheduler
from orchestrator.launch.slurm.options import SlurmOptions
from orchestrator.launch.slurm.submit import evaluate_alone
from orchestrator.launch.slurm.words import is_over
from orchestrator.rundir import RunFolder
from orchestrator.tune.objective import Objective, is_reported
from orchestrator.types import Record, Score

TRIES = 2
"""Evaluations of a cell that are submitted before its trial ends without a score."""

_SKEW_SECONDS = 10.0
"""How far the clocks of two login nodes may be apart."""

Word = Literal["scored", "coming", "missing", "given up"]


class _Sent(NamedTuple):
    """One evaluation of a cell that was submitted."""

    submission: book.Submission
    place: int
    """Its index in the array."""
    log: Path


def _is_busy(one: _Sent, queue: scheduler.Answer, asked: float) -> bool:
    """Whether an evaluation may still come to its end. asked: when the queue was."""
    job = one.submission.job
    if job is None or asked < one.submission.time + _SKEW_SECONDS:
        return True
    held = queue.get((job, one.place))
    return held is not None and not is_over(held.word)


class JobScorer:
    """Reads what evaluation jobs have left; submits those that are missing."""

    def __init__(
        self, objectives: Sequence[Objective], folder: RunFolder, options: SlurmOptions,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        asked = [m for each in objectives for m in each.metrics if not is_reported(m)]
        self.metrics = tuple(dict.fromkeys(asked))
        """Those that an evaluation gives."""
        self._folder, self._options, self._tell = folder, options, tell
        self._scored: set[str] = set()
        self._manifests: dict[str, dict[str, Any]] = {}

    def ask(self, records: Sequence[Record]) -> None:
        """Submits evaluations where none is under way, as one array."""
        words = self._words(records)
        missing = [r.cell for r in records if words[r.cell.id] == "missing"]
        if missing:
            array = evaluate_alone(missing, self._folder, self._options, self._tell)
            self._tell(f"submitted the evaluation of {len(missing)} cells as job array {array}")

    def has(self, records: Sequence[Record]) -> bool:
        """Whether all of them have been scored, or could not be."""
        return all(word in ("scored", "given up") for word in self._words(records).values())

    def fault(self, records: Sequence[Record]) -> str:
        """The first that cannot be scored, and where its job's last words are."""
        words = self._words(records)
        for record in records:
            if words[record.cell.id] == "given up":
                log = self._sent()[self._folder.cell(record.cell).path.name][-1].log
                wanted = ", ".join(self.metrics)
                return f"{record.cell.slug} was evaluated {TRIES} times without {wanted}; see {log}"
        return ""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """What is on disk of these records' scores."""
        return [s for record in records for s in read_scores(self._folder.cell(record.cell))]

    def _words(self, records: Sequence[Record]) -> dict[str, Word]:
        left = [record for record in records if not self._is_scored(record)]
        words: dict[str, Word] = {record.cell.id: "scored" for record in records}
        if left:
            sent, seen = self._sent(), poll.snapshot(self._folder)
            queue, asked = seen.queued(), time.time() - (time.monotonic() - seen.made)
            for record in left:
                own = sent.get(self._folder.cell(record.cell).path.name, [])
                busy = queue is None or any(_is_busy(one, queue, asked) for one in own)
                words[record.cell.id] = "coming" if busy else self._ended(record, own)
        return words

    def _ended(self, record: Record, own: Sequence[_Sent]) -> Word:
        if self._is_scored(record):  # written between the two looks
            return "scored"
        # one whose training failed was never started
        tries = sum(not one.submission.follows or one.log.exists() for one in own)
        return "missing" if tries < TRIES else "given up"

    def _is_scored(self, record: Record) -> bool:
        if record.cell.id not in self._scored:
            scores = read_scores(self._folder.cell(record.cell))
            (run,) = measure([record], scores)
            if not set(self.metrics) <= run.finals.keys():
                return False
            self._scored.add(record.cell.id)
        return True

    def _sent(self) -> dict[str, list[_Sent]]:
        """Directory of a cell -> its evaluations, oldest first."""
        found: dict[str, list[_Sent]] = {}
        for one in book.read(self._folder).values():
            if one.kind != "evaluate" or one.dropped:
                continue
            if one.id not in self._manifests:
                self._manifests[one.id] = book.read_manifest(self._folder, one.id)
            elements = self._manifests[one.id].get("elements", ())
            place = self._folder.submission(one.id)
            for index, (name, _) in enumerate(elements):
                sent = _Sent(one, index, place / f"{one.job}_{index}.log")
                found.setdefault(name, []).append(sent)
        return found
