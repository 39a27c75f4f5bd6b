"""What averaging the KL over a real vocabulary costs: `python benchmarks/vocabulary.py`.

The loss of 64 tokens from their logits in fp32, at Qwen2.5's vocabulary of 151,936: k3 of the
sampled tokens beside `full`, the exact KL of each state. Prints milliseconds of forward and
backward on one core (the fastest of five rounds), and what a token keeps for the backward pass,
which is the same on every device. The reference's logits are there for both; a trainer of k3 keeps
one number of them.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from orchestrator.kl.estimators import token_kl, vocabulary_kl

VOCABULARY, TOKENS, ROUNDS = 151_936, 64, 5
Term = Callable[[Tensor, Tensor, Tensor], Tensor]


def sampled(logits: Tensor, reference: Tensor, tokens: Tensor) -> Tensor:
    places = tokens[:, None]
    theirs = reference.log_softmax(-1).gather(-1, places)
    estimate: Tensor = token_kl("k3", logits.log_softmax(-1).gather(-1, places), theirs)
    return estimate.sum()


def averaged(logits: Tensor, reference: Tensor, tokens: Tensor) -> Tensor:  # noqa: ARG001  (as `sampled`)
    kl: Tensor = vocabulary_kl("full", logits.log_softmax(-1), reference.log_softmax(-1))
    return kl.sum()


def measured(term: Term) -> tuple[float, float]:
    """Return seconds of the fastest round, and MiB that a token keeps for the backward pass."""
    logits, reference = (torch.randn(TOKENS, VOCABULARY) for _ in "ab")
    tokens = torch.randint(VOCABULARY, (TOKENS,))
    logits.requires_grad_()
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        term(logits, reference, tokens)
    best = float("inf")
    for _ in range(ROUNDS):
        logits.grad = None
        started = time.perf_counter()
        term(logits, reference, tokens).backward()  # type: ignore[no-untyped-call]  # torch's
        best = min(best, time.perf_counter() - started)
    return best, sum(kept.values()) / TOKENS / 2**20


def main() -> None:
    torch.set_num_threads(1)
    for name, term in (("k3", sampled), ("full", averaged)):
        seconds, kept = measured(term)
        sys.stdout.write(f"{name:<6}{1000 * seconds / TOKENS:.2f} ms and {kept:.2f} MiB a token\n")


if __name__ == "__main__":
    main()
