"""The policy losses of the table reach TRL; tests/losses/test_libraries.py holds their numbers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.trl import BACKEND
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.records import AttemptPaths, LaunchPlan
from orchestrator.settings import Kl, Loss
from tests.backends.trl.cells import cell

PLACE = AttemptPaths(Path("/r/plan"), Path("/r/attempts/1"), Path("/r/checkpoints"))

NONE = Kl(estimator="none")
LOSSES = {
    "ppo": {},
    "gspo": {},
    "cispo": {},
    "sapo": {"aggregation": "sequence_mean"},
    "vespo": {},
}


def launch(loss: dict[str, Any], kl: Kl = NONE, **more: Any) -> LaunchPlan:
    return BACKEND.translate(cell(kl, loss=Loss.model_validate(loss), **more), PLACE)


def options(plan: LaunchPlan) -> dict[str, Any]:
    return dict(yaml.safe_load(plan.files["grpo.yaml"]))


@pytest.mark.parametrize("version", BACKEND.versions)
@pytest.mark.parametrize("policy", LOSSES)
def test_a_loss_is_sent_and_read_back(policy: str, version: str) -> None:
    loss = {"policy": policy, **LOSSES[policy]}
    plan = launch(loss, version=version)
    assert BACKEND.parse(plan.argv, plan.files).loss == Loss.model_validate(loss)
    [entry] = [each for each in plan.ledger if each.field == "loss.policy"]
    assert entry.status == "exact"


def test_the_bound_of_cispo_is_that_of_the_ratio() -> None:
    sent = options(launch({"policy": "cispo", "clip": {"low": 1.0, "high": 0.3}}))
    assert (sent["loss_type"], sent["epsilon_high"]) == ("cispo", 1.3)
    assert "epsilon" not in sent


def test_gspo_is_the_ratio_of_the_response() -> None:
    """Two spellings of one launch; needs.json keeps them apart."""
    clip = {"low": 3e-4, "high": 4e-4}
    named, spelled = (
        launch({"clip": clip, **words})
        for words in ({"policy": "gspo"}, {"ratio_level": "sequence_mean"})
    )
    assert options(named) == options(spelled)
    assert BACKEND.parse(spelled.argv, spelled.files).loss.ratio_level == "sequence_mean"


def test_numbers_that_the_table_fixes_are_sent() -> None:
    sent = options(launch({"policy": "sapo", "aggregation": "sequence_mean"}))
    assert (sent["sapo_temperature_pos"], sent["sapo_temperature_neg"]) == (1.0, 1.05)
    vespo = options(launch({"policy": "vespo"}))
    names = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
    assert [vespo[f"vespo_{name}"] for name in names] == [2.0, 3.0, 3.0, 2.0]


REFUSED = [
    ({"policy": "sapo"}, NONE, "loss.aggregation=token_mean"),
    ({"policy": "cispo", "aggregation": "sequence_mean"}, NONE, "loss.aggregation=sequence_mean"),
    ({"policy": "cispo", "clip": {"low": 0.2, "high": 0.3}}, NONE, "loss.clip.low=0.2"),
    ({"policy": "dppo_tv"}, NONE, "loss.policy=dppo_tv"),
    ({"policy": "gspo"}, Kl(estimator="rho_k3", placement="loss", beta=0.1), "kl.ratio_level"),
    ({"policy": "cispo"}, Kl(estimator="full", placement="loss", beta=0.1), "loss.policy=cispo"),
]


@pytest.mark.parametrize(("loss", "kl", "sentence"), REFUSED)
def test_what_trl_computes_otherwise_is_refused(
    loss: dict[str, Any], kl: Kl, sentence: str
) -> None:
    with pytest.raises(UnsupportedSetting, match=sentence):
        launch(loss, kl)


def test_rlootrainer_has_one_loss() -> None:
    loss = {"policy": "gspo", "aggregation": "constant", "constant_tokens": 1}
    with pytest.raises(UnsupportedSetting, match=r"loss\.policy=gspo"):
        launch(loss, Kl(estimator="k1", placement="reward", beta=0.1))


def test_a_bound_below_one_is_no_cispo_of_the_table() -> None:
    """TRL takes epsilon_high as the bound itself: 0.28 holds every weight at 0.28."""
    plan = launch({"policy": "cispo"})
    text = plan.files["grpo.yaml"].replace("epsilon_high: 5.0", "epsilon_high: 0.28")
    with pytest.raises(SpecError, match="epsilon_high"):
        BACKEND.parse(plan.argv, {**plan.files, "grpo.yaml": text})
