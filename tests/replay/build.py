"""Leaves a runs folder as the launches of a whole spec on a cluster would.

Every cell goes through the product's own worker: its plan, job.json, exit record and outcome are
the product's. Only the trainer is replaced, by one that writes the recorded logs with planted
numbers and the files of checkpoints; and lm-evaluation-harness, by one that writes planted scores.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.evaluate import baselines
from orchestrator.evaluate.items import Mean, means
from orchestrator.evaluate.scores import ItemRequest, ScoreKey, ScoringJob
from orchestrator.evaluate.shards import Shards
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.identity import digest
from orchestrator.launch import worker
from orchestrator.launch.endings import Ending
from orchestrator.launch.program import ending_of_code
from orchestrator.launch.slurm import submissions
from orchestrator.records import Cell, EvalTask, EvaluationSpec, LaunchPlan
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.runs.experiment import Experiment, open_experiment
from tests.replay import recorded
from tests.replay.truth import BASELINE, OFFSETS, Truth, World, truth

SITE = ("site=gpus",)
"""Overrides with which commands read the folder here: the cells are at full scale."""
SUBMISSION = "00000000replayed"
ITEMS = {"math500": 500, "math2": 210, "countdown": 500}
ITEMS |= {"mmlu_college_physics": 118, "mmlu_college_chemistry": 113, "mmlu_college_biology": 165}
NAN_MESSAGE = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
"""The last words of a trainer whose weights are not numbers: torch.multinomial, 2.x."""


class Replay(NamedTuple):
    """A folder of runs and what was planted in it."""

    experiment: Experiment
    overrides: tuple[str, ...]
    truths: dict[str, Truth]
    """Cell id -> its truth."""


def build(
    spec: str | Path,
    world: World,
    runs_dir: Path,
    *,
    seed: int = 0,
    overrides: Sequence[str] = (),
) -> Replay:
    """Leave the runs of a spec in a folder.

    Of each library one cell was resumed, and one that falls ends with numbers that are none.
    """
    every = (*SITE, f"site.runs_dir={runs_dir}", *overrides)
    experiment = open_experiment(spec, every)
    folder = experiment.folder
    folder.open()
    folder.append("planned", "", seeds=sorted({c.settings.seed for c in experiment.cells}))
    cells = [cell for cell in experiment.cells if cell.scale == "full"]
    truths = {cell.id: truth(cell, world, seed) for cell in cells}
    submissions.note(
        folder,
        submissions.INTENT,
        SUBMISSION,
        kind="train",
        name="replay",
        cells=len(cells),
        host="login",
        pid=1,
        birth="0",
    )
    submissions.note(folder, submissions.SENT, SUBMISSION, job="4000")
    resumed, broken = set[str](), set[str]()
    for cell in cells:
        name, own = cell.settings.backend.name, truths[cell.id]
        cut = own.falls_at is None and name not in resumed
        nan = own.falls_at is not None and name not in broken
        (resumed if cut else broken if nan else set[str]()).add(name)
        train(cell, folder, own, len(resumed) + len(broken), cut=cut, nan=nan)
        score(cell, folder, experiment.spec.evaluation, own)
    submissions.note(folder, submissions.DRAINED, SUBMISSION)
    _baselines(experiment)
    return Replay(experiment, every, truths)


def train(
    cell: Cell, folder: RunFolder, own: Truth, index: int, *, cut: bool = False, nan: bool = False
) -> None:
    """Train a cell: to its end, over two attempts, or until its numbers are none."""
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    middle = own.batches // 2 + 3
    if cut:
        lost = Ending("preempted", message="asked to stop")
        _attempt(cell, cell_dir, own, index, 1, middle, lambda _: lost)
    first = _resumed_at(cell, own, middle) + 1 if cut else 1
    if nan:
        _attempt(cell, cell_dir, own, index, first, (own.falls_at or 0) + 20, _died_of_nan)
    else:
        _attempt(cell, cell_dir, own, index, first, own.batches, _ended_well)


def _ended_well(_: AttemptDir) -> Ending:
    return Ending("succeeded", code=0)


def _died_of_nan(attempt: AttemptDir) -> Ending:
    attempt.stderr.write_text(f"Traceback (most recent call last):\n{NAN_MESSAGE}")
    return ending_of_code(1, attempt.stderr)


def _resumed_at(cell: Cell, own: Truth, batch: int) -> int:
    every = _every(cell, cell.cadence.checkpoint_every_steps, own)
    return batch // every * every


def _every(cell: Cell, steps: int | None, own: Truth) -> int:
    """Return the rollout batches between two events of a cadence."""
    return max(1, (steps or cell.settings.num_train_steps) // cell.settings.batch.num_minibatches)


def _attempt(
    cell: Cell,
    cell_dir: CellDir,
    own: Truth,
    index: int,
    first: int,
    last: int,
    end: Callable[[AttemptDir], Ending],
) -> None:
    attempt = cell_dir.reserve(
        json.dumps({"submission": SUBMISSION, "index": index, "cell": cell.model_dump(mode="json")})
    )
    (cell_dir.plan / "data").mkdir(parents=True, exist_ok=True)
    library, settings = cell.settings.backend.name, cell.settings
    updates = settings.batch.num_minibatches

    def execute(plan: LaunchPlan) -> Ending:
        place = cell_dir.paths(attempt)
        rows = dict(own.steps(first, last, _every(cell, cell.cadence.evaluate_every_steps, own)))
        ending = end(attempt)
        if ending.code:
            for batch in range(last - 2, last + 1):
                rows[batch] = {**rows[batch], **dict.fromkeys(("reward", "gradient", "kl"))}
        log = plan.env.get("VERL_FILE_LOGGER_PATH", "")
        recorded.replay(library, place, log, rows, updates)
        if ending.state == "succeeded":
            attempt.stdout.touch()
        every = _every(cell, cell.cadence.checkpoint_every_steps, own)
        for batch in range(1, last + 1):
            if batch % every == 0 or batch == own.batches:
                recorded.checkpoint(library, place.checkpoints_dir, batch, updates)
        return ending

    began = recorded.FIRST_SECOND + recorded.STEP_SECONDS * (first - 1)
    job = {"job": f"4000_{index}", "started": began}
    stop = worker.StopSignals({})
    record = worker.train(cell, cell_dir, attempt, job, stop, lambda: None, execute)
    ended = recorded.FIRST_SECOND + recorded.STEP_SECONDS * last
    gpus = cell.resources.reserved_gpus
    times = {"started": began, "ended": ended, "gpu_hours": gpus * (ended - began) / 3600}
    attempt.write_exit(record.model_copy(update=times))


# ---------------------------------------------------------------- scores


def score(cell: Cell, folder: RunFolder, evaluation: EvaluationSpec, own: Truth) -> None:
    """Write the scores that the evaluation of a cell would."""
    cell_dir, updates = folder.cell(cell), cell.settings.batch.num_minibatches
    saved = plugins.load(cell.settings.backend.name).find_checkpoints(cell_dir.checkpoints)
    if not saved:
        return
    for task in tasks_of(cell, evaluation):
        accuracy = own.scores[task.name]
        _write(cell_dir, cell, evaluation, task, saved[-1].step, accuracy=accuracy)
    for step in (each.step for each in saved):
        for task in divergence_tasks(cell, evaluation):
            _write(
                cell_dir,
                cell,
                evaluation,
                task,
                step,
                kl=own.forward_kl(step // updates),
                entropy=own.entropy_at(step // updates),
            )


def _write(
    cell_dir: CellDir,
    cell: Cell,
    evaluation: EvaluationSpec,
    task: EvalTask,
    step: int,
    *,
    accuracy: float | None = None,
    kl: float = 0.0,
    entropy: float = 0.0,
) -> None:
    key = ScoreKey(
        checkpoint=digest([cell.id, step]),
        step=step,
        task=task,
        task_version="1",
        sampling=evaluation.sampling,
        seed=evaluation.seeds[0],
        chat_template=cell.settings.model.chat_template != "none",
        harness="lm-eval 0.4.13, vllm",
        kind="divergence" if accuracy is None else "accuracy",
        reference="" if accuracy is not None else "planted",
    )
    target = cell_dir.evaluations / f"{key.stem}.json"
    target.parent.mkdir(exist_ok=True)
    ask = ItemRequest(asked=key, task_file="", results=str(target))
    made = Shards(ScoringJob(cell_id=cell.id, checkpoint="planted", files={}, asks=(ask,)), ask, {})
    if accuracy is None:
        rows = [{"item": 0, "prompt": "q", "target": "a"}]
        values = {
            "kl_reverse": kl,
            "kl_reverse_per_token": kl / 400,
            "kl_forward": kl,
            "kl_forward_per_token": kl / 400,
            "entropy": entropy,
            "entropy_per_sequence": 400 * entropy,
        }
        found = {name: Mean(value, 0.01 * abs(value)) for name, value in values.items()}
        made.finish(rows, found, [_shard(rows)])
        return
    items = _items(task.name, accuracy, task.repeats)
    found = means(items, task.repeats)
    made.finish(items, found, [_shard(items)])


def _shard(items: Sequence[dict[str, object]]) -> dict[str, object]:
    return {"items": items, "seconds": 60.0, "cpu_seconds": 1.0}


def _items(task: str, accuracy: float, repeats: int) -> list[dict[str, object]]:
    """Return items with this mean, up to half a response: some are easy, some hard."""
    count = ITEMS.get(task, 100)
    shares = [min(1.0, max(0.0, accuracy + 0.4 * ((n * 7 % 11) / 10 - 0.5))) for n in range(count)]
    rights = [round(repeats * share) for share in shares]
    missing, at = round(accuracy * repeats * count) - sum(rights), 0
    while missing:
        step = 1 if missing > 0 else -1
        if 0 <= rights[at % count] + step <= repeats:
            rights[at % count] += step
            missing -= step
        at += 1
    return [
        {
            "item": n,
            "prompt": f"{task} {n}",
            "target": "a",
            "responses": [""] * repeats if n == 0 else [],
            "metrics": {"mean@k": right / repeats, "pass@k": float(right > 0)},
        }
        for n, right in enumerate(rights)
    ]


def _baselines(experiment: Experiment) -> None:
    evaluation, folder = experiment.spec.evaluation, experiment.folder
    home = baselines.BaselineFolder(folder.path)
    declared, _ = baselines.declared_baselines(evaluation, experiment.cells, folder)
    for record in baselines.records(declared):
        for task in tasks_of(record.cell, evaluation):
            value = BASELINE[task.domain or "in"] + OFFSETS[task.name] / 4
            cell_dir = home.cell(record.cell)
            cell_dir.evaluations.mkdir(parents=True, exist_ok=True)
            _write(cell_dir, record.cell, evaluation, task, 0, accuracy=value)
