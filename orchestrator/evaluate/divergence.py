"""Both KL divergences to the reference policy and the entropy, from checkpoints alone.

The same for every library: policy and reference policy are Hugging Face directories, and nothing
a trainer logged is used. A divergence of sequence distributions is an expectation over responses y
of a sum over their positions of the divergence of the two next-token distributions, and that is
taken exactly over the vocabulary (Rao-Blackwellised: Amini et al. 2025), in float32:

    kl_reverse   KL(policy || reference)   E over y of the policy,    sum of KL(p_t || q_t)
    kl_forward   KL(reference || policy)   E over y of the reference, sum of KL(q_t || p_t)
    entropy      of the policy             E over y of the policy,    sum of H(p_t)

with p_t, q_t the policy's and the reference's distributions at position t, temperature 1, up to
and with the end of the response. `kl_*` are nats a sequence and `entropy` nats a token, as the
paper plots them (Fig. 12); `*_per_token` and `entropy_per_sequence` are the others. A mean a token
is the sum over all responses by the number of their tokens. Slow to import.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from orchestrator.errors import CheckpointError
from orchestrator.evaluate import items, models
from orchestrator.evaluate.scores import ScoreKey
from orchestrator.evaluate.shards import Shards
from orchestrator.identity import digest
from orchestrator.records import Engine

LOGITS_AT_ONCE = 2**28
"""Entries of one float32 tensor [tokens, vocabulary]: 1 GiB."""
SEQUENCES_AT_ONCE = 128

METRICS = ("kl_reverse", "kl_forward", "entropy")


class Response(NamedTuple):
    """Token ids of a prompt and of a sampled response to it, up to and with its end."""

    prompt: list[int]
    tokens: list[int]


class ResponseSums(NamedTuple):
    """Sums over the positions of one response."""

    kl: float
    """KL(ours || theirs), where `ours` sampled the response."""
    entropy: float
    """Entropy of the policy that sampled the response."""


def answer(policy: Any, task: Any, longest: int, shards: Shards) -> None:
    """Write the divergences of one checkpoint on the prompts of one task.

    A response has at most `longest` tokens.
    """
    done = shards.made("all", lambda: {"items": _rows(policy, task, longest, shards)}, alone=True)
    shards.finish(done["items"], means(done["items"]), [done])


def _rows(policy: Any, task: Any, longest: int, shards: Shards) -> list[items.Item]:
    asked = shards.asked
    own = shards.ask.reference, shards.job.engine
    reference = _reference(*own)
    prompts, targets = _prompts(policy, task, asked)
    limit = min(asked.sampling.max_response_tokens, longest)
    ours = sample(policy, prompts, limit, _seed(asked, asked.checkpoint))
    theirs = _reference_samples(*own, tuple(prompts), limit, _seed(asked, asked.reference))
    columns = zip(
        prompts,
        targets,
        ours,
        sums(policy.model, reference.model, ours),
        theirs,
        sums(reference.model, policy.model, theirs),
        strict=True,
    )
    return [
        {
            "item": number,
            "prompt": prompt,
            "target": target,
            "response": policy.tok_decode(a.tokens),
            "tokens": len(a.tokens),
            "kl_reverse": mine.kl,
            "entropy": mine.entropy,
            "reference_response": policy.tok_decode(b.tokens),
            "reference_tokens": len(b.tokens),
            "kl_forward": other.kl,
        }
        for number, (prompt, target, a, mine, b, other) in enumerate(columns)
    ]


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, items.Mean]:
    """Return each quantity per sequence and per token, with standard errors over the prompts."""
    means_: dict[str, items.Mean] = {}
    for name in METRICS:
        values = [row[name] for row in rows]
        length = "reference_tokens" if name == "kl_forward" else "tokens"
        each = items.mean(values)
        token = items.ratio(values, [row[length] for row in rows])
        if name == "entropy":
            means_ |= {"entropy": token, "entropy_per_sequence": each}
        else:
            means_ |= {name: each, f"{name}_per_token": token}
    return means_


@torch.inference_mode()
def sample(policy: Any, prompts: Sequence[str], limit: int, seed: int) -> list[Response]:
    """Return one response to each prompt, sampled from the policy without top_p or min_p, at
    temperature 1."""
    torch.manual_seed(seed)
    ends = policy.model.generation_config.eos_token_id
    stops = set(ends if isinstance(ends, list) else [ends])
    responses: list[Response] = []
    for first in range(0, len(prompts), SEQUENCES_AT_ONCE):
        tokens, mask = policy.tok_batch_encode(list(prompts[first : first + SEQUENCES_AT_ONCE]))
        generated = policy.model.generate(
            input_ids=tokens.to(policy.device),
            attention_mask=mask.to(policy.device),
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_new_tokens=limit,
            pad_token_id=policy.tokenizer.pad_token_id,
        ).tolist()
        for row, kept, out in zip(tokens.tolist(), mask.tolist(), generated, strict=True):
            prompt = [token for token, is_token in zip(row, kept, strict=True) if is_token]
            responses.append(Response(prompt, _until(out[len(row) :], stops)))
    return responses


@torch.inference_mode()
def sums(ours: Any, theirs: Any, responses: Sequence[Response]) -> list[ResponseSums]:
    """Return, for each response of `ours`, the sums over its positions.

    Raise CheckpointError if the two have different vocabularies.
    """
    sizes = ours.config.vocab_size, theirs.config.vocab_size
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"policy and reference policy have vocabularies of {sizes[0]} and {sizes[1]} tokens: "
            "there is no divergence between them; the cell's model.path names another model"
        )
    longest = max((len(one.prompt) + len(one.tokens) for one in responses), default=1)
    size = max(1, min(SEQUENCES_AT_ONCE, LOGITS_AT_ONCE // (sizes[0] * longest)))
    sums_: list[ResponseSums] = []
    for place in range(0, len(responses), size):
        batch = responses[place : place + size]
        # The distribution of a token is at the position before the token.
        first = min(len(one.prompt) for one in batch) - 1
        logps = _logps(ours, batch, first)
        others = _logps(theirs, batch, first).to(logps.device)
        # A token of probability 0 has the logarithm -inf, and 0 · -inf is NaN; its term is 0.
        kl = _kl(logps, others)
        entropy = -(logps.exp() * _finite(logps)).sum(-1)
        # Sums over long responses lose digits in float32.
        kl, entropy = kl.double().cpu(), entropy.double().cpu()
        for row, one in enumerate(batch):
            start = len(one.prompt) - 1 - first
            span = slice(start, start + len(one.tokens))
            sums_.append(ResponseSums(kl[row, span].sum().item(), entropy[row, span].sum().item()))
    return sums_


def _logps(model: Any, batch: Sequence[Response], first: int) -> Tensor:
    """Return the log-probabilities [B, n, V] after each token from `first` on."""
    texts = [torch.tensor(one.prompt + one.tokens) for one in batch]
    # Padded on the right: positions need no correction.
    tokens = pad_sequence(texts, batch_first=True).to(model.device)
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=mask.to(model.device)).logits[:, first:]
    return torch.log_softmax(logits.float(), -1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) of log-probabilities [..., V]. A token that p never takes adds nothing."""
    return (p.exp() * (_finite(p) - q).masked_fill(torch.isneginf(p), 0.0)).sum(-1)


def _finite(logps: Tensor) -> Tensor:
    return logps.masked_fill(torch.isneginf(logps), 0.0)


def _until(tokens: Sequence[int], stops: set[int]) -> list[int]:
    """Return the tokens up to and with the first end token."""
    end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens) - 1)
    return list(tokens[: end + 1])


def _prompts(policy: Any, task: Any, score_key: ScoreKey) -> tuple[list[str], list[str]]:
    """Return the prompts of an evaluation of the task, and their targets."""
    docs = list(task.eval_docs)[: score_key.task.max_items]
    texts = [task.doc_to_text(doc) for doc in docs]
    if score_key.chat_template and policy.has_template():
        texts = [policy.apply_chat_template([{"role": "user", "content": t}]) for t in texts]
    return texts, [str(task.doc_to_target(doc)) for doc in docs]


_REFERENCES: dict[str, Any] = {}


def _reference(path: str, engine: Engine) -> Any:
    """Return the reference policy. It stays loaded until the process needs another one."""
    if path not in _REFERENCES:
        _REFERENCES.clear()
        _REFERENCES[path] = models.HarnessPolicy(Path(path), engine)
    return _REFERENCES[path]


@lru_cache(maxsize=8)
def _reference_samples(
    path: str, engine: Engine, prompts: tuple[str, ...], limit: int, seed: int
) -> list[Response]:
    """Return the reference's own responses, sampled once in a process."""
    return sample(_reference(path, engine), prompts, limit, seed)


def _seed(score_key: ScoreKey, policy: str) -> int:
    return int(digest([policy, score_key.task.name, score_key.seed, "divergence"]), 16)
