"""A policy that is a table, over every context of four tokens of which one ends a response.

Everything about it is a finite sum: the chance of each response, the KL of whole responses.
"""

from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

WORDS, TOKENS, END = 2, 4, 0


class Contexts(NamedTuple):
    """Every response, and the context of each of its tokens."""

    responses: list[list[int]]
    index: dict[tuple[int, ...], int]


def enumerated() -> Contexts:
    """Every response of at most TOKENS tokens, which ends with END or is cut."""
    responses, index = [], dict[tuple[int, ...], int]()

    def grow(prefix: tuple[int, ...]) -> None:
        if len(prefix) == TOKENS or (prefix and prefix[-1] == END):
            responses.append(list(prefix))
            return
        index[prefix] = len(index)
        for token in range(WORDS):
            grow((*prefix, token))

    grow(())
    return Contexts(responses, index)


ALL = enumerated()


class Table(torch.nn.Module):
    """A policy whose logits are a table: the hidden state of a context is its row's unit vector."""

    device, config = torch.device("cpu"), SimpleNamespace()

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.head = torch.nn.Linear(len(ALL.index), WORDS, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(self.head.weight.shape, generator=generator))

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def base_model(self, *, input_ids: Tensor, **_: object) -> SimpleNamespace:
        """The context after each token of [prompt of one token, response]."""
        states = torch.zeros(*input_ids.shape, len(ALL.index), dtype=torch.float64)
        for row, tokens in enumerate(input_ids.tolist()):
            for place in range(len(tokens)):
                context = ALL.index.get(tuple(tokens[1 : place + 1]))
                if context is not None:
                    states[row, place, context] = 1.0
        return SimpleNamespace(last_hidden_state=states)

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        hidden = self.base_model(input_ids=input_ids).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden))

    def logps(self) -> Tensor:
        """[contexts, words]"""
        return self.head.weight.T.log_softmax(-1)


def log_chances(logps: Tensor) -> Tensor:
    """[responses]"""
    return torch.stack(
        [
            sum(
                (logps[ALL.index[tuple(r[:t])], token] for t, token in enumerate(r)),
                logps.new_zeros(()),
            )
            for r in ALL.responses
        ]
    )


def sequence_kl(policy: Table, reference: Table) -> Tensor:
    """KL(policy, reference policy) of whole responses, by enumeration."""
    mine, theirs = log_chances(policy.logps()), log_chances(reference.logps()).detach()
    return (mine.exp() * (mine - theirs)).sum()
