"""The library's own arithmetic, run here: its KL, its loss with our module in it, its advantages,
compared with orchestrator.kl.estimators. Needs each release's sources, not its dependencies.
"""

import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from backends.micro.objective import shaped_advantages
from backends.verl import extension
from backends.verl.dialect import K3_CLAMP
from orchestrator.kl.estimators import UNCLAMPED, token_kl
from tests.backends.enumerated import ALL, END, TOKENS, Table, log_chances, sequence_kl
from tests.backends.verl import library

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

CORE, LOSSES = "trainer/ppo/core_algos.py", "workers/utils/losses.py"
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
SHAPE = MASK.shape


class Metric:
    """verl's Metric, as far as ppo_loss uses it."""

    def __init__(self, value: Any, aggregation: Any):
        self.value = value

    from_dict = staticmethod(lambda metrics, aggregation: dict(metrics))


class Batch(dict[str, Any]):
    """verl's batch, as far as ppo_loss uses it: padded from the start."""

    def select(self, *names: str) -> "Batch":
        return Batch({name: self[name] for name in names})

    def to_padded_tensor(self) -> "Batch":
        return self


@pytest.fixture(params=library.VERSIONS)
def verl(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The modules that extension.install is given, made of the release's own functions."""
    version = request.param
    core: dict[str, Any] = {
        "torch": torch,
        "np": np,
        "defaultdict": defaultdict,
        "AlgoConfig": type("AlgoConfig", (), {}),
        "verl_F": SimpleNamespace(
            masked_sum=lambda x, mask: (x * mask).sum(),
            masked_mean=lambda x, mask: (x * mask).sum() / mask.sum(),
        ),
    }
    library.functions(
        version,
        CORE,
        [
            "kl_penalty",
            "kl_penalty_forward",
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_grpo_outcome_advantage",
            "compute_rloo_outcome_advantage",
        ],
        core,
    )
    registered: dict[str, Any] = {}
    core["register_adv_est"] = lambda name: lambda function: registered.setdefault(name, function)
    core["registered"] = registered
    losses: dict[str, Any] = {
        "no_padding_2_padding": lambda x, data: x,
        "AggregationType": SimpleNamespace(SUM="sum", MEAN="mean"),
        "Metric": Metric,
        "torch": torch,
        "agg_loss": core["agg_loss"],
        "kl_penalty": core["kl_penalty"],
        "get_policy_loss_fn": {"vanilla": core["compute_policy_loss_vanilla"]}.__getitem__,
    }
    library.functions(version, LOSSES, ["ppo_loss"], losses)
    return _Module(losses), _Module(core)


class _Module:
    """A namespace as a module: what is set on it, its functions see."""

    def __init__(self, names: dict[str, Any]):
        self.__dict__ = names


class Config(SimpleNamespace):
    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def config(kl_loss_type: str, coefficient: float) -> Config:
    return Config(
        global_batch_info={},
        loss_scale_factor=None,
        policy_loss={"loss_mode": "vanilla"},
        loss_agg_mode="token-mean",
        entropy_coeff=0,
        use_kl_loss=True,
        kl_loss_type=kl_loss_type,
        kl_loss_coef=coefficient,
        clip_ratio=0.2,
        clip_ratio_low=1.0,
        clip_ratio_high=1e9,
        clip_ratio_c=1e9,
    )


def log_probabilities(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the policy (a leaf), the reference policy and the rollout policy; some ratios extreme."""
    make = torch.Generator().manual_seed(seed)
    policy = -5 * torch.rand(SHAPE, generator=make, dtype=torch.float64)
    reference = policy - torch.randn(SHAPE, generator=make, dtype=torch.float64)
    reference[0, 0] = policy[0, 0] + 4.0  # k3 is 49.6: held at 10, with no gradient
    rollout = policy + 0.3 * torch.randn(SHAPE, generator=make, dtype=torch.float64)
    return policy.requires_grad_(), reference, rollout


def loss_and_gradient(
    losses: Any, kl_loss_type: str, coefficient: float = 0.3
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    policy, reference, rollout = log_probabilities()
    batch = Batch(
        {
            "response_mask": MASK,
            "old_log_probs": rollout,
            "ref_log_prob": reference,
            "dp_size": 1,
            "advantages": torch.linspace(-1, 1, MASK.numel(), dtype=torch.float64).reshape(SHAPE),
            "batch_num_tokens": MASK.sum(),
            "global_batch_size": len(MASK),
        }
    )
    loss, metrics = losses.ppo_loss(config(kl_loss_type, coefficient), {"log_probs": policy}, batch)
    (gradient,) = torch.autograd.grad(loss, policy)
    return loss.detach(), gradient, metrics


def expected(estimator: Any, coefficient: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by our one definition of the estimators."""
    policy, reference, rollout = log_probabilities()
    advantages = torch.linspace(-1, 1, MASK.numel(), dtype=torch.float64).reshape(SHAPE)
    clamp = K3_CLAMP if "k3" in estimator else UNCLAMPED
    kl = token_kl(estimator, policy, reference, rollout, clamp=clamp)
    tokens = -advantages * (policy - rollout).exp() + coefficient * kl
    loss = (tokens * MASK).sum() / MASK.sum()
    (gradient,) = torch.autograd.grad(loss, policy)
    return loss.detach(), gradient


@pytest.mark.parametrize("estimator", extension.WEIGHTED)
def test_the_module_weights_the_kl_in_verls_own_loss(verl: tuple[Any, Any], estimator: str) -> None:
    losses, core = verl
    with pytest.raises(NotImplementedError):
        loss_and_gradient(losses, estimator)
    extension.install(losses, core)
    loss, gradient, metrics = loss_and_gradient(losses, estimator)
    want, slope = expected(estimator)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(gradient, slope)
    assert metrics["kl_coef"] == 0.3


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
def test_the_module_leaves_verls_own_estimators_alone(
    verl: tuple[Any, Any], estimator: str
) -> None:
    losses, core = verl
    before = loss_and_gradient(losses, estimator)[:2]
    extension.install(losses, core)
    after = loss_and_gradient(losses, estimator)[:2]
    for one, other, want in zip(before, after, expected(estimator), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, want)


def to_go(core: Any, kind: str, scores: list[float], kl: torch.Tensor, mask: torch.Tensor) -> Any:
    """The registered estimator's advantages, of rewards as apply_kl_penalty makes them."""
    lengths = mask.sum(-1).long()
    rewards = -core.kl_penalty(kl, torch.zeros_like(kl), "kl") * mask
    rewards[range(len(scores)), lengths - 1] += torch.tensor(scores, dtype=kl.dtype)
    index = np.array(["a"] * len(scores), dtype=object)
    return core.registered[f"orch_to_go_{kind}"](
        token_level_rewards=rewards, response_mask=mask, index=index, config=None
    )[0]


def test_k1_to_go_is_the_gradient_of_the_sequences_kl(verl: tuple[Any, Any]) -> None:
    """Over every group of two responses of a policy by table, baseline included: no bias."""
    losses, core = verl
    extension.install(losses, core)
    policy, reference = Table(1), Table(2)
    (exact,) = torch.autograd.grad(sequence_kl(policy, reference), policy.head.weight)
    chances = log_chances(policy.logps()).exp().detach()
    total = torch.zeros_like(exact)
    padded = torch.tensor([r + [END] * (TOKENS - len(r)) for r in ALL.responses])
    mask = torch.tensor([[1] * len(r) + [0] * (TOKENS - len(r)) for r in ALL.responses])
    logp, fixed = (_of_tokens(each, padded) for each in (policy, reference))
    kl = (logp - fixed).detach()
    numbers = range(len(ALL.responses))
    for pair in itertools.product(numbers, numbers):
        rows = list(pair)
        gains = to_go(core, "rloo", [0.0, 0.0], kl[rows], mask[rows])
        weight = chances[pair[0]] * chances[pair[1]]
        loss = -(gains * logp[rows]).sum() / len(rows)
        (part,) = torch.autograd.grad(loss, policy.head.weight, retain_graph=True)
        total += weight * part
    assert float((total - exact).norm() / exact.norm()) < 1e-10


def _of_tokens(policy: Table, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [R, T] of responses."""
    prompted = torch.cat([torch.ones(len(tokens), 1, dtype=torch.long), tokens], 1)
    logps = policy(prompted).logits[:, :-1].log_softmax(-1)
    return logps.gather(-1, tokens[..., None])[..., 0]


@pytest.mark.parametrize("kind", extension.TO_GO)
@pytest.mark.parametrize("beta", [1.0, 0.05])
def test_k1_to_go_is_the_embedded_trainers(verl: tuple[Any, Any], kind: str, beta: float) -> None:
    """With each baseline, also where a response has ended; its further tokens have no advantage."""
    losses, core = verl
    extension.install(losses, core)
    kl = torch.rand(3, 4, dtype=torch.float64)
    rewards = torch.tensor([[1.0, 0.0, 0.5]], dtype=torch.float64)
    for mask in (torch.ones(3, 4, dtype=torch.long), MASK):
        lost = (kl * mask)[None]
        wanted = shaped_advantages(kind, rewards, beta, lost, credit="to_go")[0]  # type: ignore[arg-type]  # its names
        found = beta * to_go(core, kind, (rewards[0] / beta).tolist(), kl, mask)
        scale = beta if kind == "grpo" else 1.0  # whose advantages have no unit
        torch.testing.assert_close(found / scale, wanted * mask, rtol=1e-5, atol=1e-5)


def test_k1_to_go_refuses_rewards_without_a_kl(verl: tuple[Any, Any]) -> None:
    losses, core = verl
    extension.install(losses, core)
    rewards, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(RuntimeError, match="use_kl_in_reward"):
        core.registered["orch_to_go_rloo"](token_level_rewards=rewards, response_mask=mask)
