"""The forward and the backward pass of many policies at once, written out over flat tensors.

Shapes: C policies (training has one, tests and tools have more), S packed sequences of each, L
positions of a sequence, V vocabulary, D width, E width of the one head, F hidden width. The weights
of a policy are a row of a flat tensor [C, NUM_PARAMETERS]; no policy depends on its neighbours.

The passes do not use autograd, for two reasons: a norm's weights are folded into the matrix behind
it, and the train step reuses the activations of sampling.
`docs/tools/plain_policy.py` is the same mathematics for one policy, under autograd.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its name in the field)
from torch import Tensor

from backends.micro.policy import Layout, Weights, weights
from backends.micro.rollout import Rollouts, rows_of, tree
from backends.micro.rollout_rounding import near
from backends.micro.shape import (
    HEAD_WIDTH,
    HIDDEN,
    NORM_EPSILON,
    NUM_LAYERS,
    NUM_PARAMETERS,
    NUM_TOKENS,
    WIDTH,
)
from backends.micro.skills import EOS, PAD, PROMPT_TOKENS
from orchestrator.settings import EngineFormat

SCALE = HEAD_WIDTH**-0.5


class FoldedLayer(NamedTuple):
    """The matrices of a layer, [C, out, in], with the norms' weights in those behind them."""

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class Folded(NamedTuple):
    """C policies, ready for `bmm`."""

    weights: Weights
    """As they are: [C, out, in], norms [C, D]."""
    embedding: Tensor
    """[C V, D]"""
    layers: tuple[FoldedLayer, ...]
    head: Tensor
    """[C, V, D]"""

    @property
    def place(self) -> tuple[int, torch.device]:
        """Return the number of policies, and where they are."""
        return len(self.head), self.head.device

    @torch.no_grad()
    def sample(
        self,
        prompts: Tensor,
        uniforms: Tensor,
        temperature: Tensor,
        top_p: Sequence[float],
        *,
        keep: bool = True,
        rounded: EngineFormat | None = None,
    ) -> "Sampled":
        """Return one response to prompts [C, P, S] for each row of uniforms [C, P, G, T] in [0, 1).

        temperature [C, 1, 1, 1] and top_p: of each cell. Use inverse-CDF sampling, so that equal
        uniforms give equal tokens. `logp` is that of the distribution before top_p truncates it.
        rounded: the format of the logits, where an engine rounds them.
        """
        cells, groups, size, longest = uniforms.shape
        at, index = tree(size, longest, prompts.device)
        kept = Activations(cells, groups, at, self.head, keep=keep)
        logps = self.head.new_zeros(cells, groups, len(at.mask) - at.first, NUM_TOKENS)
        tokens = torch.full(uniforms.shape, PAD, device=prompts.device)
        mask = torch.zeros_like(uniforms)
        alive = torch.ones_like(tokens[..., 0], dtype=torch.bool)
        given, rows, place = prompts, slice(0, PROMPT_TOKENS, 1), slice(0, 1, 1)
        for t in range(longest):
            out = near(kept.advance(self, given, rows), rounded)
            logp = (out / temperature).log_softmax(-1)
            logps[:, :, place] = logp
            # At the first token all responses of a prompt share the prompt's last row.
            token = _drawn(logp.expand(-1, -1, size, -1), uniforms[..., t], top_p)
            given = tokens[..., t] = torch.where(alive, token, PAD)
            mask[..., t] = alive
            alive = alive & (given != EOS)
            if not alive.any():
                for step in range(t, longest - 1):
                    kept.leave_out(slice(PROMPT_TOKENS + step, None, longest - 1))
                break
            rows = slice(PROMPT_TOKENS + t, len(at.mask), longest - 1)
            place = slice(1 + t, None, longest - 1)
        scored = PackedScores(_chosen(logps, index, tokens) * mask, logps, kept)
        return Sampled(Rollouts(prompts, tokens, mask, scored.logp), scored)

    @torch.no_grad()
    def score(
        self,
        prompts: Tensor,
        tokens: Tensor,
        mask: Tensor,
        temperature: Tensor | float = 1.0,
        *,
        keep: bool = False,
    ) -> "PackedScores":
        """Return the log-probabilities of responses [C, P, G, T], from one packed forward pass."""
        at, index = tree(tokens.shape[2], tokens.shape[3], tokens.device)
        kept = Activations(tokens.shape[0], tokens.shape[1], at, self.head, keep=keep)
        packed = torch.cat([prompts, tokens[..., :-1].flatten(2)], 2)
        out = kept.advance(self, packed, slice(0, packed.shape[2], 1))
        logps = (out / temperature).log_softmax(-1)
        return PackedScores(_chosen(logps, index, tokens) * mask, logps, kept)

    @torch.no_grad()
    def gradient(
        self,
        scored: "PackedScores",
        tokens: Tensor,
        slope: Tensor,
        temperature: Tensor | float,
        grad_logps: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Return [C, NUM_PARAMETERS], the gradient of a loss whose slope in `logp` is [C, P, G, T].

        `grad_logps`: of each cell, the loss's further slope in `logps`, or None.
        """
        _, index = tree(tokens.shape[2], tokens.shape[3], tokens.device)
        places = index * NUM_TOKENS + tokens.flatten(2)
        of_chosen = torch.zeros_like(scored.logps)
        of_chosen.flatten(2).scatter_add_(2, places, slope.flatten(2))
        for cell, further in enumerate(grad_logps):
            if further is not None:
                of_chosen[cell] += further
        # The slope of log_softmax: the slope minus the probabilities times its sum.
        of_all = of_chosen.sum(-1, keepdim=True)
        of_logits = of_chosen.addcmul_(scored.logps.exp(), of_all, value=-1).div_(temperature)
        if not isinstance(scored.activations, Activations):
            raise TypeError("these log-probabilities are of another pass")
        return scored.activations.backward(self, of_logits)


def folded(flat: Tensor) -> Folded:
    """Return the matrices of C flat vectors [C, NUM_PARAMETERS]."""
    policy = weights(flat)
    return Folded(
        policy,
        policy.embedding.reshape(-1, WIDTH),
        tuple(
            FoldedLayer(
                x.qkv * x.attention_norm[:, None],
                x.output,
                x.gate_up * x.mlp_norm[:, None],
                x.down,
            )
            for x in policy.layers
        ),
        policy.head * policy.norm[:, None],
    )


class LayerActivations:
    """A layer's activations for the backward pass. Q of the L positions have queries.

    normed [C, S, L, D], inverse [C, S, L, 1]: input over its root mean square, and one over that;
    turned [C, S, L, 2 E]: rotated queries, scaled, and keys; value [C, S, L, E];
    chances [C, S, Q, L]: of attention; mixed [C, S, Q, E];
    normed_mlp, inverse_mlp, gate_up [C, S, Q, 2 F], product [C, S, Q, F]: of the gated MLP.
    """

    normed: Tensor
    inverse: Tensor
    turned: Tensor
    value: Tensor
    chances: Tensor
    mixed: Tensor
    normed_mlp: Tensor
    inverse_mlp: Tensor
    gate_up: Tensor
    product: Tensor


class Activations:
    """A forward pass over packed sequences, of some positions after others or of all at once.

    keep: keep what the backward pass needs, and not keys and values alone.
    """

    def __init__(self, cells: int, sequences: int, at: Layout, like: Tensor, *, keep: bool = True):
        self.keep = keep
        longest = len(at.mask)
        self.at, self.shape = at, (cells, sequences, longest)
        self.mask = at.mask.to(like.dtype)
        turn = at.rotation[:, 0].to(like.dtype.to_complex())  # [L, 1, E/2]
        # The scale of the scores is in the queries' rotation, so no score is multiplied by it
        # later.
        self.turn = torch.cat([turn * SCALE, turn], 1)  # [L, 2, E/2]: of queries, of keys
        self.tokens = torch.zeros(self.shape, dtype=torch.long, device=like.device)
        self.offsets = torch.arange(cells, device=like.device)[:, None, None] * NUM_TOKENS
        self.layers = [LayerActivations() for _ in range(NUM_LAYERS)]
        self.top = LayerActivations()

    def _keep(
        self, kept: LayerActivations, name: str, value: Tensor, place: slice, of: int
    ) -> None:
        """Store the values at `place` of `of` positions. Values of all positions are not copied."""
        if not self.keep and name not in ("turned", "value"):
            return
        if value.shape[2] == of:
            setattr(kept, name, value)
            return
        if not hasattr(kept, name):
            # an unwritten key or value is multiplied by 0 and must be finite
            new = value.new_zeros if name in ("turned", "value") else value.new_empty
            setattr(kept, name, new(*value.shape[:2], of, value.shape[3]))
        getattr(kept, name)[:, :, place] = value

    def leave_out(self, rows: slice) -> None:
        """Let positions that are never computed count for nothing in the backward pass."""
        longest = self.shape[2]
        for kept in (*self.layers, self.top):
            for of_all in vars(kept).values():
                skipped = longest - of_all.shape[2]
                of_all[:, :, rows.start - skipped :: rows.step] = 0

    def advance(self, policy: Folded, tokens: Tensor, rows: slice) -> Tensor:
        """Return logits [C, S, n, V] at these positions, from the first that predicts.

        tokens [C, S, n]. What the positions attend to must have been computed.
        """
        longest, first = self.shape[2], self.at.first
        self.tokens[:, :, rows] = tokens
        place, of, at_work = rows, longest, rows
        x = F.embedding(tokens + self.offsets, policy.embedding)
        for number, (layer, kept) in enumerate(zip(policy.layers, self.layers, strict=True)):
            normed, inverse = _normed(x)
            qkv = _times(normed, layer.qkv)
            turned = _turned(qkv[..., : 2 * HEAD_WIDTH], self.turn[rows])
            self._keep(kept, "normed", normed, rows, longest)
            self._keep(kept, "inverse", inverse, rows, longest)
            self._keep(kept, "turned", turned, rows, longest)
            self._keep(kept, "value", qkv[..., 2 * HEAD_WIDTH :], rows, longest)
            if number == NUM_LAYERS - 1:  # above the last attention only the predicting rows matter
                at_work = slice(max(rows.start, first), rows.stop, rows.step)
                of = longest - first
                place = slice(at_work.start - first, at_work.stop - first, at_work.step)
                skipped = x.shape[2] - len(range(*at_work.indices(longest)))
                x, turned = x[:, :, skipped:], turned[:, :, skipped:]
            keys = kept.turned[..., HEAD_WIDTH:].flatten(0, 1)
            query = turned[..., :HEAD_WIDTH].flatten(0, 1)
            scores = torch.baddbmm(self.mask[at_work], query, keys.transpose(1, 2))
            chances = scores.softmax(-1)
            mixed = torch.bmm(chances, kept.value.flatten(0, 1)).view(*x.shape[:3], HEAD_WIDTH)
            x = _plus(x, mixed, layer.output)
            self._keep(kept, "chances", chances.view(*x.shape[:3], -1), place, of)
            self._keep(kept, "mixed", mixed, place, of)
            normed, inverse = _normed(x)
            gate_up = _times(normed, layer.gate_up)
            product = F.silu(gate_up[..., :HIDDEN]).mul_(gate_up[..., HIDDEN:])
            x = _plus(x, product, layer.down)
            self._keep(kept, "normed_mlp", normed, place, of)
            self._keep(kept, "inverse_mlp", inverse, place, of)
            self._keep(kept, "gate_up", gate_up, place, of)
            self._keep(kept, "product", product, place, of)
        normed, inverse = _normed(x)
        self._keep(self.top, "normed", normed, place, of)
        self._keep(self.top, "inverse", inverse, place, of)
        return _times(normed, policy.head)

    def backward(self, policy: Folded, slope: Tensor) -> Tensor:
        """Return the gradient [C, NUM_PARAMETERS], of slope [C, S, Q, V] in the logits."""
        cells, sequences, longest = self.shape
        gradient = slope.new_zeros(cells, NUM_PARAMETERS)
        into, raw = weights(gradient), policy.weights
        # The slope of the logits first, then down through the layers: the order of `advance`,
        # backwards.
        _of_folded(slope, self.top.normed, raw.head, raw.norm, into.head, into.norm)
        x = _of_norm(_times_back(slope, policy.head), self.top.normed, self.top.inverse, None)
        for number in reversed(range(NUM_LAYERS)):
            layer = policy.layers[number]
            kept = self.layers[number]
            out = into.layers[number]
            own = raw.layers[number]
            # the gated MLP
            out.down.copy_(_outer(x, kept.product))
            of_product = _times_back(x, layer.down)
            gate = kept.gate_up[..., :HIDDEN]
            up = kept.gate_up[..., HIDDEN:]
            of_gate_up = torch.empty_like(kept.gate_up)
            torch.mul(of_product, F.silu(gate), out=of_gate_up[..., HIDDEN:])
            # In place: this line is the last that needs of_product, and so it must follow the one
            # above.
            of_gate_up[..., :HIDDEN] = torch.ops.aten.silu_backward(of_product.mul_(up), gate)
            _of_folded(
                of_gate_up, kept.normed_mlp, own.gate_up, own.mlp_norm, out.gate_up, out.mlp_norm
            )
            x = _of_norm(
                _times_back(of_gate_up, layer.gate_up), kept.normed_mlp, kept.inverse_mlp, x
            )
            # attention
            out.output.copy_(_outer(x, kept.mixed))
            of_mixed = _times_back(x, layer.output).flatten(0, 1)
            chances = kept.chances.flatten(0, 1)
            of_chances = torch.bmm(of_mixed, kept.value.flatten(0, 1).transpose(1, 2))
            # The slope of a softmax: chances (slope - sum(slope chances)), the second step in
            # place.
            of_chances.sub_(torch.linalg.vecdot(of_chances, chances)[..., None])
            of_scores = of_chances.mul_(chances)
            turned = kept.turned.flatten(0, 1)
            of_qkv = slope.new_empty(cells * sequences, longest, 3 * HEAD_WIDTH)
            of_turned = slope.new_empty(cells * sequences, longest, 2 * HEAD_WIDTH)
            first = longest - chances.shape[1]
            of_turned[:, :first, :HEAD_WIDTH] = 0  # positions without queries
            of_turned[:, first:, :HEAD_WIDTH] = torch.bmm(of_scores, turned[..., HEAD_WIDTH:])
            of_turned[..., HEAD_WIDTH:] = torch.bmm(
                of_scores.transpose(1, 2), turned[:, first:, :HEAD_WIDTH]
            )
            # The inverse of a rotation is the rotation by the conjugate. The queries' scale is real
            # and stays.
            of_qkv[..., : 2 * HEAD_WIDTH] = _turned(of_turned, self.turn.conj())
            of_qkv[..., 2 * HEAD_WIDTH :] = torch.bmm(chances.transpose(1, 2), of_mixed)
            of_qkv = of_qkv.view(cells, sequences, longest, -1)
            _of_folded(
                of_qkv, kept.normed, own.qkv, own.attention_norm, out.qkv, out.attention_norm
            )
            # Positions before the first query got no gradient above the last attention.
            if first:
                x = F.pad(x, (0, 0, first, 0))
            x = _of_norm(_times_back(of_qkv, layer.qkv), kept.normed, kept.inverse, x)
        # one-hot rows: a sum in a fixed order, as index_add is not on every device
        hot = F.one_hot(self.tokens, NUM_TOKENS).to(x.dtype)
        into.embedding.copy_(_outer(hot, x))
        return gradient


def _normed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x over its root mean square, and one over that."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = length.square_().mul_(1 / WIDTH).add_(NORM_EPSILON).rsqrt_()
    return x * inverse, inverse


def _rows(x: Tensor) -> Tensor:
    """Return [C, R, ...] of [C, S, L, ...]."""
    return x.flatten(1, 2)


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x [C, S, L, in] times each cell's matrix [C, out, in], transposed."""
    return torch.bmm(_rows(x), matrix.transpose(1, 2)).view(*x.shape[:3], -1)


def _times_back(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.bmm(_rows(x), matrix).view(*x.shape[:3], -1)


def _plus(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    return torch.baddbmm(_rows(x), _rows(y), matrix.transpose(1, 2)).view(x.shape)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Return [C, out, in], the sum over rows of x [.., out] times y [.., in]."""
    return torch.bmm(_rows(x).transpose(1, 2), _rows(y))


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Return queries and keys [..., L, 2 E] rotated by turn [L, 2, E/2]."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], 2, HEAD_WIDTH // 2, 2))
    return torch.view_as_real(pairs * turn).flatten(-3)


def _of_folded(
    slope: Tensor, normed: Tensor, matrix: Tensor, norm: Tensor, of_matrix: Tensor, of_norm: Tensor
) -> None:
    """Write the gradients of a matrix [C, out, in] and of the norm [C, in] folded into it."""
    # A folded matrix is M n for a norm n. So M has the slope times n, and n the slope times M,
    # summed over outputs.
    outer = _outer(slope, normed)
    of_norm.copy_((outer * matrix).sum(1))
    torch.mul(outer, norm[:, None], out=of_matrix)


def _of_norm(slope: Tensor, normed: Tensor, inverse: Tensor, beside: Tensor | None) -> Tensor:
    """Return the gradient in a norm's input, plus `beside`, that of the residual path."""
    # With y = x / rms(x): the slope in x is (slope - y mean(slope y)) / rms(x).
    along = torch.linalg.vecdot(slope, normed)[..., None].mul_(-1 / WIDTH)
    slope = slope.addcmul_(normed, along)
    return slope.mul_(inverse) if beside is None else torch.addcmul(beside, slope, inverse)


class Sampled(NamedTuple):
    """Sampled responses, and the forward pass that sampled them."""

    rollouts: Rollouts
    """Of C cells: [C, P, ...]."""
    scored: "PackedScores"


class PackedScores(NamedTuple):
    """The log-probabilities that C policies give to responses."""

    logp: Tensor
    """[C, P, G, T], of the tokens; 0 where masked."""
    logps: Tensor
    """[C, P, 1 + G (T - 1), V], of the whole vocabulary at each packed position."""
    activations: object
    """Of the forward pass, for its backward pass."""
    entropies: Tensor | None = None
    """[C, P, G, T], of the distribution of each token, where the pass has computed them."""

    def entropy(self) -> Tensor:
        """Return the entropy of the distribution of each token, [C, P, G, T]."""
        if self.entropies is not None:
            return self.entropies
        return rows_of(-(self.logps.exp() * self.logps).sum(-1), self.logp.shape)


def _chosen(logps: Tensor, index: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities [C, P, G, T] of the tokens."""
    places = index * NUM_TOKENS + tokens.flatten(2)
    return logps.flatten(2).gather(2, places).view(tokens.shape)


def _drawn(logp: Tensor, uniform: Tensor, top_p: Sequence[float]) -> Tensor:
    """Return one token for each row of logp [C, P, G, V]: the inverse CDF at uniform [C, P, G]."""
    mass = logp.exp()
    for cell, share in enumerate(top_p):
        if share < 1.0:
            ordered, order = mass[cell].sort(stable=True, dim=-1, descending=True)
            # The mass before a token decides, so the token that crosses top_p is still inside.
            outside = ordered.cumsum(-1) - ordered >= share
            mass[cell] = mass[cell].scatter(-1, order, ordered.masked_fill(outside, 0.0))
    heights = mass.cumsum(-1)
    # Times the whole mass, because it is less than 1 after top_p and by rounding.
    token = (heights <= uniform[..., None] * heights[..., -1:]).sum(-1)
    # Rounding may put the draw at the last height: all tokens are then counted, one too many.
    return token.clamp_(max=NUM_TOKENS - 1)
