"""What the ledger says of the mathematics, held against the library's own functions."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from backends.openrlhf.flags import FLAT, NEWEST, VERSIONS
from backends.openrlhf.manifest import NO_CLIP, UNBIASED
from backends.openrlhf.translate import REWARD_CLIP
from orchestrator.kl.estimators import Clamp, token_kl
from tests.backends.openrlhf.cells import environment

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
FAR = [-30.0, -11.0, -2.0, -0.3, 0.0, 0.4, 3.0, 25.0]
"""log pi_theta - log pi_ref of some tokens, in and out of every clamp."""
NEAR = FAR[2:7]


def library(version: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """openrlhf.models.utils and .loss of that release, in this process, with our torch."""
    python = environment(version)
    (models,) = python.parents[1].glob("lib/python*/site-packages/openrlhf/models")
    package = ModuleType("openrlhf_models")
    package.__path__ = [str(models)]
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    return cast(
        "tuple[ModuleType, ModuleType]",
        tuple(_load(package.__name__, models, n, monkeypatch) for n in ("utils", "loss")),
    )


def _load(package: str, models: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{package}.{name}", models / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def value_and_slope(estimate: Callable[[Any], Any], x: list[float]) -> tuple[Any, Any]:
    logp = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    value = estimate(logp)
    value.sum().backward()
    return value.detach(), logp.grad


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_plain_estimators_are_ours_within_the_clamp(
    version: str, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils, _ = library(version, monkeypatch)
    ref = torch.zeros(len(FAR))
    theirs = value_and_slope(
        lambda logp: utils.compute_approx_kl(logp, ref, kl_estimator=estimator), FAR
    )
    # Both overflow far below: the newest bounds k3 before it exponentiates, so there it is finite.
    ours = value_and_slope(
        lambda logp: token_kl(estimator, logp, ref, clamp=Clamp(value=10.0)), FAR
    )
    assert torch.allclose(theirs[0], ours[0], atol=1e-5)
    assert theirs[0].abs().max() <= 10
    assert torch.allclose(theirs[1], ours[1], atol=1e-5)
    outside = theirs[0].abs() == 10
    assert outside.any()
    assert (theirs[1][outside] == 0).all(), "no gradient where the clamp binds"


@pytest.mark.parametrize("estimator", sorted(UNBIASED))
def test_the_weighted_gradient_is_that_of_the_estimators_we_give_it_for(
    estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils, _ = library(NEWEST, monkeypatch)
    ref = torch.zeros(len(NEAR))
    straight = estimator.endswith("+")
    # In `x+` cells the old log-probabilities are the policy's own: one minibatch a batch.
    old = torch.tensor(NEAR if straight else [-1.0, 0.5, 0.1, 0.0, 2.5])
    theirs = value_and_slope(
        lambda logp: utils.compute_approx_kl(
            logp, ref, log_probs_old=old, kl_estimator=UNBIASED[estimator], unbiased_gradient=True
        ),
        NEAR,
    )
    ours = value_and_slope(lambda logp: token_kl(estimator, logp, ref, old), NEAR)
    assert torch.allclose(theirs[1], ours[1], atol=1e-5)
    assert torch.allclose(theirs[0], ours[0], atol=1e-5) == straight, "the value has no ratio"


def test_the_ratio_is_held_at_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    utils, _ = library(NEWEST, monkeypatch)
    ref, old = torch.zeros(1), torch.tensor([-2.0])
    _, slope = value_and_slope(
        lambda logp: utils.compute_approx_kl(
            logp, ref, log_probs_old=old, kl_estimator="k2", unbiased_gradient=True
        ),
        [1.0],
    )
    assert slope.item() == pytest.approx(10.0)  # exp(3) = 20


@pytest.mark.parametrize("version", VERSIONS)
def test_an_infinite_clip_is_no_clip(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loss = library(version, monkeypatch)
    advantages = torch.tensor([[1.0, -1.0, 2.0, -3.0]])
    old, mask = torch.zeros(1, 4), torch.ones(1, 4)
    ratio = torch.tensor([[2.0, 3.0, 0.1, 0.5]])
    unclipped = loss.PolicyLoss(clip_eps_low=NO_CLIP[0], clip_eps_high=NO_CLIP[1])
    told = unclipped(ratio.log(), old, advantages, action_mask=mask)[0]
    assert told.item() == pytest.approx(-(ratio * advantages).mean().item())
    clipped = loss.PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.2)
    assert clipped(ratio.log(), old, advantages, action_mask=mask)[0] != told


def test_kl_is_subtracted_from_the_reward_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task reward stands at the last token, and each token carries its own penalty."""
    for version in VERSIONS:
        utils, _ = library(version, monkeypatch)
        kl = torch.tensor([[0.5, -0.25, 1.0]])
        mask = torch.tensor([[1, 1, 0]])
        told = utils.compute_reward(torch.tensor([2.0]), 0.1, kl, action_mask=mask)
        assert torch.allclose(told * mask, torch.tensor([[-0.05, 2.025, 0.0]]))


def test_token_mean_divides_by_the_minibatch_only_in_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two micro-batches of one sequence each, of 1 and 3 tokens. Every token should weigh 1/4."""
    old = [torch.zeros(1, 1), torch.zeros(1, 3)]
    gains = [torch.full((1, 1), 4.0), torch.full((1, 3), 1.0)]
    _, newest = library(NEWEST, monkeypatch)
    global_mean = newest.PolicyLoss()
    parts = [
        global_mean(
            o, o, a, action_mask=torch.ones_like(o), batch_num_tokens=4 / 2, global_batch_size=2 / 2
        )[0]
        for o, a in zip(old, gains, strict=True)
    ]
    assert torch.stack(parts).mean().item() == pytest.approx(-(4 + 1 + 1 + 1) / 4)
    _, flat = library(FLAT, monkeypatch)
    parts = [
        flat.PolicyLoss()(o, o, a, action_mask=torch.ones_like(o))[0]
        for o, a in zip(old, gains, strict=True)
    ]
    assert torch.stack(parts).mean().item() == pytest.approx(-(4 + 1) / 2), "a mean of means"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("estimator", ["rloo", "group_norm", "dr_grpo"])
def test_advantages_are_a_reward_to_go_of_the_kl_outside_the_baseline(
    version: str, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils, _ = library(version, monkeypatch)
    rewards, beta = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), 0.1
    kl = torch.arange(12.0).reshape(6, 2) / 7
    experience = SimpleNamespace(
        rewards=rewards,
        kl=kl.clone(),
        index=list(range(6)),
        info={},
        action_mask=torch.ones(6, 2),
        response_length=torch.full((6,), 2.0),
    )
    maker = experience_maker(version, utils, estimator, beta, monkeypatch)
    (done,) = maker.compute_advantages_and_returns([experience])
    groups = rewards.reshape(2, 3)
    mean, std = groups.mean(-1, keepdim=True), groups.std(-1, keepdim=True)
    centred = {
        "rloo": (groups - mean) * 3 / 2,
        "dr_grpo": groups - mean,
        "group_norm": (groups - mean) / (std + 1e-9),
    }[estimator].reshape(6, 1)
    to_go = kl.flip(-1).cumsum(-1).flip(-1)
    assert torch.allclose(done.advantages, centred - beta * to_go, atol=1e-5)


def experience_maker(
    version: str, utils: ModuleType, estimator: str, beta: float, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """RemoteExperienceMaker of that release, groups of three, nothing of Ray."""
    (root,) = environment(version).parents[1].glob("lib/python*/site-packages/openrlhf/trainer")
    for name in (
        "ray",
        "openrlhf",
        "openrlhf.models",
        "openrlhf.trainer",
        "openrlhf.utils",
        "openrlhf.trainer.ppo_utils",
        "openrlhf.trainer.ppo_utils.experience",
        "openrlhf.trainer.ppo_utils.length_penalty",
        "openrlhf.trainer.ray",
        "openrlhf.trainer.ray.launcher",
        "openrlhf.utils.logging_utils",
        "openrlhf.utils.seqlen_balancing",
    ):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setitem(sys.modules, "openrlhf.models.utils", utils)
    module = _load("openrlhf_maker", root / "ppo_utils", "experience_maker", monkeypatch)
    args = MagicMock()
    args.advantage_estimator = args.algo.advantage.estimator = estimator
    args.n_samples_per_prompt = args.rollout.n_samples_per_prompt = 3
    args.gamma = args.algo.advantage.gamma = 1.0
    args.reward_clip_range = args.reward.clip_range = REWARD_CLIP
    return module.RemoteExperienceMaker(
        None, None, None, None, SimpleNamespace(value=beta), SimpleNamespace(args=args), None
    )
