"""The dialects the embedded trainer imitates, against what was measured in the libraries."""

from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.evidence import stored
from orchestrator.evidence.cells import releases
from orchestrator.kl.library_semantics import Dialect

RELEASES = releases()
KL_REWARD = {
    ("response", "leave_one_out"): "inside",
    ("response", "none"): "outside",
    ("to_go", "none"): "to_go",
    ("token", "none"): "token",
}
"""How a KL in the reward enters with rloo, as the matrix and as a dialect say it."""


@pytest.fixture(params=RELEASES, ids="@".join)
def both(request: pytest.FixtureRequest) -> tuple[Dialect, Any]:
    library, version = request.param
    return plugins.load(library).semantics(version).dialect, stored.read(library, version)


def test_where_a_kl_in_the_reward_enters(both: tuple[Dialect, Any]) -> None:
    dialect, found = both
    rloo = found["reward"]["rloo"]
    if "refused" in rloo:
        pytest.skip(f"the release has no KL in the reward: {rloo['refused']} is refused")
    assert dialect.kl_reward == KL_REWARD[rloo["within"], rloo["others"]]


def test_what_a_kl_in_the_loss_is_averaged_over(both: tuple[Dialect, Any]) -> None:
    dialect, found = both
    told = {name: each for name, each in found["loss"].items() if each.get("kl") in found["loss"]}
    if dialect.kl_loss_mean == "as_policy":
        assert all(each["kl"] == each["policy"] for each in told.values())
    else:
        assert {each["kl"] for each in told.values()} == {dialect.kl_loss_mean}


def test_which_estimates_are_bounded_and_by_what(both: tuple[Dialect, Any]) -> None:
    dialect, found = both
    bounds = {
        each["name"]: each["value_bound"]
        for each in found["names"]
        if each["name"] in ("k1", "k2", "k3", "abs")
    }
    for name, bound in bounds.items():
        assert bound == (dialect.kl_clamp[1] if dialect.clamps(name) else None), name


def test_what_bounds_the_weight_of_a_kl_and_the_ratio(both: tuple[Dialect, Any]) -> None:
    dialect, found = both
    weights = {each["weight_bound"] for each in found["names"] if each.get("weight_bound")}
    assert weights == ({dialect.kl_ratio_max} if dialect.kl_ratio_max else set())
    assert dialect.ratio_bound == found["ratio"]["flat_above"]
