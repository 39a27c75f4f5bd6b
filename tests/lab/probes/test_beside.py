"""Ratio levels, controllers of beta and references that move: measured, named, and as cells say."""

from typing import Any

import numpy as np
import pytest

from lab.probes.protocol import probes_of
from lab.probes.surroundings import (
    HORIZON,
    AskedSurrounding,
    followed_kls,
    kl_gradients,
    measured_surroundings,
    ratios_of_levels,
    rollouts,
    targets,
)
from orchestrator.evidence import stored
from orchestrator.evidence.cells import BETA, releases

RELEASES = releases()
LEVELS = ("token", "sequence", "sequence_mean")


def _entries(release: tuple[str, str], subject: str) -> list[dict[str, Any]]:
    measured = stored.read(*release)
    assert measured is not None
    return [each for each in measured["beside"] if each["subject"] == subject]


@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_every_release_has_its_ratio_levels_measured(release: tuple[str, str]) -> None:
    entries = _entries(release, "level")
    own = probes_of(release[0]).ratio_levels(release[1])
    assert [each["name"] for each in entries] == list(own)
    for each in entries:
        assert "error" not in each, each
        assert each["policy"]["level"] in LEVELS
        assert each.get("kl", {}).get("level") != "?"


@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_controllers_and_references_are_as_the_cell_says(release: tuple[str, str]) -> None:
    """What `kl.controller` follows is the mean KL of a batch, and it counts responses."""
    for each in _entries(release, "controller"):
        assert each["counts"] == "responses"
        assert each["follows"] == "the mean over responses of their mean over tokens"
    for each in _entries(release, "reference"):
        assert each["agrees"] is True
    assert len(_entries(release, "controller")) == (release[0] in ("verl", "skyrl", "openrlhf"))
    assert len(_entries(release, "reference")) == (release[0] == "trl")


def test_gspo_has_one_ratio_a_response_and_trl_puts_it_on_the_kl() -> None:
    asked = "grpo --importance_sampling_level sequence --use_bias_correction_kl true"
    (gspo,) = (each for each in _entries(("trl", "1.16.0"), "level") if asked in str(each))
    assert (gspo["policy"]["level"], gspo["kl"]["level"]) == ("sequence_mean", "sequence_mean")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("of_kl", ["none", *LEVELS])
def test_a_level_is_recognised_from_gradients(level: str, of_kl: str) -> None:
    of = rollouts()
    gradients = {
        "level": -ratios_of_levels()[level] * of.mask / of.tokens,
        "level, KL": BETA * kl_gradients("k3")[of_kl] * of.mask / of.tokens,
    }
    answers: dict[Any, Any] = {
        ("level", "x", key): {"gradient": table.tolist()} for key, table in gradients.items()
    }
    (entry,) = measured_surroundings([AskedSurrounding("level", "x", False, "k3")], answers)
    assert (entry["policy"]["level"], entry["kl"]["level"]) == (level, of_kl)
    answers["level", "x", "level"]["gradient"] = (-of.mask / of.tokens).tolist()
    (entry,) = measured_surroundings([AskedSurrounding("level", "x", False, "k3")], answers)
    assert entry["policy"]["level"] == "?", "without any ratio it is none of the levels"


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(("unit", "count"), [("responses", 8), ("tokens", 20)])
def test_a_controller_is_recognised_from_its_betas(which: int, unit: str, count: int) -> None:
    words, current = list(followed_kls().items())[which]
    steps = np.clip(current / np.array(targets()) - 1, -0.2, 0.2)
    betas = BETA * (1 + steps * count / HORIZON)
    answers = {("controller", i): {"beta": float(beta)} for i, beta in enumerate(betas)}
    subject = AskedSurrounding("controller", "x", False)
    (entry,) = measured_surroundings([subject], answers)
    assert (entry["follows"], entry["counts"]) == (words, unit)
    wider = {("controller", i): {"beta": BETA * 1.5} for i in range(len(betas))}
    (entry,) = measured_surroundings([subject], wider)
    assert entry["follows"] == "?"


def test_a_reference_that_moves_otherwise_does_not_agree() -> None:
    subject = AskedSurrounding("reference", "x", True)
    for weights, agrees in (([0, 0.6, 0.6, 0.84], True), ([0.6, 0.84, 0.936, 0.9744], False)):
        (entry,) = measured_surroundings([subject], {("reference",): {"reference": weights}})
        assert entry["agrees"] is agrees
