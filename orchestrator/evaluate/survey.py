"""What the spec asks of a checkpoint, what of it is on disk, and what is missing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import registry
from orchestrator.errors import CheckpointError
from orchestrator.evaluate import engines, task_files
from orchestrator.evaluate.base import base_model
from orchestrator.evaluate.checkpoint import Stamp, content_hash, stamp
from orchestrator.evaluate.results import Ask, Asked, Found, Job, ask_again, found, read_scores_at
from orchestrator.launch.export import export
from orchestrator.launch.node.options import node_options
from orchestrator.rundir import RunFolder
from orchestrator.types import (
    Cell,
    Checkpoint,
    Engine,
    EvalTask,
    Evaluation,
    Record,
    Sampling,
    Score,
    Site,
)


def tasks_of(cell: Cell, evaluation: Evaluation) -> tuple[EvalTask, ...]:
    """The tasks asked of a cell: the spec's, or those its backend has in their place."""
    return registry.load(cell.settings.backend.name).rehearse_tasks(cell) or evaluation.tasks


def seeds_of(evaluation: Evaluation) -> tuple[int, ...]:
    """The evaluation seeds that make a difference."""
    return evaluation.seeds[:1] if engines.is_greedy(evaluation.sampling) else evaluation.seeds


def divergence_tasks(cell: Cell, evaluation: Evaluation) -> tuple[EvalTask, ...]:
    """The tasks whose prompts the cell's policy is compared on with its reference policy.

    Where a backend has tasks in place of the spec's, each stands for one of its own domain.
    """
    declared = evaluation.divergence
    if declared is None:
        return ()
    theirs = registry.load(cell.settings.backend.name).rehearse_tasks(cell)
    found: list[EvalTask] = []
    for task in declared.tasks:
        own = EvalTask(name=task.name, domain=task.domain, max_items=declared.max_items,
                       chat_template=task.chat_template)  # fmt: skip
        if theirs:
            free = [t for t in theirs if t.domain == task.domain
                    and t.name not in [other.name for other in found]]  # fmt: skip
            if not free:
                continue
            items = min(declared.max_items, free[0].max_items or declared.max_items)
            own = free[0].model_copy(update={"repeats": 1, "max_items": items})
        found.append(own)
    return tuple(found)


@dataclass(frozen=True)
class Survey:
    """One `evaluate`: gathers scores, in the order asked, as they are found or made."""

    evaluation: Evaluation
    folder: RunFolder
    harness: str
    site: Site | None = None
    scores: dict[Path, tuple[Score, ...]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What keeps a part of what is asked from being answered."""
    _found: dict[str, dict[Path, Found]] = field(default_factory=dict)
    """Cell id -> its results on disk."""
    _hashes: dict[Path, str] = field(default_factory=dict)
    """Of reference policies: folder -> hash."""

    def checkpoints(self, records: Sequence[Record]) -> Iterator[tuple[Cell, Checkpoint]]:
        """`last` asks of cells that have succeeded, `all` of every checkpoint there is."""
        for record in records:
            if self.evaluation.checkpoints == "all" or self._diverges_always(record.cell):
                yield from ((record.cell, checkpoint) for checkpoint in record.checkpoints)
            elif record.state == "succeeded" and record.checkpoints:
                yield record.cell, record.checkpoints[-1]

    def jobs(self, cell: Cell, checkpoint: Checkpoint, record: Record) -> list[Job]:
        """What is still to be asked of a checkpoint; one in its library's own format is exported
        first. Raises CheckpointError if it is no policy or cannot be exported,
        and EnvironmentFault if a task has no file.

        What another engine answers is another job: vLLM leaves a GPU no room for anything else.
        """
        last = record.state == "succeeded" and checkpoint == record.checkpoints[-1]
        if checkpoint.needs_export:
            environments = node_options(self.site.options if self.site else {})
            checkpoint = export(cell, checkpoint, self.folder.cell(cell), environments)
        engine = engines.resolved(self.evaluation.engine, cell.scale, self.site)
        pairs: list[tuple[Engine, list[Ask]]] = []
        files = stamp(checkpoint.path)
        if last or self.evaluation.checkpoints == "all":
            scoring = self._scoring(cell, checkpoint, files, engine)
            pairs.append((engine, self._missing(cell, scoring)))
        declared = self.evaluation.divergence
        if declared is not None and (last or self._diverges_always(cell)):
            own = _beside(engine)
            try:
                asks = self._missing(cell, self._divergences(cell, checkpoint, files))
            except CheckpointError as error:  # the rest is asked all the same
                self.faults.append(f"{cell.slug} at step {checkpoint.step}, divergence: {error}")
                asks = []
            if pairs and own == engine:
                pairs[0][1].extend(asks)
            else:
                pairs.append((own, asks))
        return [
            Job(cell_id=cell.id, checkpoint=str(checkpoint.path), files=files, asks=tuple(asks),
                engine=one)
            for one, asks in pairs if asks
        ]  # fmt: skip

    def take(self, job: Job) -> None:
        """Reads the scores that a job has made."""
        for ask in job.asks:
            self.scores[Path(ask.results)] = read_scores_at(Path(ask.results))

    def told(self) -> list[Score]:
        return [score for of_task in self.scores.values() for score in of_task]

    def _diverges_always(self, cell: Cell) -> bool:
        """Whether divergences are asked of every checkpoint."""
        declared = self.evaluation.divergence
        if declared is None or declared.checkpoints == "last":
            return False
        return cell.scale == "full" or self.evaluation.checkpoints == "all"

    def _missing(self, cell: Cell, asked_for: Iterator[tuple[Asked, Path, str]]) -> list[Ask]:
        """Those that are not on disk; the scores of the others are taken."""
        on_disk, folder = self._on_disk(cell), self.folder.cell(cell).evaluations
        asks = []
        for asked, task_file, reference in asked_for:
            target = folder / f"{asked.stem}.json"
            if target in on_disk:
                self.scores[target] = _recall(on_disk[target], on_disk)
            else:
                self.scores[target] = ()
                asks.append(Ask(asked=asked, task_file=str(task_file), results=str(target),
                                reference=reference))  # fmt: skip
        return asks

    def _scoring(
        self, cell: Cell, checkpoint: Checkpoint, files: Stamp, engine: Engine
    ) -> Iterator[tuple[Asked, Path, str]]:
        content = self._content(cell, checkpoint.path, files)
        for task in tasks_of(cell, self.evaluation):
            path = self._task_file(cell, task.name)
            templated = _templated(cell, task.chat_template)
            engines.refuse_mismatch(engine, templated, task.name, self.evaluation.sampling)
            for seed in seeds_of(self.evaluation):
                yield Asked(
                    checkpoint=content, step=checkpoint.step, task=task, seed=seed,
                    task_version=task_files.version_here(path), sampling=self.evaluation.sampling,
                    chat_template=templated, harness=engines.title(engine, self.harness),
                ), path, ""  # fmt: skip

    def _divergences(
        self, cell: Cell, checkpoint: Checkpoint, files: Stamp
    ) -> Iterator[tuple[Asked, Path, str]]:
        declared = self.evaluation.divergence
        reference = base_model(cell.settings.model.path)
        sampling = Sampling(max_response_tokens=declared.max_response_tokens if declared else 1024)
        for task in divergence_tasks(cell, self.evaluation):
            path = self._task_file(cell, task.name)
            yield Asked(
                checkpoint=self._content(cell, checkpoint.path, files), step=checkpoint.step,
                task=task, seed=self.evaluation.seeds[0], kind="divergence",
                task_version=task_files.version_here(path), sampling=sampling,
                chat_template=_templated(cell, task.chat_template), harness=self.harness,
                reference=self._reference(reference),
            ), path, str(reference)  # fmt: skip

    def _on_disk(self, cell: Cell) -> dict[Path, Found]:
        if cell.id not in self._found:
            self._found[cell.id] = {one.path: one for one in found(self.folder.cell(cell))}
        return self._found[cell.id]

    def _content(self, cell: Cell, path: Path, files: Stamp) -> str:
        """The checkpoint's hash: from a result made of the very same files, or read."""
        seen = (one.result for one in self._on_disk(cell).values() if one.result.files == files)
        known = next((result.asked.checkpoint for result in seen), None)
        return known or content_hash(path, files)

    def _reference(self, path: Path) -> str:
        if path not in self._hashes:
            self._hashes[path] = content_hash(path, stamp(path))
        return self._hashes[path]

    def _task_file(self, cell: Cell, name: str) -> Path:
        backend = registry.load(cell.settings.backend.name)
        folders = tuple(path for path in (backend.tasks_dir, task_files.OWN_TASKS) if path)
        return task_files.find_task(name, folders)


def _beside(engine: Engine) -> Engine:
    """The engine of divergences: they need logits, so the weights are loaded with transformers."""
    if engine.name == "hf":
        return engine
    device = "cuda" if engine.name == "vllm" else engine.device
    return Engine(name="hf", device=device, dtype=engine.dtype, python=engine.python)


def _templated(cell: Cell, of_task: str) -> bool:
    return "none" not in (of_task, cell.settings.model.chat_template)


def _recall(one: Found, on_disk: Mapping[Path, Found]) -> tuple[Score, ...]:
    """The scores of a result on disk, which becomes the last one asked for of its kind."""
    rivals = (other for other in on_disk.values() if other.kind == one.kind)
    if any(other.time_ns > one.time_ns for other in rivals):
        ask_again(one)
    return one.result.scores
