"""The policy losses of the table reach verl; tests/losses/test_libraries.py holds their numbers."""

import ast
from typing import Any

import pytest

from backends.verl import BACKEND
from backends.verl.overrides import read
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.records import LaunchPlan
from tests.backends.verl import library
from tests.backends.verl.cells import PLACE, cell, overrides

ACTOR = "actor_rollout_ref.actor"
CORE = "trainer/ppo/core_algos.py"
MODES = {
    "ppo": "vanilla",
    "reinforce": "gpg",
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "gmpo": "geo_mean",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
}


def launch(loss: dict[str, Any], **changes: Any) -> LaunchPlan:
    return BACKEND.translate(cell({"loss": loss, **changes}), PLACE)


@pytest.mark.parametrize("version", BACKEND.versions)
@pytest.mark.parametrize("policy", MODES)
def test_a_loss_is_sent_and_read_back(policy: str, version: str) -> None:
    loss = {"policy": policy, "aggregation": "sequence_mean"}
    plan = launch(loss, **{"backend.version": version})
    assert f"{ACTOR}.policy_loss.loss_mode={MODES[policy]}" in plan.argv
    settings = cell({"loss": loss, "backend.version": version}).settings
    assert BACKEND.parse(plan.argv, plan.files).loss == settings.loss
    [entry] = [each for each in plan.ledger if each.field == "loss.policy"]
    assert entry.status == ("approximated" if policy == "gmpo" else "exact")


def test_bounds_are_sent_where_the_loss_reads_them() -> None:
    def bounds(loss: dict[str, Any]) -> list[object]:
        sent = dict(map(read, overrides(launch({"aggregation": "sequence_mean", **loss}))))
        return [sent.get(f"{ACTOR}.clip_ratio_{name}") for name in ("low", "high", "c")]

    assert bounds({"policy": "gspo"}) == [3e-4, 4e-4, None]
    assert bounds({"policy": "sapo"}) == bounds({"policy": "reinforce"}) == [None] * 3
    assert bounds({"policy": "dppo_kl"}) == [0.05, 0.05, 1e9]
    dual = {"low": 0.1, "high": 0.2, "dual": 20.0}
    assert bounds({"policy": "dppo_tv", "clip": dual}) == [0.1, 0.2, 20.0]


REFUSED = [
    ({"policy": "sapo"}, {}, "loss.aggregation=token_mean"),
    ({"policy": "gmpo"}, {}, "loss.aggregation=token_mean"),
    ({"policy": "gspo"}, {"backend.version": "0.8.0"}, "loss.aggregation=token_mean"),
    ({"policy": "gspo", "clip": {"dual": 3.0}}, {}, "loss.clip.dual=3.0"),
    ({"policy": "vespo"}, {}, "loss.policy=vespo"),
    (
        {
            "policy": "gmpo",
            "aggregation": "sequence_mean",
            "correction": {"kind": "tis_token", "most": 2.0},
        },
        {},
        "loss.correction=tis_token",
    ),
]


@pytest.mark.parametrize(("loss", "changes", "sentence"), REFUSED)
def test_what_verl_computes_otherwise_is_refused(
    loss: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UnsupportedSetting, match=sentence):
        launch(loss, **changes)


def test_the_default_adds_nothing_to_a_launch() -> None:
    assert launch({"policy": "ppo"}).argv == launch({}).argv


def test_other_temperatures_are_another_loss() -> None:
    plan = launch({"policy": "sapo", "aggregation": "sequence_mean"})
    BACKEND.parse(plan.argv, plan.files)
    with pytest.raises(SpecError, match="tau_neg"):
        BACKEND.parse((*plan.argv, f"{ACTOR}.tau_neg=2.0"), plan.files)


def test_both_releases_have_the_same_functions() -> None:
    """Those of 0.9.1 are run; 0.8.0 differs in the aggregation of GSPO alone."""

    def functions(version: str) -> dict[str, str]:
        tree = ast.parse((library.root(version) / CORE).read_text(encoding="utf-8"))
        return {
            each.name.removeprefix("compute_policy_loss_"): ast.unparse(each)
            for each in tree.body
            if isinstance(each, ast.FunctionDef) and each.name.startswith("compute_policy_loss_")
        }

    newest, oldest = map(functions, library.VERSIONS)
    fixed = oldest["gspo"].replace("loss_agg_mode='seq-mean-token-mean'", "")
    assert fixed != oldest["gspo"]
    for mode in MODES.values():
        if mode == "gspo":
            assert newest[mode].replace("loss_agg_mode=loss_agg_mode", "") == fixed
        else:
            assert newest[mode] == oldest[mode], mode
