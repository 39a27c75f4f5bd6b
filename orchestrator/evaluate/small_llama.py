"""A small Llama on the CPU: its forward pass and sampling, in torch alone. Slow to import.

The embedded policies are Llamas of 50,000 parameters. Of their evaluation by Transformers, half was
Python around small operations, and importing its Llama took longer than ten checkpoints. Here the
same operations of torch run in the same order on the same shapes, so that logits and samples have
the same bits (tests/evaluate/test_small_llama.py compares them). A text that occurs several times
in a batch is computed once (see MULTIPLE), and a text that has ended is not computed any more.

Where the embedded trainer's kernels can be used, they compute the responses to prompts of its own
tasks, by the same draws. Their logits differ in the last digits, so a token can be another one
where two are equally near (docs/decisions/118).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.configuration_utils import PreTrainedConfig

from orchestrator import plugins
from orchestrator.library.protocol import PolicyKernels
from orchestrator.records import Sampling

MULTIPLE = 16
"""Number of rows that a policy computes is a multiple of this. The last row of another number, and
each of one to three rows, takes another path in the CPU's matrix products: its last bits differ
from those of the same row inside a large batch. So they do near the end of a thread's part."""

MOST_BYTES = 2**24
"""Largest file of weights: in a larger policy the products cost more than what is around them."""

PLAIN: dict[str, tuple[object, ...]] = {
    "architectures": (["LlamaForCausalLM"],),
    "model_type": ("llama",),
    "dtype": ("float32",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "tie_word_embeddings": (False,),
    "use_cache": (True,),
}
"""Keys of a config.json -> the values that this module computes. Each key must be there."""
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
)
"""Keys of a config.json whose value is a size. Each key must be there."""
OTHERS = ("rope_parameters", "rope_theta", "pad_token_id", "bos_token_id", "eos_token_id")
TOKENIZER = "PreTrainedTokenizerFast"

BATCHES_KEPT = 8
"""Prompts whose equal rows are known, and prompts whose forward pass is."""
PLAIN_SAMPLING = {
    "do_sample": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "use_cache": True,
}
"""The arguments of `generate` for responses that are drawn from the policy itself."""

_STEP = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""Weights of a layer, in the order in which they are used."""


class ForwardResult(NamedTuple):
    """The result of a forward pass. Its field has Transformers' name."""

    logits: Tensor


class _Layer(NamedTuple):
    """The weights of a layer."""

    before: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    after: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class _KeysValues(NamedTuple):
    """Keys and values of a layer, [B, heads, n, width]."""

    key: Tensor
    value: Tensor


class _Prompts(NamedTuple):
    """Prompts [kinds, n] and their forward pass."""

    ids: Tensor
    mask: Tensor
    logits: Tensor
    """Of the next token, [kinds, V]."""
    cache: "list[_KeysValues]"
    """Of each layer."""


class SmallLlama:
    """A policy. Its attributes have the names that lm-eval reads from a model of Transformers."""

    device = torch.device("cpu")

    def __init__(
        self,
        config: PreTrainedConfig,
        weights: dict[str, Tensor],
        generation: GenerationConfig,
        kernels: PolicyKernels | None = None,
    ):
        self.config, self.generation_config, self.kernels = config, generation, kernels
        self._eps = config.rms_norm_eps
        self._width = config.head_dim
        base = config.rope_parameters["rope_theta"]
        exponents = torch.arange(0, self._width, 2, dtype=torch.float) / self._width
        self._frequencies = 1.0 / (base**exponents)
        self._cos = self._sin = torch.empty(0)
        """Cosine and sine at each position, [positions, width]."""
        self._batches: list[tuple[Tensor, Tensor, int, Tensor]] = []
        """Prompts and masks seen last, each with its number of kinds and the kind of each row."""
        self._prompts: list[_Prompts] = []
        """Prompts that the present weights have seen last."""
        self.load_state_dict(weights)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        return dict(self._weights)

    def parameters(self) -> Sequence[Tensor]:
        """Return the weights."""
        return list(self._weights.values())

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Take these weights, which have the names and shapes of the present ones."""
        self._weights = dict(weights)
        self._layers = []
        for layer in range(self.config.num_hidden_layers):
            names = [f"model.layers.{layer}.{name}.weight" for name in _STEP]
            self._layers.append(_Layer(*(weights[name] for name in names)))
        self._prompts.clear()
        if self.kernels is not None:
            self.kernels.take(weights)

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> ForwardResult:
        """Return the logits [B, n, V] of texts [B, n]; the mask may have zeros on either side."""
        length = input_ids.shape[1]
        hidden = self.hidden(input_ids, attention_mask, torch.arange(length)[None], None, length)
        return ForwardResult(self.logits(hidden))

    @torch.inference_mode()
    def logits_in_responses(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Return the logits [B, n, V] for each token of responses [B, n] to prompts [B, m].

        Those behind the end of a response mean nothing. By torch, the forward pass of prompts is
        that of sampling and is kept (`prompts`). Rounding differs from that of a pass over the
        whole texts. By the kernels, the logits are log-probabilities.
        """
        kernels = self._kernels_for(torch.ones_like(prompts), responses.shape[1])
        if kernels is not None:
            is_end = torch.isin(responses, self._stops())
            return kernels.logps(prompts, responses, is_end.cumsum(1) - is_end.long() == 0)
        return _Batch(self, prompts, torch.ones_like(prompts)).logits_in(responses)

    @torch.inference_mode()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        pad_token_id: int,
        max_length: int | None = None,
        max_new_tokens: int = 0,
        stopping_criteria: Sequence[Callable[[Tensor, None], bool]] = (),
        **named: Any,
    ) -> Tensor:
        """Return texts [B, n] with sampled responses, as Transformers' `generate` does.

        Raise ValueError for a sampling that is not the plain one (`samples_plainly`).
        """
        if {**PLAIN_SAMPLING, **named} != PLAIN_SAMPLING:
            raise ValueError(f"a small Llama samples as {PLAIN_SAMPLING}, not as {named}")
        texts, longest = input_ids, max_length or input_ids.shape[1] + max_new_tokens
        kernels = self._kernels_for(attention_mask, longest - input_ids.shape[1])
        if kernels is not None and not stopping_criteria:
            responses = self._sampled_by(kernels, input_ids, longest - input_ids.shape[1])
            return torch.cat([input_ids, responses.masked_fill(responses < 0, pad_token_id)], 1)
        stops = self._stops()
        is_open = torch.ones(len(texts), dtype=torch.bool)
        batch = _Batch(self, input_ids, attention_mask)
        while True:
            tokens = torch.multinomial(batch.probabilities(), num_samples=1).squeeze(1)
            tokens = torch.where(is_open, tokens, pad_token_id)
            texts = torch.cat([texts, tokens[:, None]], dim=-1)
            is_open = is_open & ~torch.isin(tokens, stops)
            # Each is called, as Transformers calls each: they count what they have seen.
            stopped = [bool(stop(texts, None)) for stop in stopping_criteria]
            if texts.shape[1] >= longest or any(stopped) or not is_open.any():
                return texts
            batch.take(tokens, is_open)

    def _sampled_by(self, kernels: PolicyKernels, prompts: Tensor, longest: int) -> Tensor:
        """Return sampled responses [B, n], -1 behind their ends. torch's generator is left as by
        sampling token by token."""
        shape = len(prompts), self.config.vocab_size
        exponentials, states = [], []
        for _ in range(longest):
            exponentials.append(torch.empty(shape).exponential_())  # what torch.multinomial draws
            states.append(torch.default_generator.get_state())
        tokens, is_token = kernels.sample(prompts, torch.stack(exponentials))
        drawn = int(is_token.sum(1).max())
        torch.default_generator.set_state(states[drawn - 1])
        return tokens.masked_fill(~is_token, -1)[:, :drawn]

    def _kernels_for(self, mask: Tensor, longest: int) -> PolicyKernels | None:
        """Return the kernels if they can compute responses to prompts with this mask."""
        kernels = self.kernels
        if kernels is None or mask.shape[1] != kernels.prompt_tokens or not mask.all():
            return None
        return kernels if 0 < longest <= kernels.longest else None

    def _stops(self) -> Tensor:
        ends = self.generation_config.eos_token_id
        return torch.tensor(ends if isinstance(ends, list) else [ends])

    def kinds_of(self, ids: Tensor, mask: Tensor) -> tuple[int, Tensor]:
        """Return the number of different texts of a batch, and the kind of each row.

        Where a row's bits depend on its place, each row is a kind.
        """
        if not _keeps_bits(len(ids)):
            return len(ids), torch.arange(len(ids))
        for known, known_mask, number, place in self._batches:
            if torch.equal(known, ids) and torch.equal(known_mask, mask):
                return number, place
        kinds, place = torch.unique(torch.cat([ids, mask], dim=1), dim=0, return_inverse=True)
        _append(self._batches, (ids.clone(), mask.clone(), len(kinds), place))
        return len(kinds), place

    def prompts(self, ids: Tensor, mask: Tensor) -> _Prompts:
        """Return the forward pass of prompts, which tasks and divergences have in common."""
        for known in self._prompts:
            if torch.equal(known.ids, ids) and torch.equal(known.mask, mask):
                return known
        cache: list[_KeysValues] = []
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        hidden = self.hidden(ids, mask, positions, cache, 1)
        prompts = _Prompts(ids, mask, self.logits(hidden)[:, 0], cache)
        _append(self._prompts, prompts)
        return prompts

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: list[_KeysValues] | None,
        last: int,
    ) -> Tensor:
        """Return the last layer's output [B, last, H] for the last tokens of `ids`, [B, n].

        mask: [B, m], of all m tokens so far. positions: [1 or B, n]. cache: for each layer, of the
        m - n tokens before these; these are appended. An empty list is filled.
        """
        rotation = self._rotation(positions, mask.shape[1])
        allowed = _allowed(mask, ids.shape[1])
        is_beginning = not cache
        hidden = functional.embedding(ids, self._weights["model.embed_tokens.weight"])
        for number, layer in enumerate(self._layers):
            normed = self._normed(hidden, layer.before)
            query, key, value = (
                functional.linear(normed, weight).view(*ids.shape, -1, self._width).transpose(1, 2)
                for weight in (layer.query, layer.key, layer.value)
            )
            query, key = _rotated(query, rotation), _rotated(key, rotation)
            if cache is not None and is_beginning:
                cache.append(_KeysValues(key, value))
            elif cache is not None:
                key = torch.cat([cache[number].key, key], dim=2)
                value = torch.cat([cache[number].value, value], dim=2)
                cache[number] = _KeysValues(key, value)
            mixed = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=allowed,
                scale=self._width**-0.5,
                is_causal=allowed is None and ids.shape[1] > 1,
            )
            mixed = mixed.transpose(1, 2).reshape(*ids.shape, -1)
            if number == len(self._layers) - 1 and last < ids.shape[1] and _keeps_bits(len(ids)):
                # What follows takes each token for itself.
                mixed, hidden = (part[:, -last:].contiguous() for part in (mixed, hidden))
            hidden = hidden + functional.linear(mixed, layer.output)
            normed = self._normed(hidden, layer.after)
            inner = functional.silu(functional.linear(normed, layer.gate))
            hidden = hidden + functional.linear(
                inner * functional.linear(normed, layer.up), layer.down
            )
        return self._normed(hidden, self._weights["model.norm.weight"])[:, -last:]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [B, n, V] of a last layer's output."""
        return functional.linear(hidden, self._weights["lm_head.weight"])

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._eps)

    def _rotation(self, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine at positions below `longest`, [1 or B, 1, n, width]."""
        if len(self._cos) < longest:
            angles = torch.arange(longest)[:, None].float() * self._frequencies
            angles = torch.cat((angles, angles), dim=-1)
            self._cos, self._sin = angles.cos(), angles.sin()
        cos, sin = (functional.embedding(positions, each) for each in (self._cos, self._sin))
        return cos.unsqueeze(1), sin.unsqueeze(1)


class _Batch:
    """A batch of texts that grows."""

    def __init__(self, model: SmallLlama, ids: Tensor, mask: Tensor):
        self._model = model
        number, self._place = model.kinds_of(ids, mask)
        self._shares = _keeps_bits(len(ids))
        chosen = self._one_of_each(number, self._place, torch.arange(len(ids)))
        prompts = model.prompts(ids[chosen], mask[chosen])
        self._mask, self._logits, self._cache = prompts.mask, prompts.logits, list(prompts.cache)
        self._next = self._mask.sum(-1, keepdim=True) - 1

    def probabilities(self) -> Tensor:
        """Return the probabilities of the next token, [B, V]. Those of an ended row mean
        nothing."""
        return functional.softmax(self._logits, dim=-1)[self._place]

    def take(self, tokens: Tensor, is_open: Tensor) -> None:
        """Append a token to each text. Ended texts are left out of what follows."""
        if self._shares:
            # One number for a pair: the row's kind before this token, and the token.
            pairs = self._place * self._model.config.vocab_size + tokens
            # An ended row stands for any open one: its logits are not looked at.
            pairs = torch.where(is_open, pairs, pairs[is_open.long().argmax()])
            kinds, place = torch.unique(pairs, return_inverse=True)
            chosen = self._one_of_each(len(kinds), place, is_open.nonzero()[:, 0])
        else:
            place = chosen = torch.arange(len(tokens))
        rows = self._place[chosen]
        self._place = place
        cache = self._cache_of(rows)
        self._next = self._next[rows] + 1
        self._mask = functional.pad(self._mask[rows], (0, 1), value=1)
        ids = tokens[chosen][:, None]
        hidden = self._model.hidden(ids, self._mask, self._next, cache, 1)
        self._cache = cache
        self._logits = self._model.logits(hidden)[:, 0]

    def logits_in(self, responses: Tensor) -> Tensor:
        """Return the logits [B, n, V] for each token of responses [B, n] to the texts."""
        rows, length = self._place, responses.shape[1] - 1
        first = self._logits[rows][:, None]
        if not length:
            return first
        mask = functional.pad(self._mask[rows], (0, length), value=1)
        positions = self._next[rows] + 1 + torch.arange(length)
        cache = self._cache_of(rows)
        hidden = self._model.hidden(responses[:, :-1], mask, positions, cache, length)
        return torch.cat([first, self._model.logits(hidden)], dim=1)

    def _cache_of(self, rows: Tensor) -> list[_KeysValues]:
        """Return the keys and values of these rows. The list is new."""
        if torch.equal(rows, torch.arange(len(self._mask))):
            return list(self._cache)
        return [
            _KeysValues(key.index_select(0, rows), value.index_select(0, rows))
            for key, value in self._cache
        ]

    def _one_of_each(self, number: int, place: Tensor, rows: Tensor) -> Tensor:
        """Return one of these rows for each kind, the last one again up to a multiple."""
        chosen = torch.empty(number, dtype=torch.long)
        chosen[place[rows]] = rows  # any row of a kind: they are equal
        if not self._shares:
            return chosen
        return torch.cat([chosen, chosen[-1:].expand(-number % MULTIPLE)])


def _keeps_bits(rows: int) -> bool:
    """Return True if a row of a batch has the same bits in any other batch for which this is
    True."""
    return rows % MULTIPLE == 0 and torch.get_num_threads() == 1


def _append(kept: list[Any], newest: object) -> None:
    """Append to the last few."""
    del kept[: max(0, len(kept) - BATCHES_KEPT + 1)]
    kept.append(newest)


def samples_plainly(sampling: Sampling) -> bool:
    """Return True if responses are drawn from the policy itself."""
    return (sampling.temperature, sampling.top_p, sampling.min_p) == (1.0, 1.0, 0.0)


def load(path: Path) -> tuple[SmallLlama, Any] | None:
    """Return a policy and its tokenizer. None: it is not one for this module, or cannot be read."""
    file = path / "model.safetensors"
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        of_tokenizer = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
        if not _is_plain(config) or of_tokenizer.get("tokenizer_class") != TOKENIZER:
            return None
        if file.stat().st_size > MOST_BYTES or (path / "adapter_config.json").exists():
            return None
        weights = load_file(file)
        generation = GenerationConfig.from_pretrained(path)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    except (OSError, ValueError, SafetensorError):  # the loader of Transformers says what is wrong
        return None
    if {name: (list(x.shape), x.dtype) for name, x in weights.items()} != {
        name: (shape, torch.float32) for name, shape in _shapes(config).items()
    }:
        return None
    kernels = plugins.load("micro").policy_kernels(path)
    return SmallLlama(PreTrainedConfig.from_dict(config), weights, generation, kernels), tokenizer


def _is_plain(config: dict[str, Any]) -> bool:
    rope = config.get("rope_parameters")
    known = {*PLAIN, *SIZES, *OTHERS, "transformers_version", "initializer_range", "pretraining_tp"}
    return (
        all(key in config and config[key] in values for key, values in PLAIN.items())
        and all(key in config for key in SIZES)
        and config["num_key_value_heads"] == config["num_attention_heads"]
        and isinstance(rope, dict)
        and set(rope) == {"rope_type", "rope_theta"}
        and rope["rope_type"] == "default"
        and set(config) <= known
    )


def _shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner, vocabulary = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    heads = config["num_attention_heads"] * config["head_dim"]
    of_layer = (
        [hidden],
        *[[heads, hidden]] * 3,
        [hidden, heads],
        [hidden],
        *[[inner, hidden]] * 2,
        [hidden, inner],
    )
    shapes = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in zip(_STEP, of_layer, strict=True)
    }
    ends = {
        "model.embed_tokens": [vocabulary, hidden],
        "model.norm": [hidden],
        "lm_head": [vocabulary, hidden],
    }
    return shapes | {f"{name}.weight": shape for name, shape in ends.items()}


def _allowed(mask: Tensor, length: int) -> Tensor | None:
    """Return which keys each of the last `length` tokens may look at, [1 or B, 1, n, m].

    None: all up to its own, as attention knows without a mask.
    """
    whole, is_full = mask.shape[1], bool(mask.all())
    if is_full and length in (1, whole):
        return None
    queries = torch.arange(whole - length, whole)[:, None]
    causal = (torch.arange(whole)[None, :] <= queries)[None, None]
    return causal if is_full else causal & mask.bool()[:, None, None, :]


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos) + (turned * sin)
