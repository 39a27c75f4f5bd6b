"""The KL that orch ships for TRL: the mathematics of the files of a launch.

In the releases' own loss each term is measured to be the KL that it promises: the evidence of TRL,
tests/lab/trl/test_probes.py.
"""

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.micro.objective import shaped_advantages
from backends.trl import BACKEND
from orchestrator.estimators import entry
from orchestrator.kl.estimators import vocabulary_kl
from orchestrator.library import quiet_kl
from orchestrator.records import AttemptPaths
from orchestrator.settings import Kl, Loss
from tests.backends.shipped import write
from tests.backends.trl.cells import cell

Shipped = tuple[Any, Any]
"""The modules orch_quiet_kl and orch_trl_kl of a launch."""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    """The very files that a launch has, imported from its folder."""
    folder = tmp_path_factory.mktemp("plan")
    kl = Kl(estimator="rb", placement="reward_and_loss", beta=0.1)
    write(BACKEND.translate(cell(kl, loss=Loss()), AttemptPaths(folder, folder, folder)), folder)
    names = ("orch_quiet_kl", "orch_trl_kl")
    sys.path.insert(0, str(folder))
    try:
        yield tuple(importlib.import_module(name) for name in names)  # type: ignore[misc]  # two
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


def test_its_forms_are_the_tables(shipped: Shipped) -> None:
    """Divergence, charge and what the reward is charged, of each entry that it names."""
    quiet = shipped[0]
    assert tuple(quiet.FORMS) == tuple(quiet_kl.ESTIMATORS)
    logps = torch.randn(2, 5, 7, dtype=torch.float64).log_softmax(-1)
    kl = torch.rand(2, 3, 4, dtype=torch.float64)
    for name, form in quiet.FORMS.items():
        of_table = entry(name)
        assert form.charge == of_table.credit
        assert (form.reward == "k1") == (of_table.in_reward == "k1" or name == "k1_to_go")
        assert (
            bool(form.divergence) == of_table.is_of_vocabulary == (name in quiet_kl.OVER_VOCABULARY)
        )
        if form.divergence:
            found = quiet.divergence(form.divergence, *logps)
            assert torch.allclose(found, vocabulary_kl(name, *logps), atol=1e-12)
        charges = quiet.charged(kl.flatten(0, 1), form.charge)
        rewards = torch.rand(2, 3, dtype=torch.float64)
        found = quiet.advantages(rewards.flatten(), charges, 0.3, 3)
        wanted = shaped_advantages("dr_grpo", rewards, 0.3, kl, credit=of_table.credit)
        assert torch.allclose(found.view(2, 3, 4), wanted.expand(2, 3, 4))


@pytest.mark.parametrize("kind", ["reverse", "forward"])
@pytest.mark.parametrize("bias", [True, False])
def test_chunks_change_nothing(kind: str, bias: bool, shipped: Shipped) -> None:
    """Values and gradients of a chunk of one position, of two, and of all."""
    quiet = shipped[0]
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden, weight = drawn(5, 4).requires_grad_(), drawn(7, 4).requires_grad_()
    leaves = [hidden, weight, *([drawn(7).requires_grad_()] if bias else [])]
    heads = (quiet.Head(*leaves[1:]), quiet.Head(drawn(7, 4)))
    reference, tokens = drawn(5, 4), torch.tensor([0, 3, 6, 2, 2])
    of_logp, of_kl = drawn(5), drawn(5)

    def total(states: Any) -> Tensor:
        result: Tensor = (of_logp * states.logp + of_kl * states.kl).sum()
        return result

    plain = quiet.of_logits(
        kind, heads[0].logits(hidden) / 0.8, heads[1].logits(reference) / 0.8, tokens
    )
    wanted = torch.autograd.grad(total(plain), leaves)
    for at_once in (1, 14, 10**6):
        states = quiet.of_hidden(kind, heads, hidden, reference, tokens, 0.8, at_once)
        for mine, theirs in zip(states, plain, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-12)
        found = torch.autograd.grad(total(states), leaves)
        for mine, theirs in zip(found, wanted, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-12)


def test_autocast_computes_products_in_its_format_and_keeps_gradients_in_fp32(
    shipped: Shipped,
) -> None:
    quiet = shipped[0]
    generator = torch.Generator().manual_seed(4)
    hidden, weight, other, fixed = (
        torch.randn(*shape, generator=generator) for shape in ((6, 16), (9, 16), (6, 16), (9, 16))
    )
    heads = (quiet.Head(weight.requires_grad_()), quiet.Head(fixed))
    tokens = torch.arange(6)

    def gradient_of(*, autocast: bool) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            states = quiet.of_hidden("reverse", heads, hidden, other, tokens, 1.0, 18)
        return torch.autograd.grad(states.kl.sum(), weight)[0]

    exact, rounded = gradient_of(autocast=False), gradient_of(autocast=True)
    assert rounded.dtype == torch.float32
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.02


def test_what_follows_a_response_is_charged_to_nobody(shipped: Shipped) -> None:
    """A token after the end of its response is in no KL, whatever the policy thinks of it."""
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    trainer = SimpleNamespace(
        args=SimpleNamespace(per_device_train_batch_size=2),
        accelerator=SimpleNamespace(
            gather=lambda x: x, pad_across_processes=lambda x, dim: x, process_index=0
        ),
        reward_weights=torch.ones(1),
        orch_rewards=torch.tensor([[1.0], [0.0]]),
        beta=0.5,
        num_generations=2,
        scale_rewards="none",
    )
    ids = {f"{part}_{end}": mask for part in ("prompt", "completion") for end in ("ids", "mask")}
    gains = []
    for padding in (0.0, 7.0):
        logps = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.0, -1.0]]) + padding * (1 - mask)
        output = {**ids, "old_per_token_logps": logps, "ref_per_token_logps": -torch.ones(2, 3)}
        form = shipped[0].FORMS["k1_to_go"]
        gains.append(shipped[1]._advantages(trainer, output, form)[1] * mask)
    assert torch.equal(*gains)
    assert gains[0].abs().min(1).values[0] > 0


def test_a_model_that_caps_its_logits_is_refused(shipped: Shipped) -> None:
    class Model(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(3, 5, bias=False)

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.head

        def base_model(self, *, input_ids: Tensor, **_: object) -> SimpleNamespace:
            return SimpleNamespace(last_hidden_state=torch.ones(*input_ids.shape, 3))

        def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
            hidden = self.base_model(input_ids=input_ids).last_hidden_state
            return SimpleNamespace(logits=self.head(hidden))

    class Capped(Model):
        def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
            return SimpleNamespace(logits=5 + super().forward(input_ids).logits.tanh())

    shipped[1]._check(Model())
    with pytest.raises(RuntimeError, match="Capped makes them otherwise"):
        shipped[1]._check(Capped())


def test_k1_to_go_is_refused_in_a_loss(shipped: Shipped) -> None:
    with pytest.raises(ValueError, match="k1_to_go is for the reward"):
        shipped[1].taught(object, "k1_to_go", "loss")
