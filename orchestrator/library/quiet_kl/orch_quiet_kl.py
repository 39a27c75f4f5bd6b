"""A KL that averages over the vocabulary, and its charge to earlier tokens. Shipped by orch.

It lies in a launch's folder, where orch is not installed, and is the same for every library. It
needs torch and Python 3.10. Shapes: N positions, V tokens of the vocabulary, R rollouts, T tokens
of the longest response. q is the policy's next-token distribution, p the reference policy's.

    full           E_q[log q/p] of each state; in the reward, charged to the whole response
    full_forward   E_p[log p/q] of each state
    rb             as full; in the reward a token is charged that of later tokens only
    rb_k1          as full in the loss; in the reward a token is charged k1 of later tokens
    k1_to_go       in the reward, a token is charged its own k1 and that of later tokens

Over the vocabulary a state's KL needs no sample of its own token, so that the loss takes its exact
gradient, and the reward what a token does to later states: `rb` in both is the gradient of the KL
of whole responses, without bias (Amini et al. 2025, arXiv 2504.10637; Tang and Munos 2025,
arXiv 2506.09477).
"""

from typing import Any, NamedTuple

import torch

Tensor = Any
LOGITS_AT_ONCE = 2**26
"""Logits of a policy that are held at once, at most: 256 MiB in fp32."""


class Form(NamedTuple):
    """How an estimator enters."""

    divergence: str
    """Of a state, in the loss: `reverse`, `forward`, or none."""
    reward: str
    """The KL of a token in the reward: `reverse` or `forward` of its state, or `k1` of itself."""
    charge: str
    """The tokens whose KL a token is charged: all of the `sequence`, itself and those after it
    (`to_go`), or those after it (`later`)."""


FORMS = {
    "full": Form("reverse", "reverse", "sequence"),
    "full_forward": Form("forward", "forward", "sequence"),
    "rb": Form("reverse", "reverse", "later"),
    "rb_k1": Form("reverse", "k1", "later"),
    "k1_to_go": Form("", "k1", "to_go"),
}


class States(NamedTuple):
    """What a policy makes of N positions."""

    logp: Tensor
    """[N], of the sampled token."""
    entropy: Tensor
    """[N], without a gradient."""
    kl: Tensor
    """[N], between the policy and the reference policy at that state."""


class Head(NamedTuple):
    """What makes logits of hidden states: weight [V, H] and, in some models, bias [V]."""

    weight: Tensor
    bias: Tensor = None

    def to(self, dtype: Any) -> "Head":
        """Return it in a number format."""
        return Head(*(each if each is None else each.to(dtype) for each in self))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [.., V] of hidden states [.., H]."""
        return torch.nn.functional.linear(hidden, self.weight, self.bias)


def divergence(kind: str, logq: Tensor, logp: Tensor) -> Tensor:
    """Return the KL [N] of distributions whose log-probabilities are [N, V], policy first."""
    if kind == "reverse":
        return (logq.exp() * (logq - logp)).sum(-1)
    return (logp.exp() * (logp - logq)).sum(-1)


def of_logits(kind: str, logits: Tensor, reference: Tensor, tokens: Tensor) -> States:
    """Return what logits [N, V] of the policy and of the reference policy say of tokens [N].

    It computes in fp32, or in fp64 where the logits are.
    """
    logq, logp = (log_softmax(each) for each in (logits, reference))
    chosen = logq.gather(-1, tokens[:, None])[:, 0]
    fixed = logq.detach()
    return States(chosen, -(fixed.exp() * fixed).sum(-1), divergence(kind, logq, logp))


def log_softmax(logits: Tensor) -> Tensor:
    """Return log-probabilities, in fp32 or better."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def of_hidden(
    kind: str,
    heads: "tuple[Head, Head]",
    hidden: Tensor,
    reference: Tensor,
    tokens: Tensor,
    temperature: float = 1.0,
    at_once: int = LOGITS_AT_ONCE,
) -> States:
    """Return what hidden states [N, H] of the policy and the reference policy say of tokens [N].

    `heads`: of the policy and of the reference policy. The logits of so many positions are held at
    once as make `at_once` numbers, in the backward pass too, which makes them anew. The reference
    policy gets no gradient.
    """
    size = max(1, at_once // len(heads[0].weight))
    tensors = (*heads[0], reference, *heads[1], tokens)
    apply: Any = _InChunks.apply
    return States(*apply(kind, temperature, size, _format(hidden), hidden, *tensors))


class _InChunks(torch.autograd.Function):
    """`of_logits` of hidden states, so many positions at a time. Nothing of a position is kept but
    its hidden states, and the gradient of the embeddings is summed in place."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, temperature: float, size: int, dtype: Any, *tensors: Tensor
    ) -> "tuple[Tensor, ...]":
        ctx.how = (kind, temperature, size, dtype)
        ctx.save_for_backward(*tensors)
        parts = [
            of_logits(kind, each.logits[0], each.logits[1], each.tokens)
            for each in _chunks(ctx.how, tensors)
        ]
        states = States(*(torch.cat(each) for each in zip(*parts)))  # noqa: B905  # Python 3.10
        ctx.mark_non_differentiable(states.entropy)
        return tuple(states)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> "tuple[Any, ...]":
        kind, temperature, _, _ = ctx.how
        hidden, weight, bias = ctx.saved_tensors[:3]
        of_logp, _, of_kl = slopes
        of_hidden_states = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias)
        for each in _chunks(ctx.how, ctx.saved_tensors):
            logq, logp = (log_softmax(part) for part in each.logits)
            q = logq.exp()
            slope = logq - logp
            if kind == "reverse":
                # The slope of E_q[log q/p] in the logits: q (log q/p - KL).
                slope = q * (slope - (q * slope).sum(-1, keepdim=True))
            else:
                # The slope of E_p[log p/q] in the logits: q - p.
                slope = q - logp.exp()
            # The slope of the chosen token's log-probability: 1 at the token, minus q.
            g = of_logp[each.rows][:, None]
            slope = slope.mul_(of_kl[each.rows][:, None]).sub_(g * q)
            slope = slope.scatter_add_(1, each.tokens[:, None], g.to(slope.dtype)) / temperature
            slope = slope.to(each.weight.dtype)
            of_hidden_states[each.rows] = (slope @ each.weight).to(hidden.dtype)
            # In place, without a second matrix of the embeddings' size.
            if of_weight.dtype == slope.dtype:
                of_weight.addmm_(slope.T, each.hidden)
            else:
                of_weight += slope.T @ each.hidden
            if of_bias is not None:
                of_bias += slope.sum(0)
        # One entry for each input of `forward`: four settings, three tensors, and the others
        # without a gradient.
        rest = len(ctx.needs_input_grad) - 7
        return (*[None] * 4, of_hidden_states, of_weight, of_bias, *[None] * rest)


class _Chunk(NamedTuple):
    """Some positions: which, their tokens, and what their logits are made of."""

    rows: slice
    tokens: Tensor
    hidden: Tensor
    weight: Tensor
    logits: "tuple[Tensor, Tensor]"
    """Of the policy and of the reference policy, at the temperature."""


def _chunks(how: "tuple[Any, ...]", tensors: Any) -> Any:
    """Yield the positions, a chunk at a time, in a number format, without autocast or gradient."""
    _, temperature, size, dtype = how
    hidden, *own, reference, weight, bias, tokens = tensors
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        mine, theirs = Head(*own).to(dtype), Head(weight, bias).to(dtype)
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            h, r = hidden[rows].to(dtype), reference[rows].to(dtype)
            logits = (mine.logits(h) / temperature, theirs.logits(r) / temperature)
            yield _Chunk(rows, tokens[rows], h, mine.weight, logits)


def _format(hidden: Tensor) -> Any:
    """Return the number format of the products of hidden states: autocast's, where it is on."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def charged(kl: Tensor, charge: str) -> Tensor:
    """Return the KL that each token is charged, [R, T], from that of each token, 0 where masked."""
    if charge == "sequence":
        return kl.sum(-1, keepdim=True).expand_as(kl)
    to_go = kl.flip(-1).cumsum(-1).flip(-1)
    return to_go if charge == "to_go" else to_go - kl


def advantages(rewards: Tensor, charges: Tensor, beta: float, size: int) -> Tensor:
    """Return rewards [R] less the charged KL [R, T], centred by the group of `size` rollouts.

    The baseline is of each position: the mean over the group, in which a response that has ended
    is charged nothing.
    """
    shaped = (rewards[:, None] - beta * charges).unflatten(0, (-1, size))
    return (shaped - shaped.mean(1, keepdim=True)).flatten(0, 1)
