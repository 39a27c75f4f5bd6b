"""Our loss and advantages for Prime-RL, against the estimators of the laboratory."""

import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from backends.prime_rl.manifest import ESTIMATORS

torch = pytest.importorskip("torch")

from backends.prime_rl import hooks  # noqa: E402  (once torch is known to be here)
from orchestrator.kl import estimators  # noqa: E402  (once torch is known to be here)

KINDS = ESTIMATORS
TOKENS, VOCABULARY = 6, 5


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


def test_what_the_manifest_does_not_list_is_no_estimator_of_the_hooks() -> None:
    x = torch.zeros(2)
    with pytest.raises(KeyError):
        hooks.token_kl("k4", x, x, x)


@pytest.mark.parametrize("estimator", KINDS)
def test_a_token_estimate_and_its_gradient_are_the_laboratorys(estimator: Any) -> None:
    given = inputs(1)
    mask = given.loss_mask
    arguments = (
        given.trainer_logprobs[mask],
        given.teacher_logprobs[mask],
        given.inference_logprobs[mask],
    )
    ours, theirs = hooks.token_kl(estimator, *arguments), estimators.token_kl(estimator, *arguments)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient(ours.sum(), given), gradient(theirs.sum(), given))


@pytest.mark.parametrize(
    ("estimator", "placement"),
    list(itertools.product(KINDS, ["reward", "loss", "reward_and_loss"])),
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


def test_k1_in_the_reward_has_the_gradient_of_the_reverse_kl() -> None:
    """Exactly, over all sequences of two tokens of an autoregressive policy."""
    generator = torch.Generator().manual_seed(3)
    logits, reference = (
        torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    logits.requires_grad_()

    def logps(table: Any, first: int, second: int) -> Any:
        return torch.stack(
            [table[VOCABULARY].log_softmax(0)[first], table[first].log_softmax(0)[second]]
        )

    exact, ours = 0.0, torch.zeros_like(logits)
    for first, second in itertools.product(range(VOCABULARY), repeat=2):
        logp, ref = logps(logits, first, second), logps(reference, first, second)
        exact = exact + logp.sum().exp() * (logp - ref).sum()
        given = SimpleNamespace(
            trainer_logprobs=logp,
            inference_logprobs=logp.detach(),
            teacher_logprobs=ref,
            advantages=torch.zeros(2, dtype=torch.float64),
            loss_mask=torch.tensor([True, True]),
        )
        value = hooks.loss(given, estimator="k1", placement="reward", beta=1.0).loss
        [slope] = torch.autograd.grad(value, logits, retain_graph=True)
        ours += logp.sum().exp().detach() * slope
    torch.testing.assert_close(ours, torch.autograd.grad(exact, logits)[0])


@pytest.mark.parametrize("advantage", [0.7, -0.7])
@pytest.mark.parametrize("dual", [None, 3.0])
def test_the_clip_is_ppos(advantage: float, dual: float | None) -> None:
    ratio = torch.tensor([0.1, 0.9, 1.0, 1.1, 1.9, 8.0], dtype=torch.float64)
    found = hooks.surrogate(ratio, torch.full_like(ratio, advantage), 0.2, 0.28, dual)
    expected = [min(r * advantage, min(max(r, 0.8), 1.28) * advantage) for r in ratio.tolist()]
    if dual and advantage < 0:
        expected = [max(x, dual * advantage) for x in expected]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_without_clip_the_ratio_is_free_and_none_needs_no_reference() -> None:
    given = inputs(4)
    given.teacher_logprobs = None
    found = hooks.loss(given)
    ratio = (given.trainer_logprobs - given.inference_logprobs).exp()
    torch.testing.assert_close(found.loss, -(0.7 * ratio[given.loss_mask]).sum())
    assert found.metrics["clip_fraction"] == 0
    assert all(x.dim() == 0 for x in found.metrics.values())


def test_without_reference_the_kl_refuses() -> None:
    given = inputs(5)
    given.teacher_logprobs = None
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


class Anything:
    """Stands for a type, a decorator or a module that only annotates."""

    def __getitem__(self, _: Any) -> Any:
        return Any

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


def test_prime_rls_own_code_runs_our_loss(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compute_loss, with the loss it sets up from our configuration; types are not checked."""

    class Custom(SimpleNamespace):
        pass

    anything = Anything()
    stand_ins = {
        "beartype": {"beartype": anything},
        "jaxtyping": {"Bool": anything, "Float": anything, "Int": anything, "jaxtyped": anything},
        "prime_rl": {},
        "prime_rl.configs": {},
        "prime_rl.utils": {},
        "prime_rl.configs.trainer": {
            "CustomLossConfig": Custom,
            "DefaultLossConfig": int,
            "LossConfig": int,
            "SFTLossConfig": int,
        },
        "prime_rl.utils.utils": {
            "import_object": lambda path: getattr(hooks, path.rpartition(".")[2])
        },
    }
    for name, members in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    path = source / "prime_rl" / "trainer" / "rl" / "loss.py"
    theirs = ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    exec(compile(path.read_text(), path, "exec"), theirs.__dict__)  # noqa: S102  (the library's own file)
    kwargs = {
        "estimator": "k3",
        "placement": "loss",
        "beta": 0.1,
        "clip_low": 0.2,
        "clip_high": 0.2,
    }
    function = theirs.setup_loss_fn(Custom(import_path="orch_prime_rl_hooks.loss", kwargs=kwargs))
    both = [inputs(7), inputs(8)]
    fields = (
        "trainer_logprobs",
        "inference_logprobs",
        "teacher_logprobs",
        "advantages",
        "loss_mask",
    )
    value, metrics = theirs.compute_loss(
        **{name: [getattr(given, name) for given in both] for name in fields},
        loss_fn=function,
        loss_scale=8,
    )
    ours = sum(hooks.loss(given, **kwargs).loss for given in both) / 8
    torch.testing.assert_close(value, ours)
    assert metrics["ref_kl"].shape == (2,)
