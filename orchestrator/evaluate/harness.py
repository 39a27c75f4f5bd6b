"""Score one checkpoint with lm-evaluation-harness. Slow to import; only worker.py imports it.

The harness builds the requests, generates, filters and scores. This module sets the sampling and
the seeds, works slice by slice so that a kill loses only one slice, and checks that no response was
discarded.
"""

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from lm_eval import evaluator
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import divergence, models, named
from orchestrator.evaluate.engines import generation as generation
from orchestrator.evaluate.engines import is_greedy
from orchestrator.evaluate.items import means
from orchestrator.evaluate.models import HarnessPolicy as HarnessPolicy
from orchestrator.evaluate.scores import ItemRequest, ScoreKey, ScoringJob
from orchestrator.evaluate.shards import Shard, Shards, joined
from orchestrator.identity import digest

CLOSED_FORM = 1
"""lm-eval's `bootstrap_iters`. With 0, lm-eval would also leave out the standard error of a mean,
which it computes without a bootstrap."""

VERSIONS = {name: version(name) for name in ("lm_eval", "torch", "transformers")}

tqdm.set_lock(RLock())  # forks share tqdm's own: one that is killed in it would stop all others


def answer(job: ScoringJob) -> None:
    """Score one checkpoint and write each result. Raise CheckpointError if it does not load."""
    policy = models.opened(Path(job.checkpoint), job.engine, job.asks[0].asked.sampling)
    faults: list[str] = []
    try:
        for ask in job.asks:
            shards = Shards(job, ask, VERSIONS)
            if ask.harness_task:
                try:
                    named.answer(policy, shards)
                except EnvironmentFault as error:  # the other tasks are scored all the same
                    faults.append(str(error))
            elif ask.asked.kind == "divergence":
                task, own = load_task(Path(ask.task_file))
                divergence.answer(policy, task, own["max_gen_toks"], shards)
            else:
                _answer(policy, shards)
    finally:
        models.end(policy)
    if faults:
        raise EnvironmentFault("; ".join(faults))


def prepare(job: ScoringJob) -> None:
    """Import the modules and load the tasks that every job needs, so that forked workers have them
    in memory."""
    torch.set_num_threads(1)
    for ask in job.asks:
        if ask.task_file:
            load_task(Path(ask.task_file))
    models.opened(Path(job.checkpoint), job.engine, job.asks[0].asked.sampling)


@lru_cache
def load_task(path: Path) -> tuple[Any, Mapping[str, Any]]:
    """Return lm-eval's task in this file, and the generation settings of the file.

    Raise EnvironmentFault if its number of items differs from the number that its file declares.
    """
    (task,) = TaskManager(include_defaults=False).load([str(path)])["tasks"].values()
    expected = declared_items(task)
    if expected is not None and len(task.eval_docs) != expected:
        raise EnvironmentFault(
            f"task {path.stem} has {len(task.eval_docs)} items where {expected} are expected: the "
            "data set is another one than the task was written for, so its scores would not "
            f"compare. Restore it, or change metadata.num_items in {path}"
        )
    return task, deepcopy(task.get_config("generation_kwargs"))


def declared_items(task: Any) -> int | None:
    """Return the number of items that a task's file declares."""
    declared: int | None = (task.config.metadata or {}).get("num_items")
    return declared


def seed_of(score_key: ScoreKey, first_item: int) -> int:
    """Return a different seed for each checkpoint, task, seed and slice, so that their noise is
    independent."""
    parts: list[object] = [score_key.checkpoint, score_key.task.name, score_key.seed]
    return int(digest(parts + ([first_item] if first_item else [])), 16)


def _answer(policy: Any, shards: Shards) -> None:
    asked = shards.asked
    task, own = load_task(Path(shards.ask.task_file))
    repeats = 1 if is_greedy(asked.sampling) else asked.task.repeats
    task.set_config("repeats", repeats)
    task.set_config("generation_kwargs", generation(asked.sampling, own, shards.job.engine))
    task.set_fewshot_seed(asked.seed)
    num_items = min(len(task.eval_docs), asked.task.max_items or len(task.eval_docs))
    parts = shards.parts(num_items, repeats)
    responses = [
        shards.made(
            f"{part.start}-{part.stop}",
            partial(_samples, policy, task, shards.ask, part, repeats),
            alone=len(parts) == 1,
        )
        for part in parts
    ]
    items = joined(responses)
    shards.finish(items, means(items, asked.task.repeats), responses)


def _samples(policy: Any, task: Any, ask: ItemRequest, part: range, repeats: int) -> Shard:
    """Return some items as lm-eval scores them, with every response."""
    score_key = ask.asked
    policy.seeded(seed_of(score_key, part.start))
    results = evaluator.evaluate(
        lm=policy,
        task_dict={"tasks": {score_key.task.name: task}},
        samples={score_key.task.name: part},  # lm-eval looks each item up in it: a range is fast
        bootstrap_iters=CLOSED_FORM,
        apply_chat_template=score_key.chat_template and policy.has_template(),
    )
    samples: list[Any] = results["samples"][score_key.task.name]
    kept = {len(sample["filtered_resps"][0]) for sample in samples}
    if len(samples) != len(part) or kept != {repeats}:
        raise RuntimeError(
            f"lm-eval scored {len(samples)} items with {kept} responses each where {len(part)} "
            f"with {repeats} were asked for; the filter in {ask.task_file} drops some"
        )
    return {"items": [*map(_item, samples)]}


def _item(sample: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: sample[key] for key in ("correct", "answers") if key in sample}
    prompt = sample["arguments"][0][0]
    return {
        "item": sample["doc_id"],
        "prompt": prompt if isinstance(prompt, str) else str(prompt[0]),
        "target": sample["target"],
        "responses": sample["filtered_resps"][0],
        **kept,
        "metrics": {name: float(sample[name]) for name in sample["metrics"] if "@" in name},
    }
