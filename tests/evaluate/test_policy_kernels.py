"""Evaluation by the embedded trainer's kernels against evaluation by torch."""

import json
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from backends.micro import kernels, skills
from orchestrator.errors import CheckpointError
from orchestrator.records import Engine, Sampling

pytestmark = pytest.mark.slow

POLICIES = Path(__file__).parents[2] / "backends" / "micro" / "policies"
ELDER = POLICIES / "elder"


@pytest.fixture(scope="module")
def models() -> ModuleType:
    from orchestrator.evaluate import models

    models.torch.set_num_threads(1)
    return models


def small(models: ModuleType, path: Path, stand_in: SimpleNamespace, *, by_torch: bool) -> Any:
    """Return the policy, computed by torch or by the kernels."""
    theirs = stand_in.policy_kernels
    if by_torch:
        stand_in.policy_kernels = lambda _: None
    policy = models.HarnessPolicy(path, Engine(name="hf"), Sampling()).model
    stand_in.policy_kernels = theirs
    assert (policy.kernels is None) == by_torch
    return policy


def prompts(models: ModuleType, rows: int, repeats: int, length: int = 8) -> Any:
    torch = models.torch
    drawn = torch.randint(
        3, len(skills.VOCABULARY), (rows, length), generator=torch.manual_seed(rows)
    )
    return drawn.repeat_interleave(repeats, 0)


@pytest.mark.parametrize("name", ["elder", "hazel"])
@pytest.mark.parametrize(("rows", "repeats"), [(60, 8), (1, 48), (48, 1), (5, 3), (1, 1)])
def test_samples_are_those_of_torch_by_equal_draws(
    models: ModuleType, stand_in: SimpleNamespace, name: str, rows: int, repeats: int
) -> None:
    """Two batches one after the other: the first leaves the generator where torch leaves it."""
    torch, ids = models.torch, prompts(models, rows, repeats)
    drawn: list[list[Any]] = []
    for by_torch in (True, False):
        policy = small(models, POLICIES / name, stand_in, by_torch=by_torch)
        torch.manual_seed(3)
        drawn.append(
            [
                policy.generate(each, torch.ones_like(each), pad_token_id=0, max_new_tokens=longest)
                for each, longest in ((ids, 7), (ids.flip(0), 20))
            ]
        )
    for theirs, ours in zip(*drawn, strict=True):
        assert torch.equal(theirs, ours)
    if rows > 1:
        assert (drawn[0][0][:, 8:-1] == skills.EOS).any(), "some responses ended before others"


def test_log_probabilities_are_those_of_torch(
    models: ModuleType, stand_in: SimpleNamespace
) -> None:
    """At each token of a response, up to and with its end."""
    ids, responses = prompts(models, 40, 2), prompts(models, 16, 5, length=6)
    responses[::2, 3], responses[1::4, 0] = skills.EOS, skills.EOS
    by_torch, by_kernels = (
        small(models, ELDER, stand_in, by_torch=is_torch).logits_in_responses(ids, responses)
        for is_torch in (True, False)
    )
    is_end = responses == skills.EOS
    within = is_end.cumsum(1) - is_end.long() == 0
    assert 0 < within.sum() < within.numel()
    difference = (by_torch.log_softmax(-1) - by_kernels.log_softmax(-1))[within].abs().max()
    assert difference < 1e-4 < by_torch.std()


def test_the_next_checkpoint_has_its_own_weights(
    models: ModuleType, stand_in: SimpleNamespace
) -> None:
    torch, ids = models.torch, prompts(models, 20, 4)
    policy = small(models, ELDER, stand_in, by_torch=False)
    other = small(models, POLICIES / "hazel", stand_in, by_torch=False)
    responses = prompts(models, 16, 5, length=6)
    before = policy.logits_in_responses(ids, responses)
    policy.load_state_dict(other.state_dict())
    after = policy.logits_in_responses(ids, responses)
    assert torch.equal(after, other.logits_in_responses(ids, responses))
    assert not torch.equal(after, before)


def test_probabilities_that_are_not_numbers_are_told(
    models: ModuleType, stand_in: SimpleNamespace
) -> None:
    """The weights are finite, and their products are not."""
    policy = small(models, ELDER, stand_in, by_torch=False)
    weights = policy.state_dict()
    largest = {name: weights[name] * 1e25 for name in ("model.norm.weight", "lm_head.weight")}
    policy.load_state_dict(weights | largest)
    assert all(each.isfinite().all() for each in policy.parameters())
    ids = prompts(models, 16, 1)
    with pytest.raises(CheckpointError, match="not numbers: its run diverged"):
        policy.generate(ids, models.torch.ones_like(ids), pad_token_id=0, max_new_tokens=7)


@pytest.mark.parametrize("case", ["shorter prompts", "padded", "stopped", "too long"])
def test_other_prompts_are_left_to_torch(
    models: ModuleType, stand_in: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    torch = models.torch
    ids = prompts(models, 16, 1, length=7 if case == "shorter prompts" else 8)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0 if case == "padded" else 1
    options: dict[str, Any] = {"max_new_tokens": 7}
    if case == "stopped":
        options["stopping_criteria"] = [lambda texts, _scores: texts.shape[1] == 10]
    policy = small(models, ELDER, stand_in, by_torch=False)
    if case == "too long":
        monkeypatch.setattr(type(policy.kernels), "longest", 6)
    monkeypatch.setattr(type(policy.kernels), "sample", None)
    torch.manual_seed(1)
    texts = policy.generate(ids, mask, pad_token_id=0, **options)
    assert texts.shape[1] == 10 if case == "stopped" else texts.shape[1] > ids.shape[1]


@pytest.mark.parametrize("case", ["tokenizer", "no compiler", "torch is asked for"])
def test_other_policies_and_machines_have_no_kernels(
    models: ModuleType,
    stand_in: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    case: str,
) -> None:
    path = Path(shutil.copytree(ELDER, tmp_path / "a 'b' é"))
    if case == "tokenizer":
        text = json.loads((path / "tokenizer.json").read_text())
        text["model"]["vocab"] |= {"1": 5, "2": 4}
        (path / "tokenizer.json").write_text(json.dumps(text))
    elif case == "no compiler":
        monkeypatch.setattr(kernels, "_attempt", lambda _: kernels.Unavailable("no C compiler"))
    else:
        monkeypatch.setenv(kernels.ENGINE, "torch")
    policy = models.HarnessPolicy(path, Engine(name="hf"), Sampling()).model
    assert policy.kernels is None
    ids = prompts(models, 16, 1)
    texts = policy.generate(ids, models.torch.ones_like(ids), pad_token_id=0, max_new_tokens=1)
    assert texts.shape == (16, 9)
