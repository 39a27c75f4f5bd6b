"""The closed form against a brute-force optimum, and training against the closed form."""

from typing import Any

import numpy as np
import pytest

from backends.micro import train
from backends.micro.theory import has_closed_form, optimum, predicted
from orchestrator.records import Outcome
from orchestrator.settings import Advantage, BackendRef, Batch, Optimizer, Rollout, Settings
from tests.backends.micro.cells import cell_of, embedded, lines, place_at
from tests.backends.micro.test_together import Kept

OPTIMISATION_GAP = 0.06
"""What a mean accuracy may miss the closed form by, beyond its standard error over seeds. Over two
seeds the six configurations below fell short of it by 0.008 to 0.047 (standard errors up to 0.009);
seeds draw other numbers on another processor, and 0.039 was the largest on the first one tried.
The closed form is the optimum of each prompt by itself, and a network shares its parameters among
prompts; what training length does to the miss is in backends/micro/README.md."""
VALUE_NOISE = 0.02
"""KL is measured on half of the problems, along sampled states: by so much may a value look better
than the best there is."""


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


def test_only_unbiased_on_policy_cells_have_a_prediction() -> None:
    for kl in [("k1", "reward"), ("k1", "reward_and_loss"), ("k3", "reward_and_loss")]:
        assert predicted(embedded(*kl, 0.3)) is not None
    for kl in [("k1", "loss"), ("k3", "reward"), ("k3", "loss"), ("k2", "reward_and_loss")]:
        assert predicted(embedded(*kl, 0.3)) is None
    assert predicted(embedded()) is None
    assert predicted(embedded("k1", "reward", 0.0)) is None
    assert predicted(embedded("k1", "reward", 0.3, max_staleness_steps=2)) is None
    assert (
        predicted(embedded("k1", "reward", 0.3, batch=Batch(num_prompts=4, num_minibatches=2)))
        is None
    )
    hot = Rollout(group_size=5, max_response_tokens=7, temperature=1.2)
    assert predicted(embedded("k1", "reward", 0.3, rollout=hot)) is None
    scaled = Advantage(estimator="grpo")
    assert predicted(embedded("k1", "reward", 0.3, advantage=scaled)) is not None
    assert predicted(embedded("k3", "reward_and_loss", 0.3, advantage=scaled)) is None


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
    """Accuracy and reverse KL after the last train step, a number a seed each.

    The cells train together: the numbers of each are those it has alone (test_together.py).
    """
    seeds = [(kl, beta, seed) for kl in UNBIASED for beta in BETAS for seed in range(2)]
    cells = []
    for kl, beta, seed in (*seeds, (*BIASED, 0)):
        settings = long_cell(*kl.split("."), beta).model_copy(update={"seed": seed})
        place = place_at(tmp_path_factory.mktemp("it's a cell"))
        cells.append((cell_of(settings, evaluate_every_steps=150), place))
    watch = Kept()
    train.run_lockstep(cells, watch)
    ends = [end.cause if isinstance(end, Outcome) else end for end in watch.results.values()]
    assert len(ends) == len(cells)
    assert not [end for end in ends if end == "nan" or isinstance(end, Exception)]
    last = {}
    for cell, place in cells:
        kl, values = cell.settings.kl, lines(place)[-1]["values"]
        numbers = (values["eval/accuracy_in_domain"], values["eval/kl_reverse"])
        last.setdefault((f"{kl.estimator}.{kl.placement}", kl.beta), []).append(numbers)
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


@pytest.mark.parametrize(
    ("estimator", "dialect", "holds"),
    [
        ("rloo", "kl_reward=outside", True),
        ("rloo", "kl_reward=to_go", True),
        ("rloo", "kl_reward=token", False),
        ("dr_grpo", "kl_reward=outside", False),
        ("grpo", "kl_reward=to_go", False),
        ("grpo", "", True),
        ("dr_grpo", "", True),
        ("rloo", "kl_clamp=-/10+kl_reward=to_go+decay_of=matrices", True),
    ],
)
def test_a_closed_form_holds_in_dialects_that_weigh_kl_and_reward_alike(
    estimator: Any, dialect: str, holds: bool
) -> None:
    version = f"1+{dialect}" if dialect else "1"
    settings = embedded(
        "k1",
        "reward",
        1.0,
        advantage=Advantage(estimator=estimator),
        backend=BackendRef(name="micro", version=version),
    )
    assert has_closed_form(settings) == holds
