"""Advantages, losses, the optimizer and each part of a dialect, against numbers worked out by hand
or by torch's own, and in a trained cell."""

import math
from typing import Any

import pytest
import torch

from backends.micro import BACKEND, optimizer
from backends.micro.effective_beta import beta_effective
from backends.micro.experience import lag
from backends.micro.objective import (
    Experience,
    advantages,
    aggregate,
    objective,
    penalty,
    policy_loss,
    shaped_advantages,
)
from backends.micro.policy import norms, weights
from backends.micro.version import VERSION, version_for
from docs.tools.plain_policy import initial
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.kl.library_semantics import PLAIN, Dialect, beta_of_half_solved_groups, parse
from orchestrator.records import AttemptPaths
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Clip,
    Kl,
    Loss,
    Optimizer,
    Rollout,
)
from tests.backends.micro.cells import cell_of, embedded

REWARD = torch.tensor([[1.0, 0.0, 1.0]])
LOST = torch.tensor([[[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]]])
CENTRED = torch.tensor([[0.5, -1.0, 0.5]])
"""rloo of REWARD."""


def dialect(**fields: Any) -> Dialect:
    return PLAIN.model_copy(update=fields)


def test_where_the_kl_of_a_reward_goes() -> None:
    def shaped(kind: str) -> torch.Tensor:
        return shaped_advantages("rloo", REWARD, 0.1, LOST, dialect(kl_reward=kind))

    sums = LOST.sum(-1)
    inside = REWARD - 0.1 * sums
    torch.testing.assert_close(shaped("inside")[..., 0], (inside - inside.mean()) * 1.5)
    torch.testing.assert_close(shaped("outside")[..., 0], CENTRED - 0.1 * sums)
    to_go = torch.tensor([[[3.0, 2.0], [1.0, 1.0], [3.0, 0.0]]])
    torch.testing.assert_close(shaped("to_go"), CENTRED[..., None] - 0.1 * to_go)
    torch.testing.assert_close(shaped("token"), CENTRED[..., None] - 0.1 * LOST)


def test_what_means_are_taken_over() -> None:
    per_token = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 100.0]], [[6.0, 0, 0], [7.0, 8.0, 9.0]]])
    mask = torch.tensor([[[1.0, 1, 1], [1, 1, 0]], [[1, 0, 0], [1, 1, 1]]])
    by_two = aggregate(Loss(), per_token, mask, dialect(micro_batch=2))
    assert by_two.item() == pytest.approx((15 / 5 + 30 / 4) / 2)
    whole = aggregate(Loss(), per_token, mask, dialect(micro_batch=4))
    assert whole.item() == pytest.approx(45 / 9)
    tokens = torch.tensor(12.0)
    of_batch = aggregate(Loss(), per_token, mask, dialect(mean_over="batch"), tokens)
    assert of_batch.item() == pytest.approx(45 / 12)
    assert aggregate(Loss(), per_token, mask, dialect(), tokens).item() == pytest.approx(45 / 9)
    by_response = Loss(aggregation="sequence_mean")
    means = aggregate(by_response, per_token, mask).item()
    assert means == pytest.approx((2 + 4.5 + 6 + 8) / 4)
    constant = Loss(aggregation="constant", constant_tokens=6)
    assert aggregate(constant, per_token, mask).item() == pytest.approx(45 / 6 / 4)
    tokens = aggregate(constant, per_token, mask, dialect(constant_is_tokens=True))
    assert tokens.item() == pytest.approx(45 / 9)


def batch_of(x: float, ratio: float = 1.0) -> tuple[torch.Tensor, Experience]:
    """Two rollouts of 2 and 4 tokens, log pi / pi_ref = x, advantages 1."""
    mask = torch.tensor([[[1.0, 1, 0, 0], [1, 1, 1, 1]]])
    logp = torch.full((1, 2, 4), -1.0) * mask
    old = logp - torch.tensor(ratio).log() * mask
    made = Experience(
        mask,
        mask,
        mask,
        old,
        (logp - x) * mask,
        torch.tensor([[1.0, 0.0]]),
        torch.zeros(1, 2),
        torch.ones(1, 2, 1),
    )
    return logp.requires_grad_(), made


def slope(kl: Kl, told: Dialect, x: float, ratio: float = 1.0, loss: Loss | None = None) -> Any:
    """Gradient of the KL alone."""
    logp, batch = batch_of(x, ratio)
    loss = loss or Loss(clip=None)
    whole = objective(loss, kl, logp, batch, told).loss
    alone = objective(loss, Kl(estimator="none"), logp, batch, told).loss
    return torch.autograd.grad(whole - alone, logp)[0]


def test_a_clamp_stops_the_gradient_beyond_it_and_not_within() -> None:
    kl, held = Kl(estimator="k3", placement="loss", beta=1.0), dialect(kl_clamp=(20.0, 10.0))
    assert slope(kl, held, -4.0).abs().sum() == 0  # k3(-4) = 49.6
    torch.testing.assert_close(slope(kl, held, 1.0), slope(kl, PLAIN, 1.0))
    other = dialect(kl_clamp=(20.0, 10.0), kl_clamp_of=("k1",))
    torch.testing.assert_close(slope(kl, other, -4.0), slope(kl, PLAIN, -4.0))


def test_the_ratio_that_weighs_a_kl_is_bounded() -> None:
    kl = Kl(estimator="rho_k3", placement="loss", beta=1.0)
    free, held = slope(kl, PLAIN, 0.5, 20.0), slope(kl, dialect(kl_ratio_max=10.0), 0.5, 20.0)
    torch.testing.assert_close(held * 2, free)  # both are the ratio times x
    near = slope(kl, dialect(kl_ratio_max=10.0), 0.5, 2.0)
    torch.testing.assert_close(near, slope(kl, PLAIN, 0.5, 2.0))


def test_the_log_ratio_of_the_policy_loss_is_bounded() -> None:
    logp, batch = batch_of(0.0, 1e9)
    loss = Loss(clip=None)
    told = objective(loss, Kl(estimator="none"), logp, batch, dialect(ratio_bound=2.0))
    assert told.ratio.max().item() == pytest.approx(7.389, rel=1e-3)
    assert torch.autograd.grad(told.loss, logp)[0].abs().sum() == 0


def test_decay_of_matrices_leaves_norms_alone() -> None:
    flat = initial(0)
    settings = Optimizer(learning_rate=1e-2, weight_decay=0.5)
    moments = optimizer.Moments.zeros(flat)
    flat = optimizer.update(
        flat, torch.zeros_like(flat), moments, settings, 1, 1e-2, dialect(decay_of="matrices")
    )
    was = initial(0)
    kept = norms(flat.device)
    assert torch.equal(flat[kept], was[kept])
    torch.testing.assert_close(flat[~kept], was[~kept] * (1 - 1e-2 * 0.5))
    assert kept.sum() == sum(
        x.numel()
        for x in (
            weights(flat).norm,
            *(n for layer in weights(flat).layers for n in (layer.attention_norm, layer.mlp_norm)),
        )
    )


def test_learning_rates_by_hand() -> None:
    def rates(
        told: Dialect = PLAIN, schedule: Any = "linear", warmup: int = 2, **changed: Any
    ) -> list[float]:
        own = Optimizer(learning_rate=1.0, schedule=schedule, num_warmup_steps=warmup)
        settings = embedded(optimizer=own, num_train_steps=6, **changed)
        return [optimizer.rate_of(settings, step, told) for step in range(1, 7)]

    assert rates(schedule="constant", warmup=0) == [1.0] * 6
    assert rates(schedule="constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates(schedule="cosine") == pytest.approx(
        [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )
    assert rates() == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates(dialect(warmup_from_zero=True)) == [0, 0.5, 1, 0.75, 0.5, 0.25]
    twice = Batch(num_prompts=4, num_minibatches=2)
    held = dialect(schedule_per_batch=True)
    assert rates(held, batch=twice) == [0.5, 0.5, 1, 1, 0.5, 0.5]
    assert rates(held, batch=twice, max_staleness_steps=2) == rates(PLAIN, batch=twice)


def test_a_lag_up_to_a_bound_reaches_it_and_0_and_is_the_seeds() -> None:
    settings, told = embedded(max_staleness_steps=3), dialect(staleness="up_to")
    drawn = [lag(settings, told, number) for number in range(60)]
    assert set(drawn) == {0, 1, 2, 3}
    assert drawn == [lag(settings, told, number) for number in range(60)]
    assert {lag(settings, PLAIN, number) for number in range(9)} == {3}


@pytest.mark.parametrize(
    ("advantage", "placement", "fields", "expected"),
    [
        ("rloo", "reward", {}, 0.3),
        ("rloo", "loss", {}, 0.3),
        ("rloo", "reward", {"kl_reward": "outside"}, 0.3),
        ("dr_grpo", "reward", {"kl_reward": "outside"}, 0.6),  # groups of two hold half back
        ("dr_grpo", "reward", {}, 0.3),
        ("dr_grpo", "loss", {}, 0.6),
        ("grpo", "loss", {}, 0.6 * 0.5**0.5),
        ("grpo", "reward", {}, 0.3),
        ("rloo", "loss", {"kl_loss_mean": "sequence_mean"}, 0.3),  # 1/4, 1/8 against 1/6
    ],
)
def test_beta_effective_by_hand(
    advantage: Any, placement: Any, fields: dict[str, Any], expected: float
) -> None:
    two = Rollout(group_size=2, max_response_tokens=7)
    settings = embedded("k1", placement, 0.3, advantage=Advantage(estimator=advantage), rollout=two)
    logp, batch = batch_of(0.5)
    found = beta_effective(settings, dialect(**fields), logp.detach(), batch)
    assert found == pytest.approx(expected, rel=1e-5)
    foreseen = beta_of_half_solved_groups(settings, dialect(**fields))
    assert foreseen == (None if fields.get("kl_loss_mean") else pytest.approx(found, rel=1e-5))


def test_beta_effective_of_a_constant_normaliser_and_of_a_clamp() -> None:
    """A policy loss over 12 constant tokens and a KL by sequences of 2 and 4: 6 and 3 times as
    hard a pull, 4 times over the 6 tokens."""
    logp, batch = batch_of(0.5)
    constant = embedded("k1", "loss", 0.3, loss=Loss(aggregation="constant", constant_tokens=12))
    told = dialect(kl_loss_mean="sequence_mean")
    assert beta_effective(constant, told, logp.detach(), batch) == pytest.approx(1.2, rel=1e-5)
    far, beyond = batch_of(-4.0)
    k3 = embedded("k3", "loss", 0.3)
    held = dialect(kl_clamp=(20.0, 10.0))
    assert beta_effective(k3, held, far.detach(), beyond) == 0
    assert beta_effective(embedded(), held, far.detach(), beyond) is None


def test_a_version_names_its_dialect_and_refuses_what_it_is_not() -> None:
    settings = embedded("k1", "reward", 0.3)
    told = dialect(kl_reward="to_go", kl_clamp=(None, 10.0), micro_batch=None)
    version = version_for(told, settings)
    assert version == "1+kl_clamp=-/10+kl_reward=to_go"
    assert BACKEND.semantics(version).dialect == parse("kl_clamp=-/10+kl_reward=to_go")
    assert version_for(told, embedded()) == VERSION, "nothing of it matters without a KL"
    for wrong in ("2", "1+nonsense=1", "verl@0.9.1"):
        with pytest.raises(UnsupportedSetting, match=r"backend\.version"):
            BACKEND.semantics(wrong)


def test_a_rehearsal_has_the_id_of_its_mathematics(place: AttemptPaths) -> None:
    asked = cell_of(
        embedded("k1", "reward", 0.3).model_copy(
            update={"backend": BackendRef(name="verl", version="0.9.1")}
        )
    )
    plain, other = BACKEND.rehearse(asked), BACKEND.rehearse(asked, dialect(kl_reward="to_go"))
    assert plain is not None
    assert other is not None
    assert plain.id != other.id == fingerprint(other.settings)
    assert plain.settings.backend.version == VERSION
    notes = {e.field: e.note for e in BACKEND.translate(other, place).ledger}
    assert "after the group's baseline" in notes["kl.placement"]


GROUP = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0]])


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
    _, batch = batch_of(0.5)
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


def test_gradients_are_clipped_by_their_norm() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clipped, norm = optimizer.clip(gradient, 1.0)
    assert norm == 5.0
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]), atol=1e-6, rtol=0)
    for bound in (None, 10.0):
        assert torch.equal(optimizer.clip(gradient, bound)[0], gradient)
    assert math.isnan(optimizer.clip(torch.tensor([math.nan, 1.0]), 1.0)[1])
