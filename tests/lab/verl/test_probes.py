"""The committed evidence on this library, against its own functions run here."""

import pytest

from backends.verl import BACKEND
from tests.lab.probes.measured import measured, same_as_committed

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


@pytest.mark.parametrize("version", BACKEND.versions)
def test_the_committed_evidence_is_what_is_measured(version: str) -> None:
    same_as_committed("verl", version)


def test_a_name_with_a_plus_has_the_gradient_of_k2_and_its_own_value() -> None:
    names = {(n["name"], n["place"]): n for n in measured("verl", "0.9.1")["names"]}
    for name, value in (("kl+", "k1"), ("abs+", "abs"), ("low_var_kl+", "k3")):
        found = names[name, "loss"]
        assert (found["value"], found["gradient"]) == (value, "k2")
        assert found["straight_through"]
    assert not names["k2+", "loss"]["straight_through"], "k2's own gradient is k2's"


def test_k3_has_no_gradient_where_its_bound_binds() -> None:
    for version in BACKEND.versions:
        names = {n["name"]: n for n in measured("verl", version)["names"]}
        assert names["k3"]["value_bound"] == 10
        assert names["k3"]["flat_below"] == pytest.approx(-2.61)
        assert names["k3"]["flat_above"] == pytest.approx(10.99)
        assert names["k1"]["value_bound"] is names["k2"]["flat_above"] is None
