"""Ratio levels, controllers of beta and references that move: measured, named, and as cells say."""

from typing import Any

import pytest

from lab.probes.protocol import probes_of
from lab.probes.surroundings import moved_as_asked
from orchestrator.evidence import stored
from orchestrator.evidence.cells import releases

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


def test_a_reference_that_moves_otherwise_does_not_agree() -> None:
    assert moved_as_asked([0, 0.6, 0.6, 0.84])["agrees"] is True
    assert moved_as_asked([0.6, 0.84, 0.936, 0.9744])["agrees"] is False
