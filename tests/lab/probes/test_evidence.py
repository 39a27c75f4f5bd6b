"""The evidence in the repository: as measured here, complete, in agreement with the verdicts."""

from pathlib import Path

import pytest

from backends.trl.options import own_options
from lab.probes import written
from lab.probes.measure import TOLERANCE, measure
from lab.probes.protocol import probes_of
from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.evidence import stored
from orchestrator.evidence.cells import (
    ADVANTAGES,
    AGGREGATIONS,
    accepted,
    releases,
    terms,
)
from orchestrator.kl.verdicts import verdict
from orchestrator.settings import Kl
from tests.lab.probes.source import source_of

RELEASES = releases()


def read(release: tuple[str, str]) -> stored.ReleaseEvidence:
    found = stored.read(*release)
    assert found is not None, f"python -m lab measure {'@'.join(release)}"
    return found


@pytest.mark.thorough  # in a library's environment
@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_the_committed_evidence_is_what_is_measured(release: tuple[str, str]) -> None:
    with source_of(*release) as found:
        told = written.differences(read(release), measure(*release, *found))
    again = f"python -m lab measure {'@'.join(release)}, if {release[0]} has changed"
    assert not told, "\n".join([*told[:20], again])


@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_every_term_is_measured_or_refused(release: tuple[str, str]) -> None:
    """On- and off-policy; what the evidence says is refused, the backend still refuses.

    An estimator added since the measurement is in no evidence: there is nothing to measure of it as
    long as the backend refuses it.
    """
    cells = {(c["estimator"], c["placement"], c["on_policy"]): c for c in read(release)["cells"]}
    assert len(cells) % 6 == 0, "an estimator is measured in every placement, on- and off-policy"
    for kl in terms():
        for on_policy in (True, False):
            found = accepted(*release, kl, on_policy)
            cell = cells.get((kl.estimator, kl.placement, on_policy))
            if cell is None:
                assert isinstance(found, str), f"{kl.label} is accepted and was not measured"
                continue
            # a cell with two faults is refused for either: which comes first is no measurement
            assert ("refused" in cell) == isinstance(found, str), f"{kl.label}: {found}"
            assert "refused" in cell or "objective" in cell, cell


@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_every_measured_objective_is_the_verdict(release: tuple[str, str]) -> None:
    """Off-policy a KL in the reward may be the policy's own; the evidence says whose."""
    measured = [cell for cell in read(release)["cells"] if "objective" in cell]
    for cell in measured:
        kl = Kl(estimator=cell["estimator"], placement=cell["placement"], beta=1.0)
        of = cell.get("reward_kl_of", "rollout")
        ratio = cell.get("ratio", "token")
        says = verdict(kl, on_policy=cell["on_policy"], reward_kl_of=of, ratio=ratio)
        assert cell["terms"] == [list(term) for term in says.terms], kl.label
        assert cell["scale"] == 1
        assert cell["agrees"] is True
        assert cell["deviation"] < TOLERANCE


@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_the_rest_is_there(release: tuple[str, str]) -> None:
    found = read(release)
    assert (found["library"], found["version"]) == release
    assert set(found["reward"]) == set(ADVANTAGES)
    assert set(found["loss"]) == set(AGGREGATIONS)
    assert set(found["silent"]) == {"reward", "loss", "proximal"}
    assert found["sources"]
    assert all(len(each["sha256"]) == 16 for each in found["sources"].values())


def test_differences_name_the_place_and_both_values() -> None:
    """A gradient may differ in its last digits."""
    one = {"cells": [{"objective": "zero", "gradient": [[1.0]]}], "loss": {"token_mean": 1}}
    other = {"cells": [{"objective": "surrogate", "gradient": [[1.0 + 1e-9]]}], "extra": True}
    assert written.differences(one, other) == [
        "cells[0].objective: 'zero' -> 'surrogate'",
        "loss: {'token_mean': 1} -> None",
        "extra: None -> True",
    ]
    assert written.differences({"gradient": [[1.0]]}, {"gradient": [[1.00001]]})
    assert not written.differences({"gradient": [[1.0]]}, {"gradient": [[1.0 + 1e-8]]})


def test_a_torn_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.9.1.json").write_text('{"library": ')
    monkeypatch.setattr(plugins, "evidence_dir", lambda _: tmp_path)
    stored.read.cache_clear()
    try:
        with pytest.raises(EnvironmentFault, match=r"lab measure verl@0\.9\.1"):
            stored.read("verl", "0.9.1")
        assert stored.read("verl", "0.0.1") is None
    finally:
        stored.read.cache_clear()


def test_trls_rloo_is_asked_with_its_own_beta() -> None:
    for version in plugins.load("trl").versions:
        beta = own_options("rloo")[version]["beta"].default
        assert beta == probes_of("trl").RLOO_BETA
