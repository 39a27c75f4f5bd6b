"""One checkpoint through lm-evaluation-harness's `hf` backend. Slow to import: worker.py does.

The harness builds the requests, generates, filters and scores; what is ours here is to load the
policy, to say how to sample, to seed, and to check that nothing was thrown away.
"""

import json
import time
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from orchestrator.errors import CheckpointError
from orchestrator.evaluate.results import Ask, Asked, Job, Result
from orchestrator.files import write_text
from orchestrator.fingerprint import digest
from orchestrator.types import Sampling, Score

SEQUENCES_AT_ONCE = 512

CLOSED_FORM = 1
"""lm-eval's `bootstrap_iters`: 0 would leave out the standard error of a mean too, and a mean's is
computed, not bootstrapped."""

VERSIONS = {name: version(name) for name in ("lm_eval", "torch", "transformers")}


class Policy(HFLM):  # type: ignore[misc]
    """A checkpoint as lm-eval's `hf` model."""

    def __init__(self, path: Path):
        model, tokenizer = _load(path)
        ends = model.generation_config
        # A checkpoint may bring sampling settings of its own (top_k, repetition_penalty); the
        # spec's are the only ones that count.
        model.generation_config = GenerationConfig(
            bos_token_id=ends.bos_token_id,
            eos_token_id=ends.eos_token_id,
            pad_token_id=ends.pad_token_id,
        )
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=SEQUENCES_AT_ONCE,
            add_bos_token=tokenizer.bos_token is not None,
        )

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = False) -> Any:
        """Keeps special tokens: a <pad> that the policy sampled is a wrong answer, not silence."""
        return super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)


def answer(job: Job) -> None:
    """Scores one checkpoint and writes each result. Raises CheckpointError if it does not load."""
    policy = Policy(Path(job.checkpoint))
    for ask in job.asks:
        _answer(policy, job, ask)


def prepare(job: Job) -> None:
    """Does beforehand what every job would do: a fork then finds modules and tasks in memory."""
    torch.set_num_threads(1)
    for ask in job.asks:
        load_task(Path(ask.task_file))
    _load(Path(job.checkpoint))


@lru_cache
def load_task(path: Path) -> tuple[Any, Mapping[str, Any]]:
    """lm-eval's task of this file, and the generation settings the file itself asks for."""
    (task,) = TaskManager(include_defaults=False).load([str(path)])["tasks"].values()
    return task, deepcopy(task.get_config("generation_kwargs"))


def generation(sampling: Sampling, of_task: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's `generation_kwargs`: where to stop is the task's, how to sample the spec's."""
    limit = min(of_task["max_gen_toks"], sampling.max_response_tokens)
    stop = {"until": list(of_task["until"]), "max_gen_toks": limit}
    if sampling.temperature == 0:
        return {**stop, "do_sample": False, "temperature": 0.0}
    kwargs = {**stop, "do_sample": True, "temperature": sampling.temperature,
              "top_p": sampling.top_p, "top_k": 0}  # fmt: skip
    return kwargs | ({"min_p": sampling.min_p} if sampling.min_p > 0 else {})


def seed_of(asked: Asked) -> int:
    """Another stream for each checkpoint, task and seed, so that their noise is independent."""
    return int(digest([asked.checkpoint, asked.task.name, asked.seed]), 16)


def _load(path: Path) -> tuple[Any, Any]:
    try:
        return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    except Exception as error:  # what the libraries raise for a bad file is not of one kind
        raise CheckpointError(
            f"checkpoint {path} cannot be loaded (cut in half?): "
            f"{' '.join(str(error).split())[:200]}. `orch retry` trains the cell again"
        ) from error


def _answer(policy: Policy, job: Job, ask: Ask) -> None:
    asked, started, cpu = ask.asked, time.perf_counter(), time.process_time()
    samples, values = _evaluate(policy, ask)
    items = [_item(sample) for sample in samples]
    target, seconds = Path(ask.results), time.perf_counter() - started
    scores = tuple(
        Score(
            cell_id=job.cell_id, step=asked.step, task=asked.task.name, domain=asked.task.domain,
            metric=metric, value=value, stderr=stderr, num_items=len(items),
            repeats=asked.task.repeats, eval_seed=asked.seed, sampling=asked.sampling,
            task_version=asked.task_version, harness=asked.harness,
            seconds=seconds, items_path=f"eval/{asked.stem}.jsonl",
        )
        for metric, (value, stderr) in values.items()
    )  # fmt: skip
    result = Result(
        asked=asked, files=job.files, scores=scores,
        cpu_seconds=time.process_time() - cpu,
        versions=VERSIONS,
    )  # fmt: skip
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
    write_text(target.with_suffix(".jsonl"), lines)  # first: scores on disk have their items
    write_text(target, result.model_dump_json() + "\n")


def _evaluate(policy: Policy, ask: Ask) -> tuple[list[Any], dict[str, tuple[float, float | None]]]:
    """lm-eval's samples, and metric -> (value, standard error)."""
    asked = ask.asked
    task, own = load_task(Path(ask.task_file))
    task.set_config("repeats", asked.task.repeats)
    task.set_config("generation_kwargs", generation(asked.sampling, own))
    task.set_fewshot_seed(asked.seed)
    torch.manual_seed(seed_of(asked))
    given = evaluator.evaluate(
        lm=policy,
        task_dict={"tasks": {asked.task.name: task}},
        limit=asked.task.max_items,
        bootstrap_iters=CLOSED_FORM,
        apply_chat_template=asked.chat_template and policy.tokenizer.chat_template is not None,
    )
    samples = given["samples"][asked.task.name]
    num_items = min(len(task.eval_docs), asked.task.max_items or len(task.eval_docs))
    kept = {len(sample["filtered_resps"][0]) for sample in samples}
    if len(samples) != num_items or kept != {asked.task.repeats}:
        raise RuntimeError(
            f"lm-eval scored {len(samples)} items with {kept} responses each where {num_items} "
            f"with {asked.task.repeats} were asked for; the filter in {ask.task_file} drops some"
        )
    return samples, _metrics(given["results"][asked.task.name], asked.task.repeats)


def _metrics(results: Mapping[str, Any], repeats: int) -> dict[str, tuple[float, float | None]]:
    """`mean@k,all` becomes `mean@4`; lm-eval writes "N/A" where there is no standard error."""
    values = {}
    for key, value in results.items():
        name, comma, filter_name = key.partition(",")
        if comma and "@k" in name and not name.endswith("_stderr"):
            stderr = results[f"{name}_stderr,{filter_name}"]
            values[name.replace("@k", f"@{repeats}")] = (
                float(value),
                None if isinstance(stderr, str) else float(stderr),
            )
    return values


def _item(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "item": sample["doc_id"],
        "prompt": sample["arguments"][0][0],
        "target": sample["target"],
        "responses": sample["filtered_resps"][0],
        "correct": sample["correct"],
    }
