"""What a spec asks of checkpoints: tasks, baselines, sampling, divergences, the engine; and what is
published about them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from orchestrator.settings import (
    Frozen,
    Name,
    NonNegativeFloat,
    PositiveInt,
    Probability,
)


class Sampling(Frozen):
    """How evaluation samples. `min_p` 1.0 keeps only the likeliest token: greedy decoding."""

    temperature: NonNegativeFloat = 1.0
    top_p: Probability = 1.0
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_response_tokens: PositiveInt = 1024


class EvalTask(Frozen):
    """One evaluation task: `repeats` responses per item (the k of mean@k and pass@k)."""

    name: Name
    domain: Literal["in", "out"]
    """`in`: the domain trained on; `out`: abilities that training could cost."""
    repeats: PositiveInt = 1
    max_items: PositiveInt | None = None
    """None: the whole task."""
    chat_template: Literal["default", "none"] = "default"


class Baseline(Frozen):
    """A model evaluated as it is before training, with or without its chat template."""

    model: Name
    """Name of a model of the spec."""
    chat_template: Literal["default", "none"] = "default"


class DivergenceTask(Frozen):
    """Prompts on which the policy is compared with its reference policy."""

    name: Name
    domain: Literal["in", "out"]
    chat_template: Literal["default", "none"] = "default"


class Divergence(Frozen):
    """Both KL divergences to the reference policy and the entropy, exact over the vocabulary at
    every position of sampled responses (paper, Fig. 12)."""

    tasks: tuple[DivergenceTask, ...] = Field(strict=False)
    max_items: PositiveInt = 256
    """The first so many prompts of each task, one response each."""
    max_response_tokens: PositiveInt = 1024
    checkpoints: Literal["last", "all"] = "all"
    """Of a rehearsal the last only, unless `evaluation.checkpoints` is `all` as well: the embedded
    trainer logs the curves itself, exactly."""


class Engine(Frozen):
    """What generates responses, as lm-eval's model. `auto`: vllm for a cell at full scale, hf for
    the embedded policies."""

    name: Literal["auto", "hf", "vllm", "completions", "chat"] = "auto"
    """hf: transformers; vllm: in this process; completions, chat: an OpenAI-compatible server."""
    device: Literal["cpu", "cuda"] = "cpu"
    """hf only."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    tensor_parallel_size: PositiveInt | None = None
    """vllm; None: the GPUs of a node of the site."""
    gpu_memory_utilization: Probability = 0.9
    max_model_len: PositiveInt | None = None
    """Prompt and response in tokens; None: 4096 and the longest response."""
    base_url: str | None = None
    """Servers: all of the address, such as http://node7:8000/v1/completions."""
    model: str | None = None
    """Servers: the model's name there; None: the checkpoint's path, as vLLM serves it."""
    extensions: bool = True
    """Servers: send what OpenAI's API lacks and vLLM, SGLang and llama.cpp take (top_k, min_p,
    repetition_penalty, special tokens). A server that refuses them samples by its own defaults."""
    num_concurrent: PositiveInt = 32
    timeout_seconds: PositiveInt = 1800
    python: str | None = None
    """Interpreter of an environment with lm-eval (and vLLM); None: orch's own."""

    @model_validator(mode="after")
    def _server_has_address(self) -> Self:
        if (self.name in ("completions", "chat")) != (self.base_url is not None):
            raise ValueError(
                "base_url is needed with name 'completions' or 'chat', and only then; "
                f"got name '{self.name}' and base_url {self.base_url}"
            )
        return self


class Evaluation(Frozen):
    """What is asked of each checkpoint."""

    tasks: tuple[EvalTask, ...] = Field(default=(), strict=False)
    baselines: tuple[Baseline, ...] = Field(default=(), strict=False)
    sampling: Sampling = Sampling()
    seeds: tuple[int, ...] = Field(default=(0,), strict=False)
    checkpoints: Literal["last", "all"] = "last"
    divergence: Divergence | None = None
    engine: Engine = Engine()


class PublishedNumber(Frozen):
    """A number somebody printed about a claim: how much higher left is than right."""

    name: Name
    claim: str
    """In the grammar of orchestrator/claims.py, both sides of one metric."""
    relative_improvement: Annotated[float, Field(gt=-1, allow_inf_nan=False)]
    """left / right - 1, averaged over tasks."""
    where: str = ""
    """Section, figure or table."""


class Published(Frozen):
    """Published numbers that ours are set beside, never merged with."""

    source: str = ""
    numbers: tuple[PublishedNumber, ...] = Field(default=(), strict=False)
