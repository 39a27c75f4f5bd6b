"""Signs over random models: the stored shares, and every gradient by a second computation."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from docs.tools.ensemble import (
    REGIMES,
    draw,
    facts_of,
    means_and_truth,
    measure,
    of_the_ensemble,
)
from orchestrator.kl import table
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.table import Case, TermRow, advised, judged, term_key
from tests.kl.brute import Brute, chain

SAMPLE = 30


def plain_arrays(model: Any) -> SimpleNamespace:
    """Return a model as arrays."""
    policies = {name: np.array(getattr(model, name)) for name in ("policy", "reference", "rollout")}
    if model.tree is None:
        listed = chain(model.num_tokens, model.policy, model.reference)
        return SimpleNamespace(**vars(listed) | policies)
    return SimpleNamespace(**model.tree._asdict() | policies)


def small(kind: str, *, ends: bool = False, regime: str = "near") -> Any:
    """Return the first random model of a kind that a second computation can list, and not tiny."""
    for index in range(400):
        model = draw(index, regime)
        if (model.kind, model.ends) != (kind, ends):
            continue
        if model.tree is None:
            if 4 <= model.num_tokens <= 8:
                return model
        elif min(model.num_tokens, model.tree.features.shape[1]) >= 3 and len(model.policy) <= 90:
            return model
    raise AssertionError(f"no small {kind}")


def configured(row: TermRow) -> KlConfiguration:
    how: Any = (row.estimator, row.placement, row.ratio)
    return KlConfiguration(*how, reward_kl_of=row.reward_kl_of)


@pytest.mark.parametrize(
    ("kind", "ends", "regime"),
    [
        ("tabular", False, "near"),
        ("tabular", True, "far"),
        ("shared", False, "far"),
        ("shared", True, "near"),
        ("chain", False, "near"),
        ("chain", False, "far"),
    ],
)
def test_every_gradient_and_every_name_hold_in_a_second_computation(
    kind: str, ends: bool, regime: str
) -> None:
    """Of each term, and of the objective that it is said to follow."""
    model, rows = small(kind, ends=ends, regime=regime), of_the_ensemble()
    means, truth = means_and_truth(model, rows)
    arrays = plain_arrays(model)
    at = {on: Brute(arrays, arrays.policy if on else arrays.rollout) for on in (True, False)}
    objectives: dict[Any, Any] = {}
    assert np.allclose(truth, at[True].objective("sequence_reverse_kl"), atol=1e-12, rtol=1e-9)
    for row, mean in zip(rows, means, strict=True):
        second = at[row.on_policy].mean(configured(row))
        scale = max(1e-3, abs(second).max())
        assert abs(second - mean).max() < 1e-9 * scale, term_key(row)
        if row.ratio == "sequence_mean":
            continue
        named = np.zeros_like(second)
        for sign, key in row.terms:
            if (row.on_policy, key) not in objectives:
                objectives[row.on_policy, key] = at[row.on_policy].objective(key)
            named = named + sign * objectives[row.on_policy, key]
        assert abs(second - named).max() < 1e-9 * scale, term_key(row)


def test_a_sample_of_the_ensemble_has_the_stored_shares() -> None:
    sample = measure(SAMPLE)
    assert table.models() >= 500
    assert set(sample["terms"]) == {term_key(row) for row in of_the_ensemble()}
    for row in of_the_ensemble():
        stored, measured = table.signs(row), sample["terms"][term_key(row)]
        assert stored is not None
        for regime in REGIMES:
            assert sum(stored[regime][each] for each in ("attracts", "repels", "neither")) == (
                pytest.approx(1, abs=2e-4)
            )
            for sign in ("attracts", "repels", "neither"):
                share = stored[regime][sign]
                spread = 4 * np.sqrt(share * (1 - share) / SAMPLE) + 2 / SAMPLE
                assert abs(measured[regime][sign] - share) <= spread, (term_key(row), regime)
            bias, sampled = stored[regime]["bias"], measured[regime]["bias"]
            assert (bias == 0) == (sampled == 0) == row.is_unbiased, (term_key(row), regime)
            assert sampled == pytest.approx(bias, rel=1.5), (term_key(row), regime)


@pytest.mark.parametrize("estimator", ["k3", "rb", "k1"])
def test_a_groups_mean_makes_another_objective_of_both_parts(estimator: str) -> None:
    """Every group of two responses written out: a times the reward's part, and the loss's."""
    arrays = plain_arrays(small("shared", ends=True, regime="far"))
    brute = Brute(arrays, arrays.policy)
    in_reward = brute.mean(KlConfiguration(estimator, "reward", reward_kl_of="policy"))
    case = Case(advantage="dr_grpo", group_size=2)
    assert np.allclose(_in_groups_of_two(brute, estimator), case.kept * in_reward, atol=1e-9)
    term = judged(estimator, "reward_and_loss", case)
    rows = [judged(estimator, part, Case()).row for part in ("reward", "loss")]
    assert term.is_mixed == (estimator != "k1")
    if term.is_mixed:
        for at in ("near", "far"):
            halves = [np.array(getattr(row, at)) for row in rows]
            assert np.allclose(getattr(term.row, at), 0.5 * halves[0] + halves[1])


def _in_groups_of_two(brute: Brute, estimator: str) -> Any:
    """Return the mean gradient over groups, the KL in the reward minus its group's mean."""
    base, mask = brute.costs(estimator, brute.logq).numpy(), brute.mask.numpy()
    later = np.cumsum(base[:, ::-1], axis=1)[:, ::-1] - base
    kl = later if estimator == "rb" else base.sum(1, keepdims=True) * mask
    scores, chances = brute.scores(), brute.q.numpy()
    total = np.zeros(len(brute.theta))
    for i, j in product(range(len(mask)), repeat=2):
        middle = (kl[i] + kl[j]) / 2
        chance = chances[i] * chances[j]
        total += chance * ((kl[i] - middle) @ scores[i] + (kl[j] - middle) @ scores[j]) / 2
    return total


def test_advice_off_policy_is_of_the_least_bias_in_another_family_of_models() -> None:
    """Over models that this test draws.

    On the laboratory's one model k1 in the reward is 1.6 % off far away, as two errors cancel.
    """
    off: dict[str, list[float]] = {"rb.reward_and_loss": [], "k1.reward": [], "rho_k3.loss": []}
    off["k2.loss"] = []
    for index in range(400):
        model = draw(index, "far", seed=7)
        if model.tree is None or len(model.policy) > 30 or len(off["k2.loss"]) == 20:
            continue
        arrays = plain_arrays(model)
        at = Brute(arrays, arrays.rollout)
        truth = Brute(arrays, arrays.policy).objective("sequence_reverse_kl")
        for label, biases in off.items():
            how: Any = label.split(".")
            mean = at.mean(KlConfiguration(*how, reward_kl_of="rollout"))
            biases.append(float(np.linalg.norm(mean - truth) / np.linalg.norm(truth)))
    assert len(off["k2.loss"]) == 20
    medians = {label: float(np.median(each)) for label, each in off.items()}
    assert min(medians, key=medians.__getitem__) == "rb.reward_and_loss", medians
    assert medians["rho_k3.loss"] < medians["k2.loss"], medians
    assert medians["k1.reward"] > 0.05, "the laboratory has 1.6 %"
    order = [each.row.label for each, _ in advised(Case(on_policy=False))]
    assert order[0] == "rb.both"
    assert order.index("rho_k3.loss") < order.index("k2.loss")


@pytest.mark.parametrize("regime", REGIMES)
def test_the_facts_beside_the_signs_hold_in_a_second_computation(regime: str) -> None:
    """1 / length, and a third policy's ratio."""
    model = small("shared", ends=True, regime=regime)
    arrays, facts = plain_arrays(model), facts_of(model)
    on, engine = (Brute(arrays, each) for each in (arrays.policy, arrays.rollout))
    scores, mask = on.scores(), arrays.mask
    x = on.taken(on.logq - on.logp).numpy()
    kl, length = x.sum(1), mask.sum(1)

    def cosine(one: Any, other: Any) -> float:
        return float(one @ other / np.sqrt(one @ one) / np.sqrt(other @ other))

    in_reward = on.q.numpy()[:, None] * kl[:, None] * scores.sum(1)
    in_loss = on.q.numpy()[:, None] * ((1 - np.exp(-x))[:, :, None] * scores).sum(1)
    for name, each in (("reward", in_reward), ("loss", in_loss)):
        with_length = (each / length[:, None]).sum(0)
        assert facts[f"length_cosine_{name}"] == pytest.approx(
            cosine(with_length, each.sum(0)), rel=1e-5
        )
    # k3 times its ratio, with the ratio's gradient, is k1's value times the ratio and the score.
    old, logm, logq = (
        engine.taken(each).numpy()
        for each in (engine.words(torch.tensor(model.old)), engine.logm, engine.logq)
    )
    by_ratio = [
        (
            engine.mu.numpy()[:, None, None] * (np.exp(logq - to) * x * mask)[:, :, None] * scores
        ).sum((0, 1))
        for to in (old, logm)
    ]
    off = np.linalg.norm(by_ratio[0] - by_ratio[1]) / np.linalg.norm(by_ratio[1])
    assert facts["old_policy_ratio_off"] == pytest.approx(off, rel=1e-5)
