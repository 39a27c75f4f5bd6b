"""The evidence in the repository: as measured here, complete, in agreement with the verdicts.

Tests below hold what it says of each library.
"""

from pathlib import Path
from typing import Any

import pytest

from backends.trl.options import own_options
from lab.probes.measure import TOLERANCE, measure
from lab.probes.protocol import probes_of
from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.evidence import stored
from orchestrator.evidence.cells import (
    ADVANTAGES,
    AGGREGATIONS,
    accepted,
    libraries,
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
        told = stored.differences(read(release), measure(*release, *found))
    again = f"python -m lab measure {'@'.join(release)}, if {release[0]} has changed"
    assert not told, "\n".join([*told[:20], again])


def test_every_library_is_among_them() -> None:
    assert set(libraries()) == {"openrlhf", "prime_rl", "skyrl", "trl", "verl"}


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
    one = {"cells": [{"objective": "zero", "gradient": [[1.0]]}], "loss": {"token_mean": 1}}
    other = {"cells": [{"objective": "surrogate", "gradient": [[1.0 + 1e-9]]}], "extra": True}
    assert stored.differences(one, other) == [
        "cells[0].objective: 'zero' -> 'surrogate'",
        "loss: {'token_mean': 1} -> None",
        "extra: None -> True",
    ]


def test_a_gradient_may_differ_in_its_last_digits_only() -> None:
    assert stored.differences({"gradient": [[1.0]]}, {"gradient": [[1.00001]]})
    assert not stored.differences({"gradient": [[1.0]]}, {"gradient": [[1.0 + 1e-8]]})


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


# What is known of each library.


def of_each(library: str) -> list[stored.ReleaseEvidence]:
    return [read(release) for release in RELEASES if release[0] == library]


def named(found: stored.ReleaseEvidence, section: str) -> dict[str, Any]:
    return {each["name"]: each for each in found[section]}


def terms_of(version: str) -> dict[str, tuple[object, object]]:
    """The terms of TRL's own launches, on-policy and on older samples."""
    natives = named(read(("trl", version)), "natives")
    return {
        name: (each["on_policy"]["terms"], each["off_policy"]["terms"])
        for name, each in natives.items()
    }


def test_prime_rls_own_terms_are_of_the_token_alone_and_of_the_rollout_policy() -> None:
    teacher = named(read(("prime_rl", "0.5.0")), "natives")["teacher_tau"]
    assert (teacher["reward"]["within"], teacher["reward"]["others"]) == ("token", "none")
    assert teacher["on_policy"]["objective"] == "token_reverse_kl"
    assert teacher["off_policy"]["terms"] == [[1, "token_reverse_kl@rollout"]]
    for found in of_each("prime_rl"):
        own = named(found, "natives")["kl_tau"]
        assert own["on_policy"]["objective"] == "zero"
        assert own["off_policy"]["towards"] == "rollout"


def test_trls_beta_alone_is_another_objective_on_both_sides_of_1_10() -> None:
    """And RLOO's KL is the same: of the sequence, with one ratio a response."""
    old, new = terms_of("1.9.2"), terms_of("1.16.0")
    assert old["grpo --beta"] == ([[1, "token_forward_kl"]], [[1, "sampled_k3"]])
    assert new["grpo --beta"] == ([[1, "token_reverse_kl"]], [[1, "token_reverse_kl@rollout"]])
    assert old["rloo"] == new["rloo"] == ([[1, "sequence_reverse_kl"]], [[1, "frozen_k1"]])
    assert [name for name in old if old[name] != new[name]] == ["grpo --beta"]


def test_trls_one_ratio_a_response_makes_the_corrected_kl_no_objective() -> None:
    """The weight of a token's KL is then not the token's: GSPO with beta, since 1.10.0."""
    found, level = terms_of("1.16.0"), "grpo --importance_sampling_level sequence"
    assert found[level][0] == [[1, "token_forward_kl"]]
    assert found[f"{level} --use_bias_correction_kl"] == ([], [])


def test_trls_rloo_is_asked_with_its_own_beta() -> None:
    for found in of_each("trl"):
        beta = own_options("rloo")[found["version"]]["beta"].default
        assert beta == probes_of("trl").RLOO_BETA


def test_verls_name_with_a_plus_has_the_gradient_of_k2_and_its_own_value() -> None:
    names = {(n["name"], n["place"]): n for n in read(("verl", "0.9.1"))["names"]}
    for name, value in (("kl+", "k1"), ("abs+", "abs"), ("low_var_kl+", "k3")):
        found = names[name, "loss"]
        assert (found["value"], found["gradient"]) == (value, "k2")
        assert found["straight_through"]
    assert not names["k2+", "loss"]["straight_through"], "k2's own gradient is k2's"


def test_verls_k3_has_no_gradient_where_its_bound_binds() -> None:
    for found in of_each("verl"):
        names = named(found, "names")
        assert names["k3"]["value_bound"] == 10
        assert names["k3"]["flat_below"] == pytest.approx(-2.61)
        assert names["k3"]["flat_above"] == pytest.approx(10.99)
        assert names["k1"]["value_bound"] is names["k2"]["flat_above"] is None
