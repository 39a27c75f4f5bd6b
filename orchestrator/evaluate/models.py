"""The models that lm-eval generates with: a checkpoint in this process, or in vLLM.

Slow to import. The harness builds and scores requests. This module loads the policy, seeds
responses, and keeps out the defaults of checkpoints and libraries.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from orchestrator import harness_tasks
from orchestrator.errors import CheckpointError, EnvironmentFault
from orchestrator.evaluate import engines, vllm_build
from orchestrator.records import Engine, Sampling

SEQUENCES_AT_ONCE = {"cpu": 512, "cuda": 64}


class HarnessPolicy(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """A checkpoint as lm-eval's `hf` model, without the sampling settings that it brings."""

    def __init__(self, path: Path, engine: Engine | None = None):
        device, dtype = (engine.device, engine.dtype) if engine else ("cpu", "auto")
        model, tokenizer = load(path, device, dtype)
        _refuse_infinite(model, path)
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
            batch_size=SEQUENCES_AT_ONCE[device],
            add_bos_token=tokenizer.bos_token is not None,
        )

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = False) -> Any:
        """Decode with special tokens: a <pad> that the policy sampled is a wrong answer, not
        silence.
        """
        return super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> torch.Tensor:
        """Return texts [B, n] with responses.

        Without the criterion of lm-eval where only the end's text stops a response: the criterion
        decodes every row after each token, and the end's token ends a row already.
        """
        ends_alone = stop == [self.tokenizer.eos_token]
        texts: torch.Tensor = super()._model_generate(
            context, max_length, [] if ends_alone else stop, **settings
        )
        return texts

    def has_template(self) -> bool:
        """Return True if the tokenizer has a chat template."""
        return self.tokenizer.chat_template is not None

    def seeded(self, seed: int) -> None:
        """Seed torch's generator, from which the model samples."""
        torch.manual_seed(seed)


def opened(checkpoint: Path, engine: Engine, sampling: Sampling) -> Any:
    """Return the checkpoint as a model of lm-eval. Raise CheckpointError if it does not load."""
    if engine.name == "vllm":
        return _vllm(checkpoint, engine, sampling)
    return HarnessPolicy(checkpoint, engine)


def end(policy: Any) -> None:
    """End the process in which vLLM computes. Do nothing for another model.

    Python waits for its child processes before it ends, and vLLM's process waits for requests. So
    without this call, Python would never end.
    """
    engine = getattr(getattr(policy, "model", None), "llm_engine", None)
    if engine is not None:
        engine.engine_core.shutdown()


def _refuse_infinite(model: Any, path: Path) -> None:
    if not all(part.isfinite().all() for part in model.parameters()):
        raise CheckpointError(
            f"checkpoint {path} has weights that are not finite: its run diverged, and there "
            "is no policy to evaluate; an earlier checkpoint may be whole"
        )


def _positions(checkpoint: Path) -> int | None:
    """Return the number of tokens of a checkpoint's longest text, or None if its config has
    none."""
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        return int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _vllm(checkpoint: Path, engine: Engine, sampling: Sampling) -> Any:
    cpu = vllm_build.is_for_cpu()
    try:
        from lm_eval.models.vllm_causallms import VLLM
    except ImportError as error:
        raise EnvironmentFault(
            f"evaluation.engine is vllm, which cannot be imported here ({error}): `orch env "
            f"create lm-eval@{harness_tasks.VERSION}` makes the environment that has it. Or name "
            "an interpreter with vLLM and lm-eval in evaluation.engine.python"
        ) from error

    class Vllm(VLLM):  # type: ignore[misc]  # lm-eval has no types
        """lm-eval's vLLM model, with one request for all k responses to a prompt."""

        seed = 0

        def seeded(self, seed: int) -> None:
            self.seed = seed

        def has_template(self) -> bool:
            return self.hf_chat_template is not None or self.tokenizer.chat_template is not None

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            """Return the responses. Raise EnvironmentFault if a prompt would be cut."""
            budgets = dict(request.args for request in requests)
            for tokens, budget in zip(
                self.tok_encode(list(budgets)), budgets.values(), strict=True
            ):
                engines.refuse_cut(len(tokens), budget["max_gen_toks"], self.max_length)
            return super().generate_until(requests, disable_tqdm)  # type: ignore[no-any-return]  # no types

        def _model_generate(
            self, requests: Any, generate: bool = False, sampling_params: Any = None
        ) -> list[Any]:
            """Return one output for each copy of a prompt, from a single request with n
            responses."""
            if not generate or not isinstance(sampling_params, list):
                return super()._model_generate(requests, generate, sampling_params)  # type: ignore[no-any-return]  # no types
            groups = engines.grouped(requests)
            params, place = [], 0
            for prompt, count in groups:
                one = sampling_params[place].clone()
                one.n, one.seed = count, engines.request_seed(self.seed, prompt)
                params.append(one)
                place += count
            outputs = super()._model_generate([prompt for prompt, _ in groups], True, params)
            return [
                SimpleNamespace(outputs=[each]) for output in outputs for each in output.outputs
            ]

    return Vllm(
        pretrained=str(checkpoint),
        dtype=engine.dtype,
        tensor_parallel_size=engine.tensor_parallel_size or 1,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engines.room(engine, sampling, _positions(checkpoint)),
        max_gen_toks=sampling.max_response_tokens,
        enable_prefix_caching=True,
        batch_size="auto",
        seed=0,
        # compilation for CPUs takes longer than it saves
        **({"enforce_eager": True} if cpu else {}),
    )


def load(path: Path, device: str = "cpu", dtype: str = "auto") -> tuple[Any, Any]:
    """Return model and tokenizer. Raise CheckpointError if they cannot be loaded."""
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # what the libraries raise for a bad file is not of one kind
        raise CheckpointError(
            f"checkpoint {path} cannot be loaded (cut in half?): "
            f"{' '.join(str(error).split())[:200]}. `orch retry` trains the cell again"
        ) from error
    return model.to(device), tokenizer
