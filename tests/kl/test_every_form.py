"""Every gradient form of the table passes every check: none is named here, so none can escape.

A form is an estimator of the table in a placement, with a ratio, a policy whose KL is in the
reward, on- or off-policy. A gradient form or a credit that brute.py does not know is an error.
"""

from collections.abc import Iterator
from itertools import product
from typing import get_args

import numpy as np
import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import WIDE
from orchestrator.kl.configuration import PLACEMENTS, KlConfiguration
from orchestrator.kl.estimators import Ratio
from tests.kl.brute import Brute, chain

TWO = (ToyPolicy(0.3, -0.2), ToyPolicy(-0.5, 0.15), ToyPolicy(0.6, -0.05))
WHERE = ("on", "off")


def forms_of(estimator: str) -> Iterator[KlConfiguration]:
    """Yield every configuration that the laboratory takes, without clamps and charges."""
    for placement, ratio, of in product(PLACEMENTS, get_args(Ratio), ("policy", "rollout")):
        if placement == "loss" and of == "rollout":
            continue
        try:
            yield KlConfiguration(estimator, placement, ratio, reward_kl_of=of)
        except LaboratoryError:
            continue


def setting_of(name: str, where: str) -> LabSetting:
    """Return eight tokens for an estimator that keeps some of them, else two."""
    wide = TABLE[name].top is not None
    policy, reference, rollout = (WIDE[0] if where == "on" else WIDE[1]) if wide else TWO
    return LabSetting(policy, reference, 2 if wide else 4, rollout if where == "off" else None)


def faults(configuration: KlConfiguration, setting: LabSetting) -> list[str]:
    """Return what the laboratory's moments differ in from the brute force."""
    known = exact(setting, [configuration])
    model = chain(setting.num_tokens, setting.policy, setting.reference)
    sampler = np.concatenate([np.atleast_1d(each) for each in setting.sampler])
    mean, variance = Brute(model, sampler).moments(configuration)
    size = known.magnitude[0] + 1e-3
    wrong = {
        "enumeration": np.abs(known.mean[0] - mean) / size > 1e-10,
        "variance": np.abs(known.variance[0] - variance) / size**2 > 1e-9,
    }
    return [f"{configuration.label}: {name}" for name, off in wrong.items() if off.any()]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", list(TABLE))
def test_it_is_exact_against_enumeration(name: str, where: str) -> None:
    """To 1e-10 of one sequence's gradient by autograd."""
    chosen = list(forms_of(name))
    assert {each.placement for each in chosen} == set(PLACEMENTS)
    setting = setting_of(name, where)
    assert [fault for each in chosen for fault in faults(each, setting)] == []


@pytest.mark.parametrize("name", list(TABLE))
def test_nothing_pulls_where_the_policy_is_the_reference(name: str) -> None:
    """On-policy, over two tokens: of eight, a truncated sum pulls even there."""
    same = LabSetting(TWO[0], TWO[0], 6)
    known = exact(same, list(forms_of(name)))
    assert np.abs(known.mean).max() < 1e-14
