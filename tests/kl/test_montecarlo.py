"""Sampling agrees with the exact laboratory, and a change of either would show."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.montecarlo import monte_carlo, sample_visits
from orchestrator.kl.configuration import FIGURE_1, extended

ON = LabSetting(ToyPolicy(-0.33, -0.082), ToyPolicy(1.17, 0.037), 32)
OFF = LabSetting(ON.policy, ON.reference, 32, ToyPolicy(-0.2, -0.07))


@pytest.mark.parametrize("setting", [ON, OFF], ids=["on", "off"])
def test_bias_variance_and_z(setting: LabSetting) -> None:
    known = exact(setting, extended())
    found = monte_carlo(setting, extended(), seed=1)
    assert np.abs(found.z(known)).max() < 4
    ratio = found.variance * found.sequences / known.variance
    assert 0.7 < ratio.min() <= ratio.max() < 1.4
    truth = known.mean[0]
    assert found.bias(truth)[1] == pytest.approx(np.abs(known.mean[1] - truth), rel=0.05)


def test_visits_have_the_distribution_of_the_model() -> None:
    """All 8 sequences of T = 3, by how often they occur; and each visit is counted once."""
    setting = LabSetting(ToyPolicy(0.4, -0.9), ToyPolicy(0, 0), 3)
    count = 200_000
    visits = sample_visits(setting.policy, 3, count, np.random.default_rng(0))
    assert (visits.sum(1) == 3).all()
    seen = Counter(map(tuple, visits.astype(int)))
    wanted: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for tokens in np.ndindex(2, 2, 2):
        counts, chance, visit = 0, 1.0, [0] * 6
        for y in tokens:
            one = 1 / (1 + np.exp(-(0.4 - 0.9 * counts)))
            chance *= one if y else 1 - one
            visit[3 * y + counts] += 1
            counts += y
        wanted[tuple(visit)] += chance
    assert set(seen) == set(wanted)
    for key, chance in wanted.items():
        error = np.sqrt(chance * (1 - chance) / count)
        assert abs(seen[key] / count - chance) < 4.5 * error


@pytest.mark.parametrize("kind", [{"trials": 1}, {"sequences": 0}])
def test_too_few_samples_are_refused(kind: dict[str, int]) -> None:
    with pytest.raises(LaboratoryError, match="at least"):
        monte_carlo(ON, FIGURE_1, **kind)
