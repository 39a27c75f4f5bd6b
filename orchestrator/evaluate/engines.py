"""The engine that generates responses: the spec's engine and sampling as lm-eval's arguments.

Read against lm-eval 0.4.13: `models/vllm_causallms.py`, `models/openai_completions.py`,
`models/api_models.py`. Its defaults would cut responses at 256 tokens and prompts at 2,048, and
send the seed 1234 to every server; so every argument is set explicitly.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from orchestrator import harness_tasks
from orchestrator.environments.lock import Flavour, find_installed
from orchestrator.errors import EnvironmentFault
from orchestrator.identity import digest
from orchestrator.records import Engine, Sampling, Site

PROMPT_TOKENS = 4096
"""Room for a prompt if the spec sets no `max_model_len`; lm-eval would cut a longer one."""

GREEDY = (
    "this sampling keeps only the likeliest token (temperature 0, or min_p 1): it is greedy "
    "decoding, so the k responses to an item are one response, generated once, and evaluation "
    "seeds change nothing"
)


def is_greedy(sampling: Sampling) -> bool:
    """Return True if every response to a prompt is the same one."""
    return sampling.temperature == 0 or sampling.min_p == 1


def resolved(engine: Engine, scale: str, site: Site | None) -> Engine:
    """Return the engine with every open choice decided."""
    name = engine.name
    if name == "auto":
        name = "hf" if scale == "micro" else "vllm"
    parallel, python = engine.tensor_parallel_size, engine.python
    if name == "vllm":
        parallel = parallel or gpus_of(site)
        python = python or _python_of_vllm(site)
    changes = {"name": name, "tensor_parallel_size": parallel, "python": python}
    return engine.model_copy(update=changes)


def _python_of_vllm(site: Site | None) -> str | None:
    """Return the Python of the environment `lm-eval`, if orch's own has no vLLM; None for none."""
    if find_spec("vllm") is not None:
        return None
    folder = (site.options if site else {}).get("environments_dir")
    within = Path(str(folder)).expanduser() if folder else None
    environment = find_installed("lm-eval", harness_tasks.VERSION, within=within)
    return None if environment is None else str(environment.python)


def gpus_of(site: Site | None) -> int:
    """Return the GPUs of a node: `gpus_per_node` of the site's options, else the number in its
    `gres`.
    """
    options = site.options if site else {}
    count = options.get("gpus_per_node")
    if isinstance(count, int) and count > 0:
        return count
    match = re.search(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)", str(options.get("gres", "")))
    return int(match[1]) if match else 1


def title(engine: Engine, harness: str) -> str:
    """Return the engine's name for people; empty for the embedded policies' own."""
    return harness if engine.name == "hf" else f"{harness}, {engine.name}"


def room(engine: Engine, sampling: Sampling, positions: int | None = None) -> int:
    """Return the tokens of the longest prompt and response together.

    positions: the largest number of positions of the checkpoint. vLLM does not exceed it.
    """
    wanted = PROMPT_TOKENS + sampling.max_response_tokens
    return engine.max_model_len or min(wanted, positions or wanted)


def vllm_args(
    engine: Engine,
    checkpoint: str,
    sampling: Sampling,
    seed: int,
    *,
    cpu: bool = False,
    positions: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of lm-eval's VLLM.

    `seed` is the engine's seed; each request has a seed of its own. cpu: True for vLLM's build for
    CPUs. Its compilation takes longer than it saves.
    """
    eager = {"enforce_eager": True} if cpu else {}
    return {
        **eager,
        "pretrained": checkpoint,
        "dtype": engine.dtype,
        "tensor_parallel_size": engine.tensor_parallel_size or 1,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "max_model_len": room(engine, sampling, positions),
        "max_gen_toks": sampling.max_response_tokens,
        "enable_prefix_caching": True,
        "batch_size": "auto",
        "seed": seed,
    }


def server_args(engine: Engine, checkpoint: str, sampling: Sampling) -> dict[str, Any]:
    """Return the arguments of lm-eval's LocalCompletionsAPI.

    Prompts are sent as text. A text that is not tokenised here is not cut here, and gets no second
    <bos>.
    """
    return {
        "model": engine.model or checkpoint,
        "base_url": engine.base_url,
        "tokenizer_backend": None,
        "tokenized_requests": False,
        "num_concurrent": engine.num_concurrent,
        "timeout": engine.timeout_seconds,
        "max_retries": 5,
        "max_length": room(engine, sampling),
        "max_gen_toks": sampling.max_response_tokens,
        "batch_size": 1,
    }


SERVER_EXTENSIONS = {
    "top_k": -1,
    "repetition_penalty": 1.0,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
"""Arguments without which a server takes values from the checkpoint's generation_config and cannot
stop at end-of-turn markers. lm-eval itself sends the last two to vLLM."""


def generation(
    sampling: Sampling, of_task: Mapping[str, Any], engine: Engine | None = None
) -> dict[str, Any]:
    """Return lm-eval's `generation_kwargs`: the task's stop strings and the spec's sampling.

    They set every value that a checkpoint's generation_config would otherwise set: top_k and
    repetition_penalty (for transformers through orch's own GenerationConfig, see models.py).
    """
    name = engine.name if engine else "hf"
    limit = min(of_task["max_gen_toks"], sampling.max_response_tokens)
    arguments: dict[str, Any] = {"until": list(of_task["until"]), "max_gen_toks": limit}
    if name == "vllm":
        arguments |= {"top_k": -1, "repetition_penalty": 1.0}
    elif name == "completions":
        arguments |= SERVER_EXTENSIONS
    if sampling.temperature == 0:
        return {**arguments, "do_sample": False, "temperature": 0.0}
    arguments |= {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
    if name == "hf":
        arguments["top_k"] = 0
    return arguments | ({"min_p": sampling.min_p} if sampling.min_p > 0 else {})


def request_seed(seed: int, prompt: object, repeat: int = 0) -> int:
    """Return a seed for each prompt and repeat: 31 bits, because servers accept no more.

    The seed depends only on these arguments, so a response does not depend on the other requests of
    its batch.
    """
    return int(digest([seed, prompt, repeat]), 16) % 2**31


def grouped(prompts: Sequence[Any]) -> list[tuple[Any, int]]:
    """Return runs of equal prompts as (prompt, length). lm-eval puts the k copies next to each
    other."""
    return [(prompt, len(list(same))) for prompt, same in groupby(prompts)]


def rounds(identities: Sequence[int]) -> list[list[int]]:
    """Return the indices of requests in rounds: round n has the n-th copy of each request."""
    counts: dict[int, int] = {}
    rounds_: list[list[int]] = []
    for place, identity in enumerate(identities):
        count = counts.get(identity, 0)
        counts[identity] = count + 1
        if count == len(rounds_):
            rounds_.append([])
        rounds_[count].append(place)
    return rounds_


def interpreter(engine: Engine, task: harness_tasks.NamedTask) -> str | None:
    """Return the Python that scores a task of the harness; None for orch's own.

    It is the spec's, else that of the environment `lm-eval`, else orch's own. Raise
    EnvironmentFault if orch's own lacks packages that the task needs, and for a server that is
    asked for likelihoods.
    """
    if engine.base_url and task.only_likelihoods:
        raise EnvironmentFault(
            f"task {task.title} compares likelihoods of given answers, which orch asks of no "
            f"server (evaluation.engine.name {engine.name}): use hf or vllm"
        )
    if engine.python is not None:
        return engine.python
    on_cpu = engine.name == "hf" and engine.device == "cpu"
    flavours: tuple[Flavour, ...] = ("cpu", "gpu") if on_cpu else ("gpu",)
    for flavour in flavours:
        environment = find_installed("lm-eval", harness_tasks.VERSION, flavour)
        if environment is not None:
            return str(environment.python)
    if lacking := harness_tasks.lacking(task.needs):
        raise EnvironmentFault(
            f"task {task.title} needs {', '.join(lacking)}, which orch's environment does not "
            f"have: `orch env create lm-eval@{harness_tasks.VERSION}{' --cpu' if on_cpu else ''}` "
            "makes the environment in which it is scored, or name one's Python in "
            "evaluation.engine.python"
        )
    return None


def refuse_cut(prompt_tokens: int, response_tokens: int, positions: int) -> None:
    """Raise EnvironmentFault if prompt and response do not fit: lm-eval would cut the prompt."""
    if prompt_tokens + response_tokens > positions:
        raise EnvironmentFault(
            f"a prompt of {prompt_tokens} tokens and a response of up to {response_tokens} tokens "
            f"do not fit into the {positions} positions of the engine: the prompt would be cut. "
            f"Set sampling.max_response_tokens to at most {max(1, positions - prompt_tokens)}, or "
            "raise evaluation.engine.max_model_len if the model has more positions"
        )


class Seeded:
    """The common part of a server and vLLM: a seed, from which each prompt and repeat gets one."""

    seed = 0

    def seeded(self, seed: int) -> None:
        """Keep the seed of the requests that follow."""
        self.seed = seed
