"""Our loss and advantages for Prime-RL, against the laboratory's estimators; its environment."""

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.prime_rl import environment
from backends.prime_rl.manifest import ESTIMATORS

torch = pytest.importorskip("torch")

from backends.prime_rl import hooks  # noqa: E402  (once torch is known to be here)
from orchestrator.kl import estimators  # noqa: E402  (once torch is known to be here)

TOKENS = 6


def inputs(seed: int, *, on_policy: bool = False) -> SimpleNamespace:
    """One sequence as Prime-RL gives it: two prompt tokens, whose values must not be read."""
    generator = torch.Generator().manual_seed(seed)
    draw = [-torch.rand(TOKENS, generator=generator, dtype=torch.float64) * 3 for _ in range(3)]
    logp, rollout, reference = draw
    mask = torch.tensor([False, False, True, True, True, True])
    rollout = logp.clone() if on_policy else rollout
    reference[~mask] = float("nan")
    return SimpleNamespace(
        trainer_logprobs=logp.requires_grad_(),
        inference_logprobs=rollout,
        loss_mask=mask,
        teacher_logprobs=reference,
        advantages=torch.full((TOKENS,), 0.7, dtype=torch.float64),
    )


def gradient(value: Any, given: SimpleNamespace) -> Any:
    [found] = torch.autograd.grad(value, given.trainer_logprobs, retain_graph=True)
    return found


@pytest.mark.parametrize(
    ("estimator", "placement"),
    list(itertools.product(ESTIMATORS, ["reward", "loss", "reward_and_loss"])),
)
def test_the_loss_is_the_policy_gradient_and_beta_times_the_kl(
    estimator: Any, placement: str
) -> None:
    """Gradient of the whole, written out: in the reward the summed KL lowers the advantage of every
    token and carries none; in the loss it is differentiated."""
    given, beta = inputs(2), 0.3
    mask = given.loss_mask
    logp, rollout = given.trainer_logprobs[mask], given.inference_logprobs[mask]
    kl = estimators.token_kl(estimator, logp, given.teacher_logprobs[mask], rollout)
    advantage = 0.7 - (beta * kl.detach().sum() if placement != "loss" else 0)
    expected = -(advantage * (logp - rollout).exp()).sum()
    if placement != "reward":
        expected = expected + beta * kl.sum()
    found = hooks.loss(given, estimator=estimator, placement=placement, beta=beta)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(gradient(found.loss, given), gradient(expected, given))
    torch.testing.assert_close(found.metrics["ref_kl"], kl.detach().mean())
    assert not any(x.requires_grad for x in found.metrics.values())


@pytest.mark.parametrize("advantage", [0.7, -0.7])
@pytest.mark.parametrize("dual", [None, 3.0])
def test_the_clip_is_ppos(advantage: float, dual: float | None) -> None:
    ratio = torch.tensor([0.1, 0.9, 1.0, 1.1, 1.9, 8.0], dtype=torch.float64)
    found = hooks.surrogate(ratio, torch.full_like(ratio, advantage), 0.2, 0.28, dual)
    expected = [min(r * advantage, min(max(r, 0.8), 1.28) * advantage) for r in ratio.tolist()]
    if dual and advantage < 0:
        expected = [max(x, dual * advantage) for x in expected]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_without_reference_the_kl_refuses_and_none_needs_none() -> None:
    given = inputs(5)
    given.teacher_logprobs = None
    assert hooks.loss(given).metrics["clip_fraction"] == 0
    with pytest.raises(ValueError, match="num_teacher_gpus"):
        hooks.loss(given, estimator="k1", placement="loss", beta=0.1)


def test_a_sequence_without_response_costs_nothing() -> None:
    given = inputs(6)
    given.loss_mask = torch.zeros(TOKENS, dtype=torch.bool)
    found = hooks.loss(given, estimator="k3", placement="reward_and_loss", beta=1.0)
    assert found.loss == 0
    assert all(torch.isfinite(x) for x in found.metrics.values())


def test_advantages() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 3.0]], dtype=torch.float64)
    given = SimpleNamespace(rewards=rewards)
    one_out = [[r - (sum(row) - r) / 3 for r in row] for row in rewards.tolist()]
    torch.testing.assert_close(
        hooks.leave_one_out(given).advantages, torch.tensor(one_out, dtype=torch.float64)
    )
    scaled = hooks.standardised(given).advantages
    torch.testing.assert_close(
        scaled.std(dim=1), torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0
    )
    assert torch.equal(hooks.plain(given).advantages, rewards)


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a plan with three prepared prompts; stand-ins for the libraries."""
    (tmp_path / "data").mkdir()
    (tmp_path / environment.PROMPTS.format("train")).write_text(
        '{"question": "q", "answer": "2"}\n' * 3
    )
    monkeypatch.setattr(environment, "PLAN", tmp_path)
    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(
            load_dataset=lambda kind, data_files, split: Path(data_files).read_text().splitlines(),
        ),
    )
    monkeypatch.setitem(sys.modules, "verifiers", SimpleNamespace())
    return tmp_path


def test_prompts_that_are_not_prepared_are_a_sentence(prompts: Path) -> None:
    (prompts / environment.PROMPTS.format("train")).unlink()
    with pytest.raises(FileNotFoundError, match=r"the prompts of a/b .* orch data prepare"):
        environment.load_environment("a/b", "train", "math_boxed")


def test_another_number_of_prompts_is_refused(prompts: Path) -> None:
    with pytest.raises(ValueError, match="has 3 prompts of a/b, not 7500"):
        environment.load_environment("a/b", "train", "math_boxed", num_prompts=7500)
