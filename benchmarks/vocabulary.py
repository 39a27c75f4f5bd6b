"""What averaging the KL over a real vocabulary costs: `python benchmarks/vocabulary.py`.

The KL term of 256 tokens, from hidden states of width 1024 to the gradient of the output
embeddings, in fp32 and on one core. `k3` of the sampled tokens, whose reference numbers are given;
`full` as orch ships it into launches (orch_quiet_kl.py), which makes the reference policy's logits
too and makes its own twice; and `full` from all logits at once. Each runs in a process of its own.
Printed are milliseconds of CPU of forward and backward a token (the faster of two rounds), what
a token keeps for the backward pass (the same on every device), and by how much the process grew,
of which the gradient of the embeddings is a part.
"""

import importlib.util
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from orchestrator.kl.estimators import token_kl
from orchestrator.library import quiet_kl

VOCABULARIES, TOKENS, WIDTH, ROUNDS = (32_000, 151_936), 256, 1024, 2
AT_ONCE = 2**22
"""Logits that the shipped code holds at once here; its own bound is for a GPU and 256 tokens are
few."""
Term = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""From hidden states and embeddings of both policies, and the sampled tokens."""


def shipped_module() -> Any:
    """Return the module that orch ships into launches."""
    path = f"{quiet_kl.__path__[0]}/{quiet_kl.MODULE}.py"
    spec = importlib.util.spec_from_file_location(quiet_kl.MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sampled(hidden: Tensor, weight: Tensor, other: Tensor, _: Tensor, tokens: Tensor) -> Tensor:
    logps = (hidden @ weight.T).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    estimate: Tensor = token_kl("k3", logps, other[:, 0] - 12.0)
    return estimate.sum()


def in_chunks(hidden: Tensor, weight: Tensor, other: Tensor, fixed: Tensor, to: Tensor) -> Tensor:
    module = shipped_module()
    heads = (module.Head(weight), module.Head(fixed))
    states = module.of_hidden("reverse", heads, hidden, other, to, 1.0, AT_ONCE)
    total: Tensor = states.kl.sum()
    return total


def at_once(hidden: Tensor, weight: Tensor, other: Tensor, fixed: Tensor, tokens: Tensor) -> Tensor:
    module = shipped_module()
    with torch.no_grad():
        theirs = other @ fixed.T
    states = module.of_logits("reverse", hidden @ weight.T, theirs, tokens)
    total: Tensor = states.kl.sum()
    return total


TERMS: dict[str, Term] = {"k3": sampled, "full": in_chunks, "full, all at once": at_once}


def measured(term: Term, vocabulary: int, tokens: int = TOKENS) -> tuple[float, float, float]:
    """Return seconds of the fastest round, MiB that a token keeps, and MiB that the process grew by
    beyond its inputs and one gradient of them."""
    generator = torch.Generator().manual_seed(0)
    hidden, other = (torch.randn(tokens, WIDTH, generator=generator) for _ in "ab")
    weight, fixed = (torch.randn(vocabulary, WIDTH, generator=generator) / 32 for _ in "ab")
    chosen = torch.randint(vocabulary, (tokens,), generator=generator)
    hidden.requires_grad_()
    weight.requires_grad_()
    weight.grad = torch.zeros_like(weight)
    inputs = {x.untyped_storage().data_ptr() for x in (hidden, other, weight, fixed, chosen)}
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in inputs:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        term(hidden, weight, other, fixed, chosen)
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        term(hidden, weight, other, fixed, chosen).backward()  # type: ignore[no-untyped-call]  # torch's
        best = min(best, time.process_time() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    return best, sum(kept.values()) / tokens / 2**20, grown


def main() -> None:
    if len(sys.argv) == 3:
        torch.set_num_threads(1)
        seconds, kept, grown = measured(TERMS[sys.argv[1]], int(sys.argv[2]))
        numbers = (f"{1000 * seconds / TOKENS:.1f}", f"{kept:.3f}", f"{grown:,.0f}")
        cells = (sys.argv[1], f"{int(sys.argv[2]):,}", *numbers)
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        return
    sys.stdout.write("| term | vocabulary | CPU ms a token | MiB kept a token | MiB more |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    sys.stdout.flush()
    for vocabulary in VOCABULARIES:
        for name in TERMS:
            subprocess.run([sys.executable, __file__, name, str(vocabulary)], check=True)


if __name__ == "__main__":
    main()
