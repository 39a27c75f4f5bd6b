"""What the spec asks of a checkpoint, what of it is on disk, and what is missing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import registry
from orchestrator.errors import CheckpointError
from orchestrator.evaluate import task_files
from orchestrator.evaluate.checkpoint import Stamp, content_hash, stamp
from orchestrator.evaluate.results import Ask, Asked, Found, Job, ask_again, found, read_scores_at
from orchestrator.rundir import RunFolder
from orchestrator.types import Cell, Checkpoint, EvalTask, Evaluation, Record, Score


@dataclass(frozen=True)
class Survey:
    """One `evaluate`: gathers scores, in the order asked, as they are found or made."""

    evaluation: Evaluation
    folder: RunFolder
    harness: str
    scores: dict[Path, tuple[Score, ...]] = field(default_factory=dict)
    _found: dict[str, dict[Path, Found]] = field(default_factory=dict)
    """Cell id -> its results on disk."""

    def checkpoints(self, records: Sequence[Record]) -> Iterator[tuple[Cell, Checkpoint]]:
        """`last` asks of cells that have succeeded, `all` of every checkpoint there is."""
        for record in records:
            if self.evaluation.checkpoints == "all":
                yield from ((record.cell, checkpoint) for checkpoint in record.checkpoints)
            elif record.state == "succeeded" and record.checkpoints:
                yield record.cell, record.checkpoints[-1]

    def job(self, cell: Cell, checkpoint: Checkpoint) -> Job:
        """What is still to be asked of a checkpoint. Raises CheckpointError if it is no policy,
        and EnvironmentFault if a task has no file."""
        if checkpoint.needs_export:
            raise CheckpointError(
                f"{checkpoint.path} is in {cell.settings.backend.name}'s own format; this orch "
                "evaluates checkpoints in Hugging Face format only (no export, no vLLM yet)"
            )
        cell_dir = self.folder.cell(cell)
        if cell.id not in self._found:
            self._found[cell.id] = {one.path: one for one in found(cell_dir)}
        on_disk = self._found[cell.id]
        files = stamp(checkpoint.path)
        asks = []
        for asked, task_file in self._asked(cell, checkpoint, files, on_disk):
            target = cell_dir.evaluations / f"{asked.stem}.json"
            if target in on_disk:
                self.scores[target] = _recall(on_disk[target], on_disk)
            else:
                self.scores[target] = ()
                asks.append(Ask(asked=asked, task_file=str(task_file), results=str(target)))
        return Job(cell_id=cell.id, checkpoint=str(checkpoint.path), files=files, asks=tuple(asks))

    def take(self, job: Job) -> None:
        """Reads the scores that a job has made."""
        for ask in job.asks:
            self.scores[Path(ask.results)] = read_scores_at(Path(ask.results))

    def told(self) -> list[Score]:
        return [score for of_task in self.scores.values() for score in of_task]

    def _asked(
        self, cell: Cell, checkpoint: Checkpoint, files: Stamp, on_disk: Mapping[Path, Found]
    ) -> Iterator[tuple[Asked, Path]]:
        backend = registry.load(cell.settings.backend.name)
        folders = tuple(path for path in (backend.tasks_dir, task_files.OWN_TASKS) if path)
        seen = (one.result for one in on_disk.values() if one.result.files == files)
        known = next((result.asked.checkpoint for result in seen), None)
        content = known or content_hash(checkpoint.path, files)
        for task in backend.rehearse_tasks(cell) or self.evaluation.tasks:
            path = task_files.find_task(task.name, folders)
            for seed in self.evaluation.seeds:
                yield Asked(
                    checkpoint=content, step=checkpoint.step, task=task, seed=seed,
                    task_version=task_files.version(path), sampling=self.evaluation.sampling,
                    chat_template=_templated(cell, task), harness=self.harness,
                ), path  # fmt: skip


def _templated(cell: Cell, task: EvalTask) -> bool:
    return "none" not in (task.chat_template, cell.settings.model.chat_template)


def _recall(one: Found, on_disk: Mapping[Path, Found]) -> tuple[Score, ...]:
    """The scores of a result on disk, which becomes the last one asked for of its kind."""
    rivals = (other for other in on_disk.values() if other.kind == one.kind)
    if any(other.time_ns > one.time_ns for other in rivals):
        ask_again(one)
    return one.result.scores
