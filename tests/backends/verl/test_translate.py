from typing import Any

import pytest

from backends.verl import BACKEND
from backends.verl.overrides import read
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.records import LaunchPlan, LedgerEntry
from orchestrator.settings import Kl
from tests.backends.verl.cells import NASTY, PLACE, cell, overrides, shipped, translated

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def launch(changes: dict[str, Any] | None = None, **more: int) -> LaunchPlan:
    return BACKEND.translate(cell(changes, **more), PLACE)


def values(plan: LaunchPlan) -> dict[str, object]:
    return dict(map(read, overrides(plan)))


def account(plan: LaunchPlan, field: str) -> LedgerEntry:
    return next(entry for entry in plan.ledger if entry.field == field)


def kl(estimator: str, placement: str, beta: float = 0.1) -> dict[str, Any]:
    return {"kl": {"estimator": estimator, "placement": placement, "beta": beta}}


def test_epochs_never_end_training_early() -> None:
    """verl stops at the earlier of steps and epochs: 30 epochs of MATH at 1024 are 210 steps."""
    for each in shipped()[:20]:
        plan = translated(each)
        assert plan is not None
        found = values(plan)
        assert found["trainer.total_epochs"] == found["trainer.total_training_steps"]


def test_the_ledger_has_one_entry_for_each_leaf_and_keys_that_are_sent() -> None:
    for each in shipped()[::7]:
        plan = translated(each)
        assert plan is not None
        leaves = [name for name, _ in flatten(each.settings.model_dump())]
        fields = [*leaves, "cadence.evaluate_every_steps"]
        assert [entry.field for entry in plan.ledger] == fields
        sent = values(plan)
        assert not {entry.key for entry in plan.ledger if entry.key} - sent.keys()


def test_what_does_not_change_the_result_does_not_change_what_is_read_back() -> None:
    each = cell(kl("k1", "reward"), checkpoint_every_steps=7)
    plan = BACKEND.translate(each, NASTY)
    assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == each.id
    assert BACKEND.parse(plan.argv, plan.files).data.name == each.settings.data.name


def test_a_version_not_asked_for_stays_so() -> None:
    for version in (None, "0.9.1", "0.8.0"):
        plan = launch({"backend.version": version})
        assert BACKEND.parse(plan.argv, plan.files).backend.version == version
        assert plan.version == (version or "0.9.1")


def test_an_estimator_that_verl_does_not_know_is_refused() -> None:
    """One that is added to the core alone: no row names it."""
    known = cell(kl("k3", "loss"))
    for placement in ("loss", "reward", "reward_and_loss"):
        term = Kl.model_construct(
            estimator="k4",  # type: ignore[arg-type]  # unknown to the core, on purpose
            placement=placement,  # type: ignore[arg-type]  # one of the literals, from a parameter
            beta=0.1,
            reset_reference_every_steps=None,
        )
        settings = known.settings.model_copy(update={"kl": term})
        with pytest.raises(UnsupportedSetting, match=r"kl\.estimator=k4") as refusal:
            BACKEND.translate(known.model_copy(update={"settings": settings}), PLACE)
        assert refusal.value.field == "kl.estimator"
        assert refusal.value.value == "k4"
        assert {"k1", "k2", "k3", "abs"} <= set(refusal.value.offered)
        assert "k4" not in refusal.value.offered


REJECTIONS = [
    ("reject_token", "token_k1"),
    ("reject_sequence", "seq_sum_k1"),
    ("geometric", "seq_mean_k1"),
]


@pytest.mark.parametrize(("kind", "rejection"), REJECTIONS)
@pytest.mark.parametrize("bounds", [(0.5, 2.5), (0.98, 49.0), (0.9999, 1.0001)])
def test_a_rejection_is_sent_with_inverse_bounds_and_read_back(
    kind: str, rejection: str, bounds: tuple[float, float]
) -> None:
    least, most = bounds
    own = {"kind": kind, "least": least, "most": most}
    for term, part in ((kl("k3", "loss"), "both"), (kl("k1", "reward"), "policy_loss")):
        asked = cell({**term, "loss": {"correction": {**own, "applies_to": part}}})
        plan = BACKEND.translate(asked, PLACE)
        assert values(plan)["algorithm.rollout_correction.rollout_rs"] == rejection
        sent = str(values(plan)["algorithm.rollout_correction.rollout_rs_threshold"])
        assert [float(each) for each in sent.split("_")] == [1 / most, 1 / least]
        back = BACKEND.parse(plan.argv, plan.files)
        assert back.loss.correction == asked.settings.loss.correction
        assert account(plan, "loss.correction.kind").status == "exact"
