"""Samples responses with transformers, in the place of an inference engine.

It says each token's log-probability under the policy that drew it, at the temperature it was drawn
at, as vLLM does with `logprobs_mode=processed_logprobs`.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class SampledResponse(NamedTuple):
    """One sampled response."""

    ids: list[int]
    """Tokens, with the one that ends the response if one did."""
    logprobs: list[float]
    """One for each token."""
    finish_reason: str
    """`stop` after a token that ends a response, or `length`."""


class Sampler:
    """A policy in memory. Its methods may be called from several threads."""

    def __init__(self, model: str | Path, dtype: str = "float32", seed: int = 0) -> None:
        self._torch = import_module("torch")
        transformers = import_module("transformers")
        self._torch.manual_seed(seed)
        rounds = dtype != "float32" and not import_module("orch_cpu_device").in_fp32()
        self.dtype = getattr(self._torch, dtype) if rounds else self._torch.float32
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            str(model), dtype=self.dtype, attn_implementation="eager"
        ).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(model))
        ends = self.model.generation_config.eos_token_id
        self.ends = frozenset(ends if isinstance(ends, list) else [ends])
        self.num_updates = 0
        self._lock = threading.Lock()

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Take new values for parameters. Raise KeyError or ValueError for one that it lacks."""
        with self._lock, self._torch.no_grad():
            own = dict(self.model.named_parameters())
            for name, value in weights:
                if own[name].shape != value.shape:
                    raise ValueError(f"{name}: {tuple(own[name].shape)} and {tuple(value.shape)}")
                own[name].copy_(value)
            self.num_updates += 1

    def sample(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float = 1.0
    ) -> list[SampledResponse]:
        """Return a response to each prompt (token ids); temperature 0 takes the likeliest token."""
        with self._lock, self._torch.no_grad():
            return self._sample(prompts, max_tokens, temperature)

    def _sample(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float
    ) -> list[SampledResponse]:
        torch = self._torch
        ids, mask = self._left_padded(prompts)
        drawn: list[list[int]] = [[] for _ in prompts]
        scores: list[list[float]] = [[] for _ in prompts]
        open_ones = set(range(len(prompts)))
        past, step = None, ids
        for _ in range(max_tokens):
            # Counted from the mask, because prompts are padded on the left.
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -step.shape[1] :]
            out = self.model(
                step,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=past,
                use_cache=True,
            )
            past = out.past_key_values
            logp = torch.log_softmax(out.logits[:, -1].float() / (temperature or 1.0), -1)
            token = logp.argmax(-1) if temperature == 0 else torch.multinomial(logp.exp(), 1)[:, 0]
            for row, one in enumerate(token.tolist()):
                if row in open_ones:
                    drawn[row].append(one)
                    scores[row].append(logp[row, one].item())
                    if one in self.ends:
                        open_ones.discard(row)
            if not open_ones:
                break
            step = token[:, None]
            mask = torch.cat([mask, torch.ones_like(step)], 1)
        return [
            SampledResponse(tokens, logps, "length" if row in open_ones else "stop")
            for row, (tokens, logps) in enumerate(zip(drawn, scores, strict=True))
        ]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token after those before it; 0 for the first."""
        torch = self._torch
        with self._lock, torch.no_grad():
            longest = max(map(len, sequences))
            # Padded on the right: a token sees only what is before it.
            rows = [[*each, *[0] * (longest - len(each))] for each in sequences]
            logp = torch.log_softmax(self.model(torch.tensor(rows)).logits.float(), -1)
        return [
            [0.0, *(logp[row, at, token].item() for at, token in enumerate(each[1:]))]
            for row, each in enumerate(sequences)
        ]

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        longest = max(map(len, prompts))
        ids = [[*[0] * (longest - len(each)), *each] for each in prompts]
        mask = [[*[0] * (longest - len(each)), *[1] * len(each)] for each in prompts]
        return self._torch.tensor(ids), self._torch.tensor(mask)


def read_weights(folder: Path) -> Mapping[str, Any]:
    """Return the tensors of a Hugging Face directory."""
    load_file = import_module("safetensors.torch").load_file
    return {
        k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()
    }
