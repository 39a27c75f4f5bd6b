"""GSPO reaches OpenRLHF; tests/losses/test_libraries.py holds its numbers."""

from typing import Any

import pytest

from backends.openrlhf import BACKEND
from backends.openrlhf.flags import FLAT, NEWEST
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import LaunchPlan
from orchestrator.settings import BackendRef, Loss
from tests.backends.openrlhf.cells import PLACE, cell_of, shipped

GSPO = {"policy": "gspo", "aggregation": "sequence_mean"}
TIS = {"kind": "tis_token", "most": 2.0}


def launch(loss: dict[str, Any], version: str = NEWEST) -> LaunchPlan:
    cells = (cell for cell in shipped(NEWEST) if ":" not in cell.settings.model.path)
    settings = next(cells).settings.model_copy(
        update={
            "loss": Loss.model_validate(loss),
            "backend": BackendRef(name="openrlhf", version=version),
        }
    )
    return BACKEND.translate(cell_of(settings), PLACE)


def test_gspo_is_sent_and_read_back() -> None:
    plan = launch(GSPO)
    at = plan.argv.index("--actor.policy_loss_type")
    assert plan.argv[at + 1] == "gspo"
    assert BACKEND.parse(plan.argv, plan.files).loss == Loss.model_validate(GSPO)
    [entry] = [each for each in plan.ledger if each.field == "loss.policy"]
    assert entry.status == "exact"


def test_the_default_is_not_sent() -> None:
    plan = launch({})
    assert "--actor.policy_loss_type" not in plan.argv
    spelled = (*plan.argv, "--actor.policy_loss_type", "ppo")
    assert BACKEND.parse(spelled, plan.files).loss == Loss()


@pytest.mark.parametrize(
    ("loss", "version", "sentence"),
    [
        ({"policy": "gspo"}, NEWEST, r"loss\.aggregation=token_mean"),
        ({**GSPO, "correction": TIS}, NEWEST, r"loss\.correction=tis_token"),
        (GSPO, FLAT, r"loss\.policy=gspo"),
        ({"policy": "cispo"}, NEWEST, r"loss\.policy=cispo"),
    ],
)
def test_what_openrlhf_computes_otherwise_is_refused(
    loss: dict[str, Any], version: str, sentence: str
) -> None:
    with pytest.raises(UnsupportedSetting, match=sentence):
        launch(loss, version)
