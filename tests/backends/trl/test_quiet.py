"""The KL that orch ships for TRL: the files of a launch, in TRL's own loss, against enumeration.

The policy is a table over every context of four tokens, of which one ends a response. GRPOTrainer
is the release's own `_compute_loss`, without the rest of the library. What is trained on is every
group of two responses, each with its probability: so the gradient is exact, baseline and all.
"""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.micro.objective import shaped_advantages
from backends.trl import BACKEND
from lab.probes.runner import Sources
from lab.trl.probes import StoodIn, TrlProbes
from orchestrator.estimators import entry
from orchestrator.kl.estimators import vocabulary_kl
from orchestrator.library import quiet_kl
from orchestrator.records import AttemptPaths
from orchestrator.settings import Kl, Loss, Placement
from tests.backends.enumerated import ALL, END, TOKENS, Table, log_chances, sequence_kl
from tests.backends.environments import contract_python
from tests.backends.shipped import write
from tests.backends.trl.cells import cell

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

RELEASES = ("1.16.0", "1.9.2")
BETA, LONGEST = 0.7, 6
OPTIONS = (
    *("--loss_type", "dr_grpo", "--use_bias_correction_kl", "false", "--scale_rewards", "none"),
    *("--max_completion_length", str(LONGEST), "--reward_weights", "[2.0]"),
    *("--per_device_train_batch_size", "2", "--num_generations", "2"),
)
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


def token_kl(policy: Table, reference: Table, estimator: str) -> Tensor:
    """The KL of the next token, over the contexts that the policy visits, held fixed."""
    chances = log_chances(policy.logps()).exp().detach()
    states = vocabulary_kl(estimator, policy.logps(), reference.logps().detach())
    visits = torch.zeros(len(ALL.index), dtype=torch.float64)
    for chance, response in zip(chances, ALL.responses, strict=True):
        for t in range(len(response)):
            visits[ALL.index[tuple(response[:t])]] += chance
    return (visits * states).sum()


# -------------------------------------------------------------------------------- TRL's own trainer


def trainer(version: str, shipped: Shipped, estimator: str, place: str, beta: float = BETA) -> Any:
    """A GRPOTrainer of the release, with what orch ships, on a table: RLOO, divided by LONGEST."""
    (folder,) = contract_python("trl", version).parents[1].glob("lib/python*/site-packages/trl")
    probes = TrlProbes(Sources(folder))
    launch = probes.read(["grpo", *OPTIONS], {})

    class Library(StoodIn):
        """What of GRPOTrainer is needed, around the release's own loss."""

        _compute_loss = probes.methods["grpo"]["_compute_loss"]

        def __init__(self) -> None:
            super().__init__(launch, {"old": None}, 2)
            self.model, self.ref_model = Table(1), Table(2)
            self.beta = beta
            self.args.per_device_train_batch_size = 1
            self.accelerator.autocast = lambda: torch.autocast("cpu", enabled=False)

        def _calculate_rewards(self) -> Tensor:
            return self.task_rewards  # type: ignore[attr-defined, no-any-return]  # the test's

        def _get_per_token_logps_and_entropies(
            self, model: Table, ids: Tensor, attention: Tensor, keep: int, *_: object, **__: object
        ) -> Any:
            logps = model(input_ids=ids).logits[:, -keep - 1 : -1].log_softmax(-1)
            chosen = logps.gather(-1, ids[:, -keep:, None])[..., 0]
            return chosen, torch.zeros_like(chosen), None

        def _generate_and_score_completions(self, output: dict[str, Tensor]) -> dict[str, Tensor]:
            self._calculate_rewards()
            ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
            keep = output["completion_ids"].shape[1]
            with torch.no_grad():
                theirs = self._get_per_token_logps_and_entropies(self.ref_model, ids, ids, keep)[0]
            rows = len(ids)
            return {**output, "ref_per_token_logps": theirs, "advantages": torch.zeros(rows)}

    made: Any = type("GRPOTrainer", (Library,), shipped[1].taught(Library, estimator, place))()
    made.model.train()
    return made


def expected(made: Any) -> Tensor:
    """The gradient of TRL's loss, over every group of two responses. Without a task reward."""
    chances = log_chances(made.model.logps()).exp().detach()
    total = torch.zeros_like(made.model.head.weight)
    numbers = range(len(ALL.responses))
    for first, second in itertools.combinations_with_replacement(numbers, 2):
        weight = float(chances[first] * chances[second]) * (1 if first == second else 2)
        pair = [ALL.responses[first], ALL.responses[second]]
        total += weight * gradient(made, pair, torch.zeros(2, 1, dtype=torch.float64))
    return total


def gradient(made: Any, responses: list[list[int]], rewards: Tensor) -> Tensor:
    mask = torch.tensor([[1.0] * len(r) + [0.0] * (TOKENS - len(r)) for r in responses]).double()
    padded = torch.tensor([r + [END] * (TOKENS - len(r)) for r in responses])
    made.task_rewards = rewards
    prompt = torch.ones(len(responses), 1, dtype=torch.long)
    inputs = made._generate_and_score_completions(
        {
            "prompt_ids": prompt,
            "prompt_mask": prompt,
            "completion_ids": padded,
            "completion_mask": mask,
            "num_items_in_batch": mask.sum(),
        }
    )
    made.model.zero_grad()
    made._compute_loss(made.model, inputs).backward()
    result: Tensor = made.model.head.weight.grad
    return torch.zeros_like(made.model.head.weight) if result is None else result.clone()


PROMISES: dict[tuple[str, Placement], Callable[[Table, Table], Tensor]] = {
    ("rb", "reward_and_loss"): sequence_kl,
    ("full", "reward_and_loss"): sequence_kl,
    ("rb_k1", "reward_and_loss"): sequence_kl,
    ("k1_to_go", "reward"): sequence_kl,
    ("full", "loss"): lambda p, r: token_kl(p, r, "full"),
    ("full_forward", "loss"): lambda p, r: token_kl(p, r, "full_forward"),
}
"""Whose gradient the terms have, exactly."""


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(("estimator", "place"), PROMISES)
def test_the_gradient_is_that_of_the_promised_kl(
    version: str, estimator: str, place: Placement, shipped: Shipped
) -> None:
    """In TRL's own loss, with its leave-one-out baseline: bias 0, to rounding."""
    made = trainer(version, shipped, estimator, place)
    wanted = PROMISES[estimator, place](made.model, made.ref_model)
    (exact,) = torch.autograd.grad(wanted, made.model.head.weight)
    found = expected(made) * LONGEST / BETA
    assert float((found - exact).norm() / exact.norm()) < 1e-10
    (of_sequences,) = torch.autograd.grad(
        sequence_kl(made.model, made.ref_model), made.model.head.weight
    )
    if place == "loss":
        assert float((found - of_sequences).norm() / of_sequences.norm()) > 0.05, "it could fail"


# ------------------------------------------------------------------------------- the shared module


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


def test_a_model_that_caps_its_logits_is_refused(shipped: Shipped) -> None:
    class Capped(Table):
        def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
            return SimpleNamespace(logits=super().forward(input_ids).logits.tanh())

    with pytest.raises(RuntimeError, match="Capped makes them otherwise"):
        shipped[1]._check(Capped(0))


def test_k1_to_go_is_refused_in_a_loss(shipped: Shipped) -> None:
    with pytest.raises(ValueError, match="k1_to_go is for the reward"):
        shipped[1].taught(object, "k1_to_go", "loss")
