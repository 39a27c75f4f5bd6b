"""The policy losses of the table reach SkyRL; losses/test_libraries.py holds their numbers."""

from typing import Any

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.manifest import ALGORITHM, ANCHOR, DPPO_TYPE, LOSS_TYPE, SAPO_TAU
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.records import LaunchPlan
from orchestrator.settings import Loss
from tests.backends.skyrl.cells import PLACE, VERSIONS, asynchronous, changed, onpolicy

THEIRS = {
    "ppo": "regular",
    "gspo": "gspo",
    "sapo": "sapo",
    "cispo": "cispo",
    "rollout_is": "rollout_is",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo",
}


def launch(loss: dict[str, Any], version: str | None = None, *, stale: bool = False) -> LaunchPlan:
    cell = asynchronous(version) if stale else onpolicy(version)
    return BACKEND.translate(changed(cell, loss=Loss.model_validate(loss)), PLACE)


def sent(plan: LaunchPlan) -> dict[str, str]:
    return dict(word.split("=", 1) for word in plan.argv if "=" in word)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", THEIRS)
def test_a_loss_is_sent_and_read_back(policy: str, version: str) -> None:
    if version == "0.2.0" and policy.startswith("dppo"):
        with pytest.raises(UnsupportedSetting, match=f"loss.policy={policy}"):
            launch({"policy": policy}, version)
        return
    plan = launch({"policy": policy}, version)
    assert sent(plan)[LOSS_TYPE] == THEIRS[policy]
    assert BACKEND.parse(plan.argv, plan.files).loss == Loss.model_validate({"policy": policy})
    [entry] = [each for each in plan.ledger if each.field == "loss.policy"]
    assert entry.status == "exact"


@pytest.mark.parametrize(
    ("policy", "low", "high", "bounds"),
    [
        ("gspo", "eps_clip_low", "eps_clip_high", ("0.0003", "0.0004")),
        ("cispo", "cispo.cispo_eps_clip_low", "cispo.cispo_eps_clip_high", ("1.0", "4.0")),
        ("dppo_tv", "dppo.delta_low", "dppo.delta_high", ("0.2", "0.2")),
        ("dppo_kl", "dppo.delta_low", "dppo.delta_high", ("0.05", "0.05")),
    ],
)
def test_bounds_are_sent_where_the_loss_reads_them(
    policy: str, low: str, high: str, bounds: tuple[str, str]
) -> None:
    keys = sent(launch({"policy": policy}))
    assert (keys[f"{ALGORITHM}.{low}"], keys[f"{ALGORITHM}.{high}"]) == bounds


@pytest.mark.parametrize("policy", ["cispo", "rollout_is", "dppo_tv", "dppo_kl"])
def test_an_asynchronous_launch_has_the_ratio_to_the_engine(policy: str) -> None:
    plan = launch({"policy": policy}, stale=True)
    assert BACKEND.parse(plan.argv, plan.files).loss == Loss.model_validate({"policy": policy})
    if policy == "cispo":
        assert (sent(plan)[ANCHOR], sent(launch({"policy": policy}))[ANCHOR]) == ("rollout", "old")


TIS = {"kind": "tis_token", "most": 2.0}
REFUSED = [
    ({"policy": "gspo"}, {"stale": True}, "loss.policy=gspo"),
    ({"policy": "sapo"}, {"stale": True}, "loss.policy=sapo"),
    ({"policy": "cispo"}, {"stale": True, "version": "0.3.0"}, "loss.policy=cispo"),
    ({"policy": "gspo", "clip": {"dual": 3.0}}, {}, "loss.clip"),
    ({"policy": "dppo_tv", "correction": TIS}, {}, "loss.correction=tis_token"),
    ({"policy": "gmpo"}, {}, "loss.policy=gmpo"),
    ({"policy": "reinforce"}, {}, "loss.policy=reinforce"),
]


@pytest.mark.parametrize(("loss", "more", "sentence"), REFUSED)
def test_what_skyrl_computes_otherwise_is_refused(
    loss: dict[str, Any], more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UnsupportedSetting, match=sentence):
        launch(loss, **more)


@pytest.mark.parametrize(
    ("policy", "changed_to"),
    [
        ("sapo", f"{list(SAPO_TAU)[1]}=2.0"),
        ("dppo_tv", f"{DPPO_TYPE}=topk_tv"),
        ("cispo", f"{ANCHOR}=rollout"),
        ("gspo", f"{LOSS_TYPE}=kl_cov"),
    ],
)
def test_another_loss_is_none_of_the_table(policy: str, changed_to: str) -> None:
    plan = launch({"policy": policy})
    with pytest.raises(SpecError, match=r"loss\.policy"):
        BACKEND.parse((*plan.argv, changed_to), plan.files)


def test_the_default_is_sent_as_before() -> None:
    assert launch({"policy": "ppo"}).argv == launch({}).argv
