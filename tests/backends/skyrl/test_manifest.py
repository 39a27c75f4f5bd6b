"""The table of fields: nothing outside of it is launched, and each release has what it sends."""

from typing import Any

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.manifest import CUTS, FIXED, MANIFEST, NO_CLIP, VERSIONS, tables
from backends.skyrl.parse import parse
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.evidence import stored
from orchestrator.settings import Clip, EngineCorrection, Kl, Lora
from tests.backends.skyrl.cells import PLACE, asynchronous, changed, onpolicy


def test_the_table_has_no_fault() -> None:
    loss = onpolicy().settings.loss.but(correction=EngineCorrection(kind="tis_token", most=2.0))
    corrected = changed(onpolicy(), loss=loss)
    adapted = changed(onpolicy(), lora=Lora(rank=8, alpha=16))
    assert not list(MANIFEST.faults(each.settings for each in (onpolicy(), corrected, adapted)))


@pytest.mark.parametrize(
    ("correction", "field", "nearest"),
    [
        ({"kind": "tis_token", "least": 0.5, "most": 2.0}, "least", "backend=openrlhf"),
        ({"kind": "tis_token"}, "most", "set loss.correction.most"),
        ({"kind": "geometric", "least": 0.5}, "most", "set loss.correction.most"),
        ({"kind": "mis_token", "most": 2.0, "applies_to": "both"}, "applies_to", "policy_loss"),
    ],
)
def test_a_correction_that_skyrl_has_not_is_refused(
    correction: dict[str, Any], field: str, nearest: str
) -> None:
    cell = onpolicy()
    kl = cell.settings.kl.but(placement="loss", estimator="k3")
    loss = cell.settings.loss.but(correction=EngineCorrection(**correction))
    with pytest.raises(UnsupportedSetting) as caught:
        BACKEND.translate(changed(cell, loss=loss, kl=kl), PLACE)
    assert caught.value.field == f"loss.correction.{field}"
    assert nearest in caught.value.advice


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stale_cell_has_no_correction(version: str) -> None:
    cell = asynchronous(version)
    loss = cell.settings.loss.but(correction=EngineCorrection(kind="tis_token", most=2.0))
    with pytest.raises(UnsupportedSetting) as caught:
        BACKEND.translate(changed(cell, loss=loss), PLACE)
    assert (caught.value.field, caught.value.value) == ("loss.correction", "tis_token")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_accepted_was_measured_to_be_the_fields_weight(version: str) -> None:
    """Every correction with an upper bound: the library's own loss has the cell's weight."""
    measured = stored.read("skyrl", version)
    assert measured is not None
    cells = measured["corrections"]["cells"]
    assert {each["kind"] for each in cells if each.get("agrees")} == set(CUTS)
    for each in cells:
        assert each.get("agrees") or each["refused"] == "loss.correction.least", each


@pytest.mark.parametrize("version", VERSIONS)
def test_what_every_launch_says_is_of_the_release(version: str) -> None:
    table = tables()[version]
    assert not [why for key, value in FIXED.items() if (why := table.objection(key, value))]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("placement", ["reward", "loss", "reward_and_loss"])
def test_an_estimator_that_no_row_names_is_refused(version: str, placement: str) -> None:
    """An allow-list: an estimator that orch gets later is not sent to a library by accident."""
    cell = onpolicy(version)
    unknown = Kl.model_construct(
        estimator="k4", placement=placement, beta=0.1, reset_reference_every_steps=None
    )
    settings = cell.settings.model_copy(update={"kl": unknown})
    with pytest.raises(UnsupportedSetting) as caught:
        BACKEND.translate(cell.model_copy(update={"settings": settings}), PLACE)
    assert (caught.value.field, caught.value.value) == ("kl.estimator", "k4")
    assert caught.value.offered == ("k1", "k2", "k3", "abs")


def test_the_clip_that_stands_for_none_is_refused() -> None:
    """It was launched as `exact` and read back as no clip at all."""
    cell = onpolicy()
    clip = Clip(low=NO_CLIP[0], high=NO_CLIP[1])
    loss = cell.settings.loss.model_copy(update={"clip": clip})
    with pytest.raises(UnsupportedSetting, match=r"set loss\.clip=null"):
        BACKEND.translate(changed(cell, loss=loss), PLACE)


def test_a_reference_policy_that_is_renewed_is_no_cell() -> None:
    """Reading a launch passed over the key."""
    plan = BACKEND.translate(onpolicy(), PLACE)
    with pytest.raises(SpecError, match=r"kl\.reset_reference_every_steps for 'True'"):
        parse([*plan.argv, "trainer.update_ref_every_epoch=true"], plan.files)


def test_values_of_orch_s_own_are_never_called_exact() -> None:
    for cell in (onpolicy(), asynchronous()):
        for entry in BACKEND.translate(cell, PLACE).ledger:
            assert "orch." not in entry.key or entry.status != "exact", entry


def test_what_two_releases_carry_differently() -> None:
    def changes(old: str, new: str) -> set[str]:
        return {field for field, _, _ in MANIFEST.differences(old, new)}

    assert changes("0.2.0", "0.3.0") >= {"num_train_steps", "max_staleness_steps"}
    assert changes("0.3.0", "0.4.0") == {"backend.version", "loss.policy"}
