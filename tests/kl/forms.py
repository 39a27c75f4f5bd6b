"""Every configuration that the laboratory takes."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import get_args

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE
from orchestrator.kl.configuration import PLACEMENTS, KlConfiguration
from orchestrator.kl.estimators import Ratio


def every_form(estimators: Sequence[str] | None = None) -> tuple[KlConfiguration, ...]:
    """Return every configuration that the laboratory takes, without baselines, clamps and charges.

    `estimators`: names of entries; None: all of the table.
    """
    return tuple(form for name in estimators or TABLE for form in _forms_of(name))


def _forms_of(estimator: str) -> Iterator[KlConfiguration]:
    whose = ("policy", "rollout")
    for placement, ratio, of in product(PLACEMENTS, get_args(Ratio), whose):
        if placement == "loss" and of == "rollout":
            continue
        try:
            yield KlConfiguration(estimator, placement, ratio, reward_kl_of=of)
        except LaboratoryError:
            continue
