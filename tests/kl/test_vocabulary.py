"""Estimators over the vocabulary and KLs charged to some tokens: exact against enumeration.

The brute force shares nothing with the laboratory but the policies' parameters.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE, names, vocabulary_names
from orchestrator.exact.derivation import FAR, NEAR, NUM_TOKENS
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.montecarlo import monte_carlo
from orchestrator.exact.objectives import WIDE, gradients, wide_policy
from orchestrator.kl.configuration import PLACEMENTS, KlConfiguration
from orchestrator.kl.estimators import Clamp, token_kl, vocabulary_kl, vocabulary_slope

FORMS = [name for name in names() if not TABLE[name].is_of_a_token]
UNBIASED = ("k1_to_go.reward", "k1_to_go.both", "full.both", "rb.both", "rb_k1.both")
TWO = (ToyPolicy(0.3, -0.2), ToyPolicy(-0.5, 0.15), ToyPolicy(0.6, -0.05))


EVERY = [KlConfiguration(name, place) for name in FORMS for place in PLACEMENTS]
WIDE_ON = LabSetting(*WIDE[0][:2], 2)


class Row(NamedTuple):
    """One token of a sequence."""

    w: float
    score: np.ndarray
    kl: float
    """Charged to the reward."""
    slope: np.ndarray
    """Of the loss."""


def chances(policy: Any, count: int) -> np.ndarray:
    if isinstance(policy, ToyPolicy):
        one = 1 / (1 + np.exp(-(policy.a + policy.b * count)))
        return np.array([1 - one, one])
    weight = np.exp([0.0, *(a + b * count for a, b in zip(*policy, strict=True))])
    return weight / weight.sum()


def summed(name: str, q: np.ndarray, p: np.ndarray) -> Any:
    """The estimate of a state, written out."""
    terms = lambda q, p: q * np.log(q / p)  # noqa: E731  (the integrand of each divergence)
    if name.endswith("forward"):
        terms = lambda q, p: p * np.log(p / q)  # noqa: E731
    if name.endswith("js"):
        terms = lambda q, p: (q * np.log(2 * q / (q + p)) + p * np.log(2 * p / (q + p))) / 2  # noqa: E731
    if not name.startswith("top"):
        return terms(q, p).sum()
    best = np.argsort(-(p if name in ("top4_forward", "top4_js") else q).real)[:4]
    rest = np.setdiff1d(np.arange(len(q)), best)
    total = terms(q[best], p[best]).sum()
    if name in ("top4_tail", "top4_js") and len(rest):
        total += terms(q[rest].sum(), p[rest].sum())
    return total


@cache
def slope_of(name: str, setting: LabSetting, count: int) -> np.ndarray:
    """d estimate of a state / d parameters, by a complex step in each parameter."""
    flat = np.concatenate([np.atleast_1d(each) for each in setting.policy])
    p, half, result = chances(setting.reference, count), len(flat) // 2, np.zeros(len(flat))
    for j in range(len(flat)):
        moved = flat + 1e-30j * np.eye(len(flat))[j]
        parts = moved if half == 1 else (tuple(moved[:half]), tuple(moved[half:]))
        result[j] = summed(name, chances(type(setting.policy)(*parts), count), p).imag / 1e-30
    return result


@cache
def row(configuration: KlConfiguration, setting: LabSetting, y: int, count: int) -> Row:
    form = TABLE[configuration.estimator]
    q, p, mu = (
        chances(each, count) for each in (setting.policy, setting.reference, setting.sampler)
    )
    hot = np.eye(len(q))[y][1:] - q[1:]
    score = np.concatenate([hot, hot * count])
    own = mu if configuration.reward_kl_of == "rollout" else q
    x, lag = np.log(q[y] / p[y]), np.log(own[y] / p[y])
    plain = form.in_reward or (form.base if not form.is_of_vocabulary else "")
    values = {"k1": lag, "k2": lag**2 / 2, "k3": np.exp(-lag) - 1 + lag}
    kl = values[plain] if plain else summed(form.name, own, p)
    if form.is_of_vocabulary:
        slope = slope_of(form.name, setting, count)
    else:
        slope = {"k1": 1.0, "k2": x, "k3": 1 - np.exp(-x)}[form.base] * score
    return Row(q[y] / mu[y], score, kl, slope)


def rows(configuration: KlConfiguration, setting: LabSetting, tokens: Any) -> list[Row]:
    counts = np.cumsum([0, *(y % 2 for y in tokens)])
    return [
        row(configuration, setting, y, int(c)) for y, c in zip(tokens, counts[:-1], strict=True)
    ]


PARTS = {"to_go": (1, 1), "later": (0, 1), "token": (1, 0)}


def charges(configuration: KlConfiguration, each: list[Row]) -> np.ndarray:
    """R_t of each token."""
    kl = np.array([row.kl for row in each])
    if configuration.credit == "sequence":
        return np.full(len(kl), kl.sum())
    own, later = PARTS[configuration.credit]
    return own * kl + later * np.array([kl[t + 1 :].sum() for t in range(len(kl))])


def gradient(configuration: KlConfiguration, each: list[Row], base: Any = 0.0) -> np.ndarray:
    total = np.zeros_like(each[0].score)
    if configuration.placement != "loss":
        for row, charge in zip(each, charges(configuration, each) - base, strict=True):
            total += row.w * row.score * charge
    if configuration.placement != "reward":
        total += sum(row.slope for row in each)
    return total


def sequences(setting: LabSetting) -> Iterator[tuple[float, tuple[int, ...]]]:
    for tokens in product(range(len(chances(setting.policy, 0))), repeat=setting.num_tokens):
        chance, count = 1.0, 0
        for y in tokens:
            chance *= chances(setting.sampler, count)[y]
            count += y % 2
        yield chance, tokens


@pytest.mark.parametrize("rollout", [None, TWO[2]], ids=["on", "off"])
@pytest.mark.parametrize("centring", ["leave_one_out", "same_batch_mean"])
def test_a_baseline_of_each_position_equals_brute_force_over_groups(
    rollout: ToyPolicy | None, centring: Any
) -> None:
    """Every group of three sequences of three tokens."""
    setting, n = LabSetting(*TWO[:2], 3, rollout), 3
    every = list(sequences(setting))
    for configuration in (
        KlConfiguration("k1_to_go", "reward", centring=centring, group_size=n),
        KlConfiguration("rb", "reward_and_loss", centring=centring, group_size=n),
        KlConfiguration("rb_k1", "reward_and_loss", centring=centring, group_size=n),
        KlConfiguration("k3", "reward", charge="token", centring=centring, group_size=n),
    ):
        walked = [rows(configuration, setting, y) for _, y in every]
        charged = [charges(configuration, each) for each in walked]
        mean = square = np.zeros(2)
        for group in product(range(len(every)), repeat=n):
            total = np.zeros(2)
            for i in group:
                all_of = sum(charged[k] for k in group)
                others = (all_of - charged[i]) / (n - 1)
                base = all_of / n if centring == "same_batch_mean" else others
                total = total + gradient(configuration, walked[i], base) / n
            chance = np.prod([every[k][0] for k in group])
            mean, square = mean + chance * total, square + chance * total**2
        found = exact(setting, [configuration])
        assert found.mean[0] == pytest.approx(mean, rel=1e-10), configuration.label
        assert found.variance[0] / n == pytest.approx(square - mean**2, rel=1e-9), configuration


@pytest.mark.parametrize("name", vocabulary_names())
def test_slopes_are_torchs_and_those_of_differences(name: str) -> None:
    random = np.random.default_rng(1)
    logits, ref = random.normal(size=(2, 3, 9))
    logp, logp_ref = (x - np.logaddexp.reduce(x, -1, keepdims=True) for x in (logits, ref))
    leaf = torch.tensor(logits, requires_grad=True)
    value = vocabulary_kl(name, leaf.log_softmax(-1), torch.tensor(logp_ref))
    np.testing.assert_allclose(value.detach(), vocabulary_kl(name, logp, logp_ref), rtol=1e-12)
    value.sum().backward()
    of_logp = np.exp(logp) * vocabulary_slope(name, logp, logp_ref)
    closed = of_logp - np.exp(logp) * of_logp.sum(-1, keepdims=True)
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad, closed, rtol=1e-10, atol=1e-12)
    for state, q, p in zip(value.tolist(), np.exp(logp), np.exp(logp_ref), strict=True):
        assert state == pytest.approx(summed("full" if name.startswith("rb") else name, q, p))
    with pytest.raises(TypeError, match="vocabulary_kl"):
        token_kl(name, leaf, leaf)


def test_the_unbiased_forms_are_unbiased_and_only_they() -> None:
    for where in (NEAR, FAR):
        setting = LabSetting(where[0], where[1], NUM_TOKENS)
        truth = gradients(setting)["sequence_reverse_kl"]
        chosen = [each for each in EVERY if each.charge is None and not TABLE[each.estimator].top]
        found = exact(setting, chosen)
        for each, mean in zip(chosen, found.mean, strict=True):
            off = np.linalg.norm(mean - truth) / np.linalg.norm(truth)
            assert (off < 1e-10) == (each.label in UNBIASED), each.label


def test_near_the_reference_the_exact_average_is_quietest() -> None:
    setting = LabSetting(NEAR[0], NEAR[1], NUM_TOKENS)
    noise = {
        each.label: float(np.sqrt(variance.sum()))
        for each, variance in [
            (each, exact(setting, [each]).variance[0])
            for each in (
                KlConfiguration("k1", "reward", centring="leave_one_out", group_size=8),
                KlConfiguration("k1_to_go", "reward", centring="leave_one_out", group_size=8),
                KlConfiguration("rb", "reward_and_loss"),
                KlConfiguration("rb", "reward_and_loss", centring="leave_one_out", group_size=8),
                KlConfiguration("k1", "reward"),
            )
        ]
    }
    ordered = sorted(noise, key=noise.__getitem__)
    assert ordered[0] == "rb.both-leave_one_out(8)"
    assert ordered.index("k1_to_go.reward-leave_one_out(8)") < ordered.index("k1.reward")


def test_invariances() -> None:
    same = LabSetting(TWO[0], TWO[0], 6)
    for name in ("rb", "full", "full_forward", "js", "top4_js"):
        found = exact(same, [KlConfiguration(name, "reward_and_loss")])
        assert np.abs(found.mean).max() < 1e-15, name
        assert found.variance.max() < 1e-28, name
    one = LabSetting(*TWO[:2], 1)
    to_go, k1, rb = exact(
        one,
        [
            KlConfiguration("k1_to_go", "reward"),
            KlConfiguration("k1", "reward"),
            KlConfiguration("rb", "reward_and_loss"),
        ],
    ).variance
    np.testing.assert_allclose(to_go, k1, rtol=1e-14, atol=1e-16)
    assert rb.max() < 1e-15
    token = KlConfiguration("full", "reward", charge="token")
    assert np.abs(exact(WIDE_ON, [token]).mean).max() < 1e-15  # no action is told


def test_jensen_shannon_is_symmetric_and_bounded() -> None:
    near, far = (np.random.default_rng(4).normal(size=(2, 6, 9)).T * scale for scale in (1, 40))
    for logits in (near.T, far.T):
        q, p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
        both = vocabulary_kl("js", q, p), vocabulary_kl("js", p, q)
        np.testing.assert_allclose(*both, rtol=1e-12, atol=1e-15)
        assert (both[0] > 0).all()
        assert (both[0] <= np.log(2) * (1 + 1e-12)).all()
        coarse = vocabulary_kl("top4_js", q, p)
        assert (coarse <= both[0] + 1e-15).all(), "lumping tokens tells policies apart less"


def test_what_is_refused() -> None:
    with pytest.raises(LaboratoryError, match="use ratio 'token'"):
        KlConfiguration("rb", "reward", ratio="sequence")
    with pytest.raises(LaboratoryError, match="leave it out"):
        KlConfiguration("full", "loss", clamp=Clamp(1.0, None))
    with pytest.raises(LaboratoryError, match="as many tokens"):
        LabSetting(ToyPolicy(0.1, 0.1), wide_policy(1.0, 0.0), 3)
    with pytest.raises(LaboratoryError, match="two tokens"):
        monte_carlo(WIDE_ON, EVERY[:1])
