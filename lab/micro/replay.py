"""Replay the rollouts of a library's run through this trainer's objective, in the run's dialect.

The replay uses only the library's rollouts: tokens, rewards, groups and minibatches. From the
policy that the run started from, it computes log-probabilities, loss, gradient and AdamW for each
train step, so that an error in the first step also shows in the last.

Shapes: R rollouts of a batch, T tokens of its longest response.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backends.micro.objective import Experience, objective, penalty, shaped_advantages
from backends.micro.optimizer import rate_of
from lab.cpu.orch_rollout_dump import RolloutBatch, Values
from lab.prove.proof import BatchPrediction
from orchestrator.estimators import entry
from orchestrator.kl.estimators import weight_of, weights
from orchestrator.kl.library_semantics import Dialect, in_loss, in_reward
from orchestrator.settings import Settings


class Rows(NamedTuple):
    """A batch as tensors. Masked tokens are 0."""

    tokens: Tensor
    """[R, T]"""
    mask: Tensor
    """[R, T] float"""
    reward: Tensor
    """[R]"""
    groups: list[list[int]]
    """The rollouts of each prompt."""


def replay(
    settings: Settings, dialect: Dialect, batches: Iterable[RolloutBatch], policy: Path
) -> Iterator[BatchPrediction]:
    """Yield the prediction of each batch, in order. The first must be the run's first.

    policy: the Hugging Face folder that the run started from.
    """
    torch.set_num_threads(1)
    trainer = _Trainer(settings, dialect, policy)
    for batch in batches:
        yield trainer.train(batch)


class _Trainer:
    """The training of a policy on another trainer's rollouts."""

    def __init__(self, settings: Settings, dialect: Dialect, policy: Path):
        self.settings, self.dialect = settings, dialect
        self.policy, self.reference = _load(policy), _load(policy)
        optimizer = settings.optimizer
        named = dict(self.policy.named_parameters())
        decayed = [p for p in named.values() if dialect.decay_of == "all" or p.dim() > 1]
        others = [p for p in named.values() if dialect.decay_of != "all" and p.dim() <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": others, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups,
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )
        self.step = 0

    def train(self, batch: RolloutBatch) -> BatchPrediction:
        """Train on a batch. Return its prediction."""
        settings, dialect, rows = self.settings, self.dialect, _rows(batch)
        everything = list(range(len(batch.responses)))
        with torch.no_grad():
            start = self._logp(self.policy, batch, rows, everything)
            at = 1.0 if dialect.reference_temperature == "one" else None
            reference = self._logp(self.reference, batch, rows, everything, at)
        rollout = _padded(batch.logp_rollout, rows)
        of_policy = _padded(batch.logp_policy, rows)
        of_reference = _padded(batch.logp_reference, rows)
        advantage, observed = _advantages(settings, dialect, rows, start, reference, rollout)
        if of_policy is not None and of_reference is not None:
            # The rounding of the passes counts in a group of equal responses: there grpo divides
            # it by itself. The KL in the reward, of our own passes, is compared apart.
            advantage, _ = _advantages(settings, dialect, rows, of_policy, of_reference, rollout)
        old = _denominator(settings, dialect, start, rollout)
        weight = _weight(settings, rows, start, rollout)
        parts, count = [], len(_minibatches(batch))
        for chosen in _minibatches(batch):
            logp = self._logp(self.policy, batch, rows, chosen)
            some = Rows(rows.tokens[chosen], rows.mask[chosen], rows.reward[chosen], [])
            given = (logp, old[chosen], reference[chosen], advantage[chosen])
            of_chosen = None if weight is None else weight[chosen]
            loss, values = _loss(
                settings, dialect, some, *given, rows.mask.sum() / count, of_chosen
            )
            parts.append(values | self._update(loss))
        for name in parts[0]:
            observed[name] = sum(part[name] for part in parts) / len(parts)
        observed["learning_rate"] = parts[-1]["learning_rate"]
        self._reset_reference(len(parts))
        weights = {name: value.detach().clone() for name, value in self.policy.state_dict().items()}
        return BatchPrediction(
            self.step, observed, _lists(advantage, batch), _lists(start, batch), weights
        )

    def _update(self, loss: Tensor) -> dict[str, float]:
        self.step += 1
        rate = rate_of(self.settings, self.step, self.dialect)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        bound = self.settings.optimizer.max_grad_norm
        # Without a bound the norm is measured and nothing is clipped.
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), bound or float("inf"))
        self.adamw.step()
        return {"grad_norm": norm.item(), "learning_rate": rate}

    def _reset_reference(self, steps: int) -> None:
        every = self.settings.kl.reset_reference_every_steps
        if every is not None and self.step // every > (self.step - steps) // every:
            self.reference.load_state_dict(self.policy.state_dict())

    def _logp(
        self,
        model: Any,
        batch: RolloutBatch,
        rows: Rows,
        chosen: list[int],
        temperature: float | None = None,
    ) -> Tensor:
        """Return [len(chosen), T], the log-probabilities of the chosen rollouts' tokens.

        temperature: None: the rollout's.
        """
        sequences = [batch.prompts[i] + batch.responses[i] for i in chosen]
        width = max(map(len, sequences))
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences])
        attention_mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sequences])
        logps = torch.log_softmax(
            model(ids, attention_mask=attention_mask, use_cache=False).logits.float()
            / (temperature or batch.temperature),
            -1,
        )
        longest = rows.tokens.shape[1]
        # The logits at a position are of the next token, so the prompt's last position is the
        # first.
        first = torch.tensor([len(batch.prompts[i]) - 1 for i in chosen])
        # Shorter rows end earlier. What stands there is masked.
        at = (first[:, None] + torch.arange(longest)).clamp(max=width - 1)
        of_tokens = logps[torch.arange(len(chosen))[:, None], at, rows.tokens[chosen]]
        return of_tokens * rows.mask[chosen]


def _load(policy: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()


def _rows(batch: RolloutBatch) -> Rows:
    longest = max(map(len, batch.responses))
    masks = batch.mask or [[1] * len(response) for response in batch.responses]
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(batch.groups):
        groups.setdefault(name, []).append(i)
    return Rows(
        torch.tensor([row + [0] * (longest - len(row)) for row in batch.responses]),
        torch.tensor([row + [0] * (longest - len(row)) for row in masks], dtype=torch.float32),
        torch.tensor(batch.rewards),
        list(groups.values()),
    )


def _padded(values: Values | None, rows: Rows) -> Tensor | None:
    if values is None:
        return None
    longest = rows.tokens.shape[1]
    padded = torch.tensor([row + [0.0] * (longest - len(row)) for row in values])
    return padded * rows.mask


def _lists(values: Tensor, batch: RolloutBatch) -> Values:
    full = values.expand(-1, max(map(len, batch.responses))).tolist()
    return [row[: len(tokens)] for row, tokens in zip(full, batch.responses, strict=True)]


def _minibatches(batch: RolloutBatch) -> list[list[int]]:
    return batch.updates or [list(range(len(batch.responses)))]


def _denominator(
    settings: Settings, dialect: Dialect, start: Tensor, rollout: Tensor | None
) -> Tensor:
    """Return the log-probabilities in the denominator of importance ratios."""
    stale = settings.max_staleness_steps > 0 and dialect.ratio_to == "rollout"
    return rollout if stale and rollout is not None else start


def _weight(settings: Settings, rows: Rows, start: Tensor, rollout: Tensor | None) -> Tensor | None:
    """Return the correction of the engine's mismatch, [R, T] or [R, 1]; None without one."""
    correction = settings.loss.correction
    if correction is None or rollout is None:
        return None
    weight: Tensor = weights(weight_of(correction), start - rollout, rows.mask)
    return weight


def _advantages(
    settings: Settings,
    dialect: Dialect,
    rows: Rows,
    logp: Tensor,
    reference: Tensor,
    rollout: Tensor | None,
) -> tuple[Tensor, dict[str, float]]:
    """Return advantages [R, 1] or [R, T], and the KL in the reward."""
    kl = settings.kl
    stale = settings.max_staleness_steps > 0 and dialect.kl_reward_policy == "rollout"
    of_reward = rollout if stale and rollout is not None else logp
    lost = penalty(kl, of_reward, reference, rows.mask, dialect)
    parts: list[tuple[int, Tensor]] = []
    for chosen in rows.groups:
        shaped = shaped_advantages(
            settings.advantage.estimator,
            rows.reward[chosen][None],
            kl.beta if in_reward(kl) else 0.0,
            lost[chosen][None],
            dialect,
            entry(kl.estimator).credit if in_reward(kl) else "sequence",
        )[0]
        parts += zip(chosen, shaped, strict=True)
    # Back to the order of the rollouts, because groups may be spread over it.
    advantage = torch.stack([value for _, value in sorted(parts, key=lambda part: part[0])])
    observed = {"reward": rows.reward.mean().item()}
    if in_reward(kl):
        observed["kl_reward"] = lost.sum(-1).mean().item()
        observed["kl_reward_per_token"] = (lost.sum(-1) / rows.mask.sum(-1)).mean().item()
    return advantage * rows.mask if advantage.shape[1] > 1 else advantage, observed


def _loss(
    settings: Settings,
    dialect: Dialect,
    rows: Rows,
    logp: Tensor,
    old: Tensor,
    reference: Tensor,
    advantage: Tensor,
    batch_tokens: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of one train step, and its parts."""
    part = Experience(
        rows.tokens[None],
        rows.tokens[None],
        rows.mask[None],
        old[None],
        reference[None],
        rows.reward[None],
        rows.reward[None],
        advantage[None],
        weight=None if weight is None else weight[None],
        batch_tokens=batch_tokens,
    )
    result = objective(settings.loss, settings.kl, logp[None], part, dialect)
    values = {"loss": result.loss.item(), "policy_loss": result.policy_loss.item()}
    if in_loss(settings.kl):
        values["kl_loss"] = (result.loss - result.policy_loss).item() / settings.kl.beta
    return result.loss, values
