"""The engine that generates responses: the spec's engine and sampling as lm-eval's arguments.

Read against lm-eval 0.4.13: `models/vllm_causallms.py`. Its defaults would cut responses at 256
tokens and prompts at 2,048; so every argument is set explicitly.
"""

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
from orchestrator.spec.node_gpus import gpus_of_node

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
        parallel = parallel or gpus_of_node(site.options if site else {}) or 1
        python = python or _python_of_vllm(site)
    changes = {"name": name, "tensor_parallel_size": parallel, "python": python}
    return engine.model_copy(update=changes)


def _python_of_vllm(site: Site | None) -> str | None:
    """Return the Python of the environment `lm-eval`, if orch's own has no vLLM; None for none."""
    if find_spec("vllm") is not None:
        return None
    folder = (site.options if site else {}).get("environments_dir")
    return _made("gpu", within=Path(str(folder)).expanduser() if folder else None)


def _made(*flavours: Flavour, within: Path | None = None) -> str | None:
    """Return the Python of the environment `lm-eval` of one of these flavours; None for none."""
    known = (find_installed("lm-eval", harness_tasks.VERSION, each, within) for each in flavours)
    return next((str(environment.python) for environment in known if environment), None)


def room(engine: Engine, sampling: Sampling, positions: int | None = None) -> int:
    """Return the tokens of the longest prompt and response together.

    positions: the largest number of positions of the checkpoint. vLLM does not exceed it.
    """
    wanted = PROMPT_TOKENS + sampling.max_response_tokens
    return engine.max_model_len or min(wanted, positions or wanted)


def generation(sampling: Sampling, of_task: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """Return lm-eval's `generation_kwargs`: the task's stop strings and the spec's sampling.

    They set every value that a checkpoint's generation_config would otherwise set: top_k and
    repetition_penalty (for transformers through orch's own GenerationConfig, see models.py).
    """
    limit = min(of_task["max_gen_toks"], sampling.max_response_tokens)
    arguments: dict[str, Any] = {"until": list(of_task["until"]), "max_gen_toks": limit}
    if engine.name == "vllm":
        arguments |= {"top_k": -1, "repetition_penalty": 1.0}
    if sampling.temperature == 0:
        return {**arguments, "do_sample": False, "temperature": 0.0}
    arguments |= {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
    if engine.name == "hf":
        arguments["top_k"] = 0
    return arguments | ({"min_p": sampling.min_p} if sampling.min_p > 0 else {})


def request_seed(seed: int, prompt: object) -> int:
    """Return a seed for each prompt: 31 bits, as for a NumPy generator.

    It depends only on these arguments, so a response does not depend on the other requests of its
    batch.
    """
    return int(digest([seed, prompt, 0]), 16) % 2**31


def grouped(prompts: Sequence[Any]) -> list[tuple[Any, int]]:
    """Return runs of equal prompts as (prompt, length). lm-eval puts the k copies next to each
    other."""
    return [(prompt, len(list(same))) for prompt, same in groupby(prompts)]


def interpreter(engine: Engine, task: harness_tasks.NamedTask) -> str | None:
    """Return the Python that scores a task of the harness; None for orch's own.

    It is the spec's, else that of the environment `lm-eval`, else orch's own. Raise
    EnvironmentFault if orch's own lacks packages that the task needs.
    """
    if engine.python is not None:
        return engine.python
    on_cpu = engine.name == "hf" and engine.device == "cpu"
    if python := _made("cpu", "gpu") if on_cpu else _made("gpu"):
        return python
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
