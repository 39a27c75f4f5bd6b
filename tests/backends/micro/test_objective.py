"""Advantages, losses and the optimizer against numbers worked out by hand or by torch's own."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.micro import optimizer
from backends.micro.objective import (
    Experience,
    advantages,
    aggregate,
    penalty,
    policy_loss,
    shaped_advantages,
)
from orchestrator.settings import Clip, Kl, Loss, Optimizer

GROUP = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0]])


def experience(advantage: float = 1.0, on_policy: bool = False) -> tuple[Tensor, Experience]:
    """Two prompts, two rollouts, three tokens; the last token of one rollout is masked."""
    random = torch.Generator().manual_seed(3)
    logp, rollout, reference = (
        -torch.rand(2, 2, 3, generator=random, dtype=torch.float64) for _ in range(3)
    )
    mask = torch.ones(2, 2, 3, dtype=torch.float64)
    mask[1, 0, 2] = 0
    signs = torch.tensor([[advantage, -advantage], [2 * advantage, 0.5]], dtype=torch.float64)
    batch = Experience(
        torch.zeros(2, 8),
        torch.zeros(2, 2, 3),
        mask,
        (logp if on_policy else rollout) * mask,
        reference * mask,
        torch.zeros(2, 2),
        torch.zeros(2, 2),
        signs[..., None],
    )
    return (logp * mask).requires_grad_(), batch


def test_advantages_by_hand() -> None:
    assert advantages("reinforce", GROUP).tolist() == GROUP.tolist()
    torch.testing.assert_close(
        advantages("dr_grpo", GROUP), torch.tensor([[0.4, -0.6, -0.6, 0.4, 0.4]])
    )
    loo = [1 - 2 / 4, 0 - 3 / 4, 0 - 3 / 4, 1 - 2 / 4, 1 - 2 / 4]  # minus the mean of the others
    torch.testing.assert_close(advantages("rloo", GROUP), torch.tensor([loo]))
    spread = math.sqrt((3 * 0.4**2 + 2 * 0.6**2) / 4)
    torch.testing.assert_close(
        advantages("grpo", GROUP), torch.tensor([[0.4, -0.6, -0.6, 0.4, 0.4]]) / (spread + 1e-6)
    )
    assert advantages("grpo", torch.ones(1, 5)).tolist() == [[0.0] * 5]


def test_what_the_loss_is_divided_by() -> None:
    per_token = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 100.0]]])
    mask = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    assert aggregate(Loss(), per_token, mask).item() == 15 / 5
    assert aggregate(Loss(aggregation="sequence_mean"), per_token, mask).item() == (2 + 4.5) / 2
    constant = Loss(aggregation="constant", constant_tokens=6)
    assert aggregate(constant, per_token, mask).item() == (6 + 9) / 6 / 2


def test_clipping_by_hand() -> None:
    ratio = torch.tensor([0.5, 0.9, 1.1, 1.5, 4.0])
    logp, rollout = ratio.log(), torch.zeros(5)
    up, seen, clipped = policy_loss(
        Loss(clip=Clip(low=0.2, high=0.3)), logp, rollout, torch.tensor(1.0)
    )
    torch.testing.assert_close(up, torch.tensor([-0.5, -0.9, -1.1, -1.3, -1.3]))
    torch.testing.assert_close(seen, ratio)
    assert clipped.tolist() == [False, False, False, True, True]
    down, _, clipped = policy_loss(Loss(clip=Clip(dual=3.0)), logp, rollout, torch.tensor(-1.0))
    torch.testing.assert_close(down, torch.tensor([0.8, 0.9, 1.1, 1.5, 3.0]))
    assert clipped.tolist() == [True, False, False, False, True]
    plain, _, clipped = policy_loss(Loss(clip=None), logp, rollout, torch.tensor(-1.0))
    torch.testing.assert_close(plain, ratio)
    assert not clipped.any()


def test_a_kl_charged_to_some_tokens_is_centred_at_each_position() -> None:
    reward = torch.tensor([[1.0, 0.0, 0.0]])
    lost = torch.tensor([[[1.0, 2.0, 4.0], [0.5, 0.25, 0.0], [3.0, 0.0, 0.0]]])
    to_go = torch.tensor([[[7.0, 6.0, 4.0], [0.75, 0.25, 0.0], [3.0, 0.0, 0.0]]])
    for credit, charged in (("to_go", to_go), ("later", to_go - lost), ("token", lost)):
        shaped = reward[..., None] - 0.1 * charged
        for estimator in ("reinforce", "rloo", "grpo"):
            got = shaped_advantages(estimator, reward, 0.1, lost, credit=credit)  # type: ignore[arg-type]  # one of the literals, from the tuple above
            for t in range(3):
                expected = advantages(estimator, shaped[..., t])  # type: ignore[arg-type]  # one of the literals, from the tuple above
                torch.testing.assert_close(got[..., t], expected)


def test_the_kl_of_a_reward_is_of_each_token_and_that_of_a_loss_left_out() -> None:
    _, batch = experience()
    expected = (batch.logp_old - batch.logp_ref) * batch.mask
    for placement, there in (("reward", True), ("reward_and_loss", True), ("loss", False)):
        kl = Kl(estimator="k1", placement=placement, beta=0.3)  # type: ignore[arg-type]  # one of the literals, from the tuple above
        lost = penalty(kl, batch.logp_old, batch.logp_ref, batch.mask)
        torch.testing.assert_close(lost, expected if there else torch.zeros_like(expected))
    idle = Kl(estimator="k1", placement="reward", beta=0.0)
    assert not penalty(idle, batch.logp_old, batch.logp_ref, batch.mask).any()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_are_those_of_torchs_adamw(decay: float) -> None:
    settings = Optimizer(learning_rate=1e-2, weight_decay=decay, beta1=0.8, beta2=0.95)
    random = torch.Generator().manual_seed(0)
    ours = torch.randn(50, generator=random)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=decay, betas=(0.8, 0.95))
    moments = optimizer.Moments.zeros(ours)
    for step in range(1, 8):
        gradient = torch.randn(50, generator=random)
        ours = optimizer.update(ours, gradient, moments, settings, step, 1e-2)
        theirs.grad = gradient
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-6)


def test_learning_rate_schedules_by_hand() -> None:
    def rates(schedule: Any, warmup: int) -> list[float]:
        settings = Optimizer(learning_rate=1.0, schedule=schedule, num_warmup_steps=warmup)
        return [optimizer.learning_rate(settings, step, 6) for step in range(1, 7)]

    assert rates("constant", 0) == [1.0] * 6
    assert rates("constant", 2) == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear", 2) == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates("cosine", 2) == pytest.approx(
        [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )


def test_gradients_are_clipped_by_their_norm_each_by_its_own_bound() -> None:
    gradients = torch.tensor([[3.0, 4.0]] * 3 + [[math.nan, 1.0]])
    clipped, norms = optimizer.clip(gradients, [1.0, None, 10.0, 1.0])
    assert norms[:3].tolist() == [5.0] * 3
    assert norms[3].isnan()
    torch.testing.assert_close(clipped[0], torch.tensor([0.6, 0.8]), atol=1e-6, rtol=0)
    assert torch.equal(clipped[1:3], gradients[1:3])
