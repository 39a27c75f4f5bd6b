"""Equal texts of a batch go through a policy once. Slow to import.

A batch holds each prompt k times, once for each response. Until their responses differ, the k rows
are equal, and so are their logits. The policy computes one row of each kind, and its cache of keys
and values holds one row of each kind. The sampling of `generate` sees the whole batch as before.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from orchestrator.evaluate.small_llama import MULTIPLE


class SharedRows:
    """The `forward` of a causal policy, without the rows that are equal to others.

    A row of a batch is equal to another if its prompt and every token sampled since are.
    """

    def __init__(self, forward: Callable[..., Any], tokens: int):
        self._forward, self._tokens = forward, tokens
        self._place: torch.Tensor | None = None
        """Row of the batch -> row of the cache, [B]. None: the cache holds the batch's rows."""
        self._batches: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        """Batches of prompts seen last, each with its number of kinds and its `_place`. The
        checkpoints of a study get the same ones, and looking for kinds takes longer than a step."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return what the policy returns for the whole batch."""
        from transformers import DynamicCache

        ids, cache = named.get("input_ids"), named.get("past_key_values")
        if arguments or ids is None or not isinstance(cache, DynamicCache):
            return self._forward(*arguments, **named)
        if cache.get_seq_length() == 0:
            self._place = None
            if not _is_plain(named):
                return self._forward(**named)
            mask = named.get("attention_mask")
            rows = ids if mask is None else torch.cat([ids, mask], dim=1)
            num_kinds, place = self._kinds_of(rows)
        # The cache was filled by a call that was not plain: it has a row for each of the batch.
        elif self._place is None:
            return self._forward(**named)
        else:
            # One number for a pair: the row's kind before this token, and the token.
            rows = self._place * self._tokens + ids[:, -1]
            kinds, place = torch.unique(rows, return_inverse=True)
            num_kinds = len(kinds)
        chosen = torch.empty(num_kinds, dtype=torch.long)
        chosen[place] = torch.arange(len(ids))  # any row of a kind: they are equal
        # -n % m is what is missing to the next multiple of m.
        missing = -len(chosen) % MULTIPLE
        chosen = torch.cat([chosen, chosen[-1:].expand(missing)])
        if self._place is not None:
            # The cache follows the kinds: a kind that splits has its row twice from here on.
            cache.reorder_cache(self._place[chosen])
        self._place = place
        small = {
            name: value[chosen] if name in BY_ROW and value is not None else value
            for name, value in named.items()
        }
        outputs = self._forward(**small)
        outputs.logits = outputs.logits[place]
        return outputs

    def _kinds_of(self, rows: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return the number of kinds of prompts [B, n], and the kind of each row."""
        for known, num_kinds, place in self._batches:
            if torch.equal(known, rows):
                return num_kinds, place
        kinds, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(self._batches) >= BATCHES_KEPT:
            del self._batches[0]
        self._batches.append((rows.clone(), len(kinds), place))
        return len(kinds), place


BATCHES_KEPT = 8
BY_ROW = ("input_ids", "attention_mask", "position_ids")
"""Arguments with one row for each text: [B, n]."""


def share_rows(model: Any) -> None:
    """Let a causal policy on the CPU compute each text of a batch once."""
    shared = SharedRows(model.forward, model.config.get_text_config().vocab_size)

    @wraps(model.forward)
    def forward(*arguments: Any, **named: Any) -> Any:
        return shared(*arguments, **named)

    model.forward = forward


def _is_plain(named: Any) -> bool:
    """Return True if equal rows may be computed once, with equal bits.

    The batch is one thread's, with a multiple of rows; each tensor has one row for each text; the
    cache holds keys and values and nothing else.
    """
    from transformers.cache_utils import DynamicLayer

    size = len(named["input_ids"])
    return (
        size % MULTIPLE == 0
        and torch.get_num_threads() == 1
        and all(type(layer) is DynamicLayer for layer in named["past_key_values"].layers)
        and all(
            name in BY_ROW and value.dim() == 2 and len(value) == size
            for name, value in named.items()
            if isinstance(value, torch.Tensor)
        )
    )
