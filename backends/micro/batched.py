"""The forward and the backward pass of a policy, written out over flat tensors.

Shapes: S packed sequences, L positions of a sequence, V vocabulary, D width, E width of the one
head, F hidden width.

The passes do not use autograd, for two reasons: a norm's weights are folded into the matrix behind
it, and the train step reuses the activations of sampling.
`docs/tools/plain_policy.py` is the same mathematics under autograd.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its name in the field)
from torch import Tensor

from backends.micro.policy import Layout, Weights, weights
from backends.micro.rollout import Rollouts, Scored, tree
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
    """The matrices of a layer, [out, in], with the norms' weights in those behind them."""

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class Folded(NamedTuple):
    """A policy, ready for the passes."""

    weights: Weights
    """As they are: [out, in], norms [D]."""
    layers: tuple[FoldedLayer, ...]
    head: Tensor
    """[V, D]"""

    @property
    def device(self) -> torch.device:
        """Return where it is."""
        return self.head.device

    @torch.no_grad()
    def sample(
        self,
        prompts: Tensor,
        uniforms: Tensor,
        temperature: float = 1.0,
        top_p: float = 1.0,
        *,
        keep: bool = True,
        rounded: EngineFormat | None = None,
    ) -> "Sampled":
        """Return one response to prompts [P, S] for each row of uniforms [P, G, T] in [0, 1).

        Use inverse-CDF sampling, so that equal uniforms give equal tokens. `logp` is that of the
        distribution before top_p truncates it. rounded: the format of the logits, where an engine
        rounds them.
        """
        groups, size, longest = uniforms.shape
        at, index = tree(size, longest, prompts.device)
        kept = Activations(groups, at, self.head, keep=keep)
        logps = self.head.new_zeros(groups, len(at.mask) - at.first, NUM_TOKENS)
        tokens = torch.full(uniforms.shape, PAD, device=prompts.device)
        mask = torch.zeros_like(uniforms)
        alive = torch.ones_like(tokens[..., 0], dtype=torch.bool)
        given, rows, place = prompts, slice(0, PROMPT_TOKENS, 1), slice(0, 1, 1)
        for t in range(longest):
            out = near(kept.advance(self, given, rows), rounded)
            logp = (out / temperature).log_softmax(-1)
            logps[:, place] = logp
            # At the first token all responses of a prompt share the prompt's last row.
            token = _drawn(logp.expand(-1, size, -1), uniforms[..., t], top_p)
            given = tokens[..., t] = torch.where(alive, token, PAD)
            mask[..., t] = alive
            alive = alive & (given != EOS)
            if not alive.any():
                for step in range(t, longest - 1):
                    kept.leave_out(slice(PROMPT_TOKENS + step, None, longest - 1))
                break
            rows = slice(PROMPT_TOKENS + t, len(at.mask), longest - 1)
            place = slice(1 + t, None, longest - 1)
        scored = Scored(_chosen(logps, index, tokens) * mask, logps, kept)
        return Sampled(Rollouts(prompts, tokens, mask, scored.logp), scored)

    @torch.no_grad()
    def score(
        self,
        prompts: Tensor,
        tokens: Tensor,
        mask: Tensor,
        temperature: float = 1.0,
        *,
        keep: bool = False,
    ) -> Scored:
        """Return the log-probabilities of responses [P, G, T], from one packed forward pass."""
        at, index = tree(tokens.shape[1], tokens.shape[2], tokens.device)
        kept = Activations(len(tokens), at, self.head, keep=keep)
        packed = torch.cat([prompts, tokens[..., :-1].flatten(1)], 1)
        out = kept.advance(self, packed, slice(0, packed.shape[1], 1))
        logps = (out / temperature).log_softmax(-1)
        return Scored(_chosen(logps, index, tokens) * mask, logps, kept)

    @torch.no_grad()
    def gradient(
        self,
        scored: Scored,
        tokens: Tensor,
        slope: Tensor,
        temperature: float = 1.0,
        further: Tensor | None = None,
    ) -> Tensor:
        """Return [NUM_PARAMETERS], the gradient of a loss whose slope in `logp` is [P, G, T].

        further: the loss's further slope in `logps`.
        """
        _, index = tree(tokens.shape[1], tokens.shape[2], tokens.device)
        places = index * NUM_TOKENS + tokens.flatten(1)
        of_chosen = torch.zeros_like(scored.logps)
        of_chosen.flatten(1).scatter_add_(1, places, slope.flatten(1))
        if further is not None:
            of_chosen += further
        # The slope of log_softmax: the slope minus the probabilities times its sum.
        of_all = of_chosen.sum(-1, keepdim=True)
        of_logits = of_chosen.addcmul_(scored.logps.exp(), of_all, value=-1).div_(temperature)
        if not isinstance(scored.activations, Activations):
            raise TypeError("these log-probabilities are of another pass")
        return scored.activations.backward(self, of_logits)


def folded(flat: Tensor) -> Folded:
    """Return the matrices of a flat vector [NUM_PARAMETERS]."""
    policy = weights(flat)
    layers = (
        FoldedLayer(x.qkv * x.attention_norm, x.output, x.gate_up * x.mlp_norm, x.down)
        for x in policy.layers
    )
    return Folded(policy, tuple(layers), policy.head * policy.norm)


class LayerActivations:
    """A layer's activations for the backward pass. Q of the L positions have queries.

    normed [S, L, D], inverse [S, L, 1]: input over its root mean square, and one over that;
    turned [S, L, 2 E]: rotated queries, scaled, and keys; value [S, L, E];
    chances [S, Q, L]: of attention; mixed [S, Q, E];
    normed_mlp, inverse_mlp, gate_up [S, Q, 2 F], product [S, Q, F]: of the gated MLP.
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

    def __init__(self, sequences: int, at: Layout, like: Tensor, *, keep: bool = True):
        self.keep, self.at = keep, at
        self.mask = at.mask.to(like.dtype)
        turn = at.rotation[:, 0].to(like.dtype.to_complex())  # [L, 1, E/2]
        # The scale of the scores is in the queries' rotation, so no score is multiplied by it
        # later.
        self.turn = torch.cat([turn * SCALE, turn], 1)  # [L, 2, E/2]: of queries, of keys
        shape = sequences, len(at.mask)
        self.tokens = torch.zeros(shape, dtype=torch.long, device=like.device)
        self.layers = [LayerActivations() for _ in range(NUM_LAYERS)]
        self.top = LayerActivations()

    def _keep(
        self, kept: LayerActivations, name: str, value: Tensor, place: slice, of: int
    ) -> None:
        """Store the values at `place` of `of` positions. Values of all positions are not copied."""
        if not self.keep and name not in ("turned", "value"):
            return
        if value.shape[1] == of:
            setattr(kept, name, value)
            return
        if not hasattr(kept, name):
            # an unwritten key or value is multiplied by 0 and must be finite
            new = value.new_zeros if name in ("turned", "value") else value.new_empty
            setattr(kept, name, new(len(value), of, value.shape[2]))
        getattr(kept, name)[:, place] = value

    def leave_out(self, rows: slice) -> None:
        """Let positions that are never computed count for nothing in the backward pass."""
        for kept in (*self.layers, self.top):
            for of_all in vars(kept).values():
                skipped = len(self.mask) - of_all.shape[1]
                of_all[:, rows.start - skipped :: rows.step] = 0

    def advance(self, policy: Folded, tokens: Tensor, rows: slice) -> Tensor:
        """Return logits [S, n, V] at these positions, from the first that predicts.

        tokens [S, n]. What the positions attend to must have been computed.
        """
        longest, first = len(self.mask), self.at.first
        self.tokens[:, rows] = tokens
        place, of, at_work = rows, longest, rows
        x = F.embedding(tokens, policy.weights.embedding)
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
                skipped = x.shape[1] - len(range(*at_work.indices(longest)))
                x, turned = x[:, skipped:], turned[:, skipped:]
            query, keys = turned[..., :HEAD_WIDTH], kept.turned[..., HEAD_WIDTH:]
            chances = torch.baddbmm(self.mask[at_work], query, keys.mT).softmax(-1)
            mixed = torch.bmm(chances, kept.value)
            x = _plus(x, mixed, layer.output)
            self._keep(kept, "chances", chances, place, of)
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
        """Return the gradient [NUM_PARAMETERS], of slope [S, Q, V] in the logits."""
        sequences, longest = self.tokens.shape
        gradient = slope.new_zeros(NUM_PARAMETERS)
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
            of_mixed, chances, turned = _times_back(x, layer.output), kept.chances, kept.turned
            of_chances = torch.bmm(of_mixed, kept.value.mT)
            # The slope of a softmax: chances (slope - sum(slope chances)), the second step in
            # place.
            of_chances.sub_(torch.linalg.vecdot(of_chances, chances)[..., None])
            of_scores = of_chances.mul_(chances)
            of_qkv = slope.new_empty(sequences, longest, 3 * HEAD_WIDTH)
            of_turned = slope.new_empty(sequences, longest, 2 * HEAD_WIDTH)
            first = longest - chances.shape[1]
            of_turned[:, :first, :HEAD_WIDTH] = 0  # positions without queries
            of_turned[:, first:, :HEAD_WIDTH] = torch.bmm(of_scores, turned[..., HEAD_WIDTH:])
            of_turned[..., HEAD_WIDTH:] = torch.bmm(of_scores.mT, turned[:, first:, :HEAD_WIDTH])
            # The inverse of a rotation is the rotation by the conjugate. The queries' scale is real
            # and stays.
            of_qkv[..., : 2 * HEAD_WIDTH] = _turned(of_turned, self.turn.conj())
            of_qkv[..., 2 * HEAD_WIDTH :] = torch.bmm(chances.mT, of_mixed)
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


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x [S, L, in] times a matrix [out, in], transposed."""
    return torch.mm(x.flatten(0, 1), matrix.T).view(*x.shape[:2], -1)


def _times_back(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.mm(x.flatten(0, 1), matrix).view(*x.shape[:2], -1)


def _plus(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    return torch.addmm(x.flatten(0, 1), y.flatten(0, 1), matrix.T).view(x.shape)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Return [out, in], the sum over rows of x [.., out] times y [.., in]."""
    return torch.mm(x.flatten(0, 1).T, y.flatten(0, 1))


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Return queries and keys [..., L, 2 E] rotated by turn [L, 2, E/2]."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], 2, HEAD_WIDTH // 2, 2))
    return torch.view_as_real(pairs * turn).flatten(-3)


def _of_folded(
    slope: Tensor, normed: Tensor, matrix: Tensor, norm: Tensor, of_matrix: Tensor, of_norm: Tensor
) -> None:
    """Write the gradients of a matrix [out, in] and of the norm [in] folded into it."""
    # A folded matrix is M n for a norm n. So M has the slope times n, and n the slope times M,
    # summed over outputs.
    outer = _outer(slope, normed)
    of_norm.copy_((outer * matrix).sum(0))
    torch.mul(outer, norm, out=of_matrix)


def _of_norm(slope: Tensor, normed: Tensor, inverse: Tensor, beside: Tensor | None) -> Tensor:
    """Return the gradient in a norm's input, plus `beside`, that of the residual path."""
    # With y = x / rms(x): the slope in x is (slope - y mean(slope y)) / rms(x).
    along = torch.linalg.vecdot(slope, normed)[..., None].mul_(-1 / WIDTH)
    slope = slope.addcmul_(normed, along)
    return slope.mul_(inverse) if beside is None else torch.addcmul(beside, slope, inverse)


class Sampled(NamedTuple):
    """Sampled responses, and the forward pass that sampled them."""

    rollouts: Rollouts
    scored: Scored


def _chosen(logps: Tensor, index: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities [P, G, T] of the tokens."""
    places = index * NUM_TOKENS + tokens.flatten(1)
    return logps.flatten(1).gather(1, places).view(tokens.shape)


def _drawn(logp: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """Return one token for each row of logp [P, G, V]: the inverse CDF at uniform [P, G]."""
    mass = logp.exp()
    if top_p < 1.0:
        ordered, order = mass.sort(stable=True, dim=-1, descending=True)
        # The mass before a token decides, so the token that crosses top_p is still inside.
        outside = ordered.cumsum(-1) - ordered >= top_p
        mass = mass.scatter(-1, order, ordered.masked_fill(outside, 0.0))
    heights = mass.cumsum(-1)
    # Times the whole mass, because it is less than 1 after top_p and by rounding.
    token = (heights <= uniform[..., None] * heights[..., -1:]).sum(-1)
    # Rounding may put the draw at the last height: all tokens are then counted, one too many.
    return token.clamp_(max=NUM_TOKENS - 1)
