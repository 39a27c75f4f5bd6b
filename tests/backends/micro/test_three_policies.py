"""Policy, proximal policy and engine: exact gradients of corrected losses, and a real mismatch."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.micro import batched, huggingface, rollout_rounding
from backends.micro.objective import Experience
from backends.micro.plan import shape
from backends.micro.problem_sets import encode, problems
from backends.micro.rehearsal import scaled
from backends.micro.shipped import POLICIES
from backends.micro.train import mismatch
from orchestrator.exact.surrogates import MISMATCH, Force, PolicyLoss, forces
from orchestrator.kl.estimators import EngineWeight, weights
from orchestrator.kl.library_semantics import PLAIN, Dialect, relevant
from orchestrator.settings import (
    CorrectionKind,
    EngineCorrection,
    EngineFormat,
    Kl,
    Loss,
    Precision,
)
from tests.backends.micro.cells import embedded, lines
from tests.backends.micro.every_sequence import SUMMED, Enumerated

T = 6
WHO = MISMATCH._replace(num_tokens=T)
BOUNDS = {"tis_token": (0.0, 1.05), "tis_sequence": (0.9, 1.1), "geometric": (0.99, 1.02)}
"""Within which some tokens and sequences of WHO lie, and others do not."""


@pytest.mark.parametrize("applies_to", ["policy_loss", "kl", "both"])
@pytest.mark.parametrize("kind", get_args(CorrectionKind))
def test_the_trainers_corrected_loss_is_the_laboratorys(kind: Any, applies_to: Any) -> None:
    least, most = BOUNDS.get(kind, (0.97, 1.08))
    correction = EngineCorrection(kind=kind, least=least, most=most, applies_to=applies_to)
    kl = Kl(estimator="rho_k3", placement="loss", beta=1.0)
    how = PolicyLoss(
        correction="none" if applies_to == "kl" else kind,
        least=least,
        most=most,
        corrects_kl=applies_to == "both",
    )
    exact = forces(WHO, how, "rho_k3", "loss")
    world = Enumerated(T, WHO.engine, WHO.policy, WHO.reference, WHO.proximal)
    loss = SUMMED.but(correction=correction)
    of_kl = world.gradient(kl, loss)
    of_both = world.gradient(kl, loss, of_reward=True)
    if applies_to == "kl":  # the laboratory corrects a KL beside the policy loss only
        beside = PolicyLoss(correction=kind, least=least, most=most, corrects_kl=True)
        assert close(of_kl, world.true_kl, forces(WHO, beside, "rho_k3", "loss").kl)
    else:
        assert close(of_kl, world.true_kl, exact.kl)
    assert close(of_kl - of_both, world.true_gain, exact.reward)


def close(mine: np.ndarray, true: np.ndarray, exact: Force) -> bool:
    """Whether a gradient has this pull along the true one, and this distance from it."""
    pull = mine @ true / (true @ true)
    off = np.linalg.norm(mine - true) / np.linalg.norm(true)
    return bool(abs(pull - exact.pull) < 1e-10 and abs(off - exact.off) < 1e-10)


def test_weights_by_hand_with_masked_tokens() -> None:
    ratio = torch.tensor([[0.5, 4.0, 1.0], [1.0, 1.0, 1.0]]).log()
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    by_kind = {
        "tis_token": [[0.8, 2.0, 1.0], [1.0, 1.0, 1.0]],
        "mis_token": [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]],
        "reject_token": [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]],
        "tis_sequence": [[2.0], [1.0]],
        "mis_sequence": [[2.0], [1.0]],
        "reject_sequence": [[1.0], [1.0]],
        "geometric": [[1.0], [1.0]],  # the mean of two tokens, sqrt 2
    }
    for kind, expected in by_kind.items():
        weight = EngineWeight(kind, 0.8, 2.0)  # type: ignore[arg-type]  # names of kinds
        torch.testing.assert_close(weights(weight, ratio, mask), torch.tensor(expected))
        array = np.asarray(weights(weight, ratio.numpy(), mask.numpy()))
        np.testing.assert_allclose(array, expected, rtol=1e-6)
    far = torch.tensor([[200.0, 200.0]], dtype=torch.float32)
    for kind in get_args(CorrectionKind):
        assert weights(EngineWeight(kind, 0.8, 2.0), far).isfinite().all(), kind


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "mis_token"}, "rejects by bounds"),
        ({"kind": "tis_token", "least": 2.0, "most": 2.0}, "least must be below most"),
    ],
)
def test_impossible_corrections_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EngineCorrection(**values)


def test_a_correction_of_the_kl_needs_one_in_the_loss() -> None:
    correction = EngineCorrection(kind="tis_token", most=2.0, applies_to="kl")
    with pytest.raises(ValueError, match="is about a KL in the loss"):
        embedded("k1", "reward", 0.1, loss=Loss(correction=correction))


@pytest.fixture(scope="module")
def rollouts() -> Callable[[EngineFormat | None], tuple[batched.Sampled, Tensor]]:
    """(format) -> what an engine of that format samples from `elder`, and the trainer's logp."""
    policy = torch.stack([base_policy_of_elder()])
    rng = np.random.default_rng(5)
    prompts, _ = encode("sort", problems(rng, 64, held_out=False))
    asked = torch.from_numpy(prompts)[None]
    draws = torch.from_numpy(rng.random((1, 64, 5, 7), np.float32))

    def sample(rounded: EngineFormat | None) -> tuple[batched.Sampled, Tensor]:
        copy = batched.folded(rollout_rounding.copied(policy, rounded))
        ones = torch.ones(1, 1, 1, 1)
        mine = copy.sample(asked, draws, ones, [1.0], rounded=rounded)
        of = mine.rollouts
        theirs = batched.folded(policy).score(of.prompts, of.tokens, of.mask)
        return mine, theirs.logp

    return sample


def base_policy_of_elder() -> Tensor:
    return huggingface.read(POLICIES / "elder")


def mismatch_of(sampled: batched.Sampled, logp: Tensor) -> dict[str, float]:
    of = sampled.rollouts
    part = torch.zeros(64, 5)
    batch = Experience(
        of.prompts[0],
        of.tokens[0],
        of.mask[0],
        logp[0],
        logp[0],
        part,
        part,
        part,
        None,
        of.logp[0],
    )
    return mismatch(batch, logp[0])


def test_the_coarser_the_engine_the_farther_it_is(rollouts: Callable[..., Any]) -> None:
    kl = {}
    for rounded in (None, "fp16", "bf16", "int8", "fp8"):
        values = mismatch_of(*rollouts(rounded))
        kl[rounded] = values["rollout/mismatch_kl"]
        assert 0 < values["rollout/mismatch_ess"] <= 1 + 1e-6
    assert kl[None] < 1e-9
    assert kl[None] < kl["fp16"] < kl["bf16"] < kl["int8"] < kl["fp8"] < 0.1, kl


def test_only_cells_of_one_engine_train_together() -> None:
    plain, written, rounded = (
        embedded(precision=Precision(rollout=each)) for each in (None, "fp32", "bf16")
    )
    assert shape(plain) == shape(written) != shape(rounded)


def test_training_against_a_rounded_engine(trained: Callable[..., Any]) -> None:
    """The mismatch is recorded; ratios are to the engine, or with a correction to the trainer."""
    precision = Precision(rollout="fp8")
    _, place = trained(embedded("k1", "reward", 0.1, precision=precision))
    values = [line["values"] for line in lines(place)][1:]
    assert all(each["rollout/mismatch_kl"] > 1e-5 for each in values)
    assert any(each["train/ratio_max"] > 1.01 for each in values), "ratios are to the engine"

    correction = EngineCorrection(kind="tis_token", most=2.0)
    _, place = trained(
        embedded("k1", "reward", 0.1, precision=precision, loss=Loss(correction=correction))
    )
    values = [line["values"] for line in lines(place)][1:]
    assert all(abs(each["train/ratio_max"] - 1) < 1e-6 for each in values), "to the trainer's own"
    assert all(each["rollout/mismatch_kl"] > 1e-5 for each in values)


def test_without_a_mismatch_a_correction_changes_no_bit(trained: Callable[..., Any]) -> None:
    correction = EngineCorrection(kind="geometric", least=0.9, most=1.1)
    runs = [
        lines(trained(embedded("rho_k3", "loss", 0.1, loss=loss))[1])
        for loss in (Loss(), Loss(correction=correction))
    ]
    assert runs[0] == runs[1]
    assert not any("rollout/mismatch_kl" in line["values"] for line in runs[0])


def test_a_rehearsed_correction_gets_the_librarys_own_engine() -> None:
    own = Dialect(precision=("bf16", "bf16", "bf16"))
    correction = EngineCorrection(kind="tis_token", most=2.0)
    plain, corrected = embedded(), embedded(loss=Loss(correction=correction))
    assert scaled(plain, own).precision == Precision()
    assert scaled(corrected, own).precision == Precision(rollout="bf16")
    assert scaled(corrected, PLAIN).precision == Precision()
    asked = embedded(precision=Precision(training="bf16", rollout="fp8"))
    assert scaled(asked, own).precision == Precision(rollout="fp8")


def test_a_dialect_chooses_between_two_policies_only_where_there_are_two() -> None:
    other = Dialect(ratio_to="batch_start", kl_reward_policy="batch_start")
    cell = embedded("k1", "reward", 0.1)
    assert relevant(other, cell) == PLAIN
    rounded = cell.but(precision=Precision(rollout="bf16"))
    assert relevant(other, rounded) == other
    correction = EngineCorrection(kind="tis_token", most=2.0)
    assert relevant(other, rounded.but(loss=Loss(correction=correction))) == PLAIN
