"""The closed form against a brute-force optimum, and training against the closed form."""

from typing import Any

import numpy as np
import pytest

from backends.micro import train
from backends.micro.theory import optimum, predicted
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Kl,
    Optimizer,
    ReferencePolicy,
    Rollout,
    Settings,
)
from tests.backends.micro.cells import cell_of, embedded, lines, place_at

OPTIMISATION_GAP = 0.06
"""What a mean accuracy may miss the closed form by, beyond its standard error over seeds. Over two
seeds the six configurations below fell short of it by 0.008 to 0.047 (standard errors up to 0.009);
seeds draw other numbers on another processor, and 0.039 was the largest on the first one tried.
The closed form is the optimum of each prompt by itself, and a network shares its parameters among
prompts; what training length does to the miss is in backends/micro/README.md."""
VALUE_NOISE = 0.02
"""KL is measured on half of the problems, along sampled states: by so much may a value look better
than the best there is."""


SHORT = {"max_response_tokens": 7}
K1: dict[str, Any] = {"estimator": "k1", "placement": "reward", "beta": 0.3}
TEACHER = ReferencePolicy(kind="teacher", path="micro:fir")


@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_the_closed_form_is_the_maximum_of_the_objective(beta: float, p: float) -> None:
    """Over all policies that keep pi_ref's proportions among wrong answers, which is optimal."""

    from scipy.optimize import minimize_scalar

    def loss(q: float) -> float:
        kl = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
        return float(-(q - beta * kl))

    found = minimize_scalar(
        loss, bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-10}
    )
    exact = optimum([p], beta)
    assert exact.accuracy == pytest.approx(found.x, abs=1e-4)
    assert exact.accuracy - beta * exact.kl_reverse == pytest.approx(-found.fun, abs=1e-6)


def test_extreme_beta_stays_finite() -> None:
    assert optimum([0.3, 0.0, 1.0], 1e-4).accuracy == pytest.approx(1.0, abs=1e-3)
    assert optimum([0.3], 1e6) == pytest.approx((0.3, 0.0), abs=1e-5)


@pytest.mark.parametrize(
    ("kl", "changes", "holds"),
    [
        ("k1.reward", {}, True),
        ("k1.reward_and_loss", {}, True),
        ("k3.reward_and_loss", {}, True),
        ("k1.loss", {}, False),
        ("k3.reward", {}, False),
        ("k2.reward_and_loss", {}, False),
        ("k1.reward", {"max_staleness_steps": 2}, False),
        ("k1.reward", {"batch": Batch(num_prompts=4, num_minibatches=2)}, False),
        ("k1.reward", {"rollout": Rollout(group_size=5, temperature=1.2, **SHORT)}, False),
        ("k1.reward", {"kl": Kl(**K1, reference=TEACHER)}, False),
        ("k1.reward", {"advantage": "grpo"}, True),
        ("k1.reward", {"advantage": "dr_grpo"}, True),
        ("k3.reward_and_loss", {"advantage": "grpo"}, False),
        ("k1.reward", {"version": "1+kl_reward=outside"}, True),
        ("k1.reward", {"version": "1+kl_reward=to_go"}, True),
        ("k1.reward", {"version": "1+kl_reward=token"}, False),
        ("k1.reward", {"version": "1+kl_reward=outside", "advantage": "dr_grpo"}, False),
        ("k1.reward", {"version": "1+kl_reward=to_go", "advantage": "grpo"}, False),
        ("k1.reward", {"version": "1+kl_clamp=-/10+kl_reward=to_go+decay_of=matrices"}, True),
    ],
)
def test_only_unbiased_on_policy_cells_have_a_prediction(
    kl: str, changes: dict[str, Any], holds: bool
) -> None:
    """In dialects that weigh KL and reward alike."""
    rest, estimator = dict(changes), changes.get("advantage", "rloo")
    backend = BackendRef(name="micro", version=rest.pop("version", "1"))
    rest["advantage"] = Advantage(estimator=estimator)
    settings = embedded(*kl.split("."), 0.3, backend=backend, **rest)
    assert (predicted(settings) is not None) == holds
    assert predicted(embedded(*kl.split("."), 0.0)) is None


def long_cell(estimator: str, placement: str, beta: float) -> Settings:
    return embedded(
        estimator,
        placement,
        beta,
        batch=Batch(num_prompts=16),
        num_train_steps=150,
        optimizer=Optimizer(learning_rate=1e-3, schedule="linear"),
    )


BETAS = (0.3, 1.0)
UNBIASED = ("k1.reward", "k1.reward_and_loss", "k3.reward_and_loss")
BIASED = ("k3.reward", 1.0)
Finals = dict[tuple[str, float], tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def finals(tmp_path_factory: pytest.TempPathFactory) -> Finals:
    """Accuracy and reverse KL after the last train step, a number a seed each."""
    seeds = [(kl, beta, seed) for kl in UNBIASED for beta in BETAS for seed in range(2)]
    last = {}
    for kl, beta, seed in (*seeds, (*BIASED, 0)):
        settings = long_cell(*kl.split("."), beta).model_copy(update={"seed": seed})
        place = place_at(tmp_path_factory.mktemp("it's a cell"))
        assert train.run(cell_of(settings, evaluate_every_steps=150), place).cause != "nan"
        values = lines(place)[-1]["values"]
        numbers = (values["eval/accuracy_in_domain"], values["eval/kl_reverse"])
        last.setdefault((kl, beta), []).append(numbers)
    return {name: tuple(np.array(numbers).T) for name, numbers in last.items()}


@pytest.mark.slow
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kl", UNBIASED)
def test_unbiased_configurations_train_to_the_closed_form(
    kl: str, beta: float, finals: Finals
) -> None:
    settings = long_cell(*kl.split("."), beta)
    accuracies, divergences = finals[kl, beta]
    assert len(accuracies) == 2
    exact = predicted(settings)
    assert exact is not None
    error = np.std(accuracies, ddof=1) / np.sqrt(len(accuracies))
    assert abs(np.mean(accuracies) - exact.accuracy) <= max(2 * error, OPTIMISATION_GAP)
    best = exact.accuracy - beta * exact.kl_reverse
    assert np.all(accuracies - beta * divergences <= best + VALUE_NOISE), "better than the best"


@pytest.mark.slow
def test_a_biased_configuration_does_not(finals: Finals) -> None:
    """k3 in the reward hardly regularises (paper §3.2.2): it overshoots the optimum of beta 1."""
    exact = predicted(long_cell("k1", "reward", 1.0))
    assert exact is not None
    (accuracy,), (divergence,) = finals[BIASED]
    assert accuracy > exact.accuracy + 0.15
    assert accuracy - divergence < exact.accuracy - exact.kl_reverse - 0.3, "and pays for it"
