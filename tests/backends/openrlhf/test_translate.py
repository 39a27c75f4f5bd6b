"""Translation: golden flags, the ledger, what is refused and with which advice."""

from typing import Any

import pytest

from backends.openrlhf import BACKEND
from backends.openrlhf.flags import NEWEST
from orchestrator.errors import SpecError
from orchestrator.identity import fingerprint
from orchestrator.records import LaunchPlan, LedgerEntry
from orchestrator.settings import EngineCorrection
from tests.backends.openrlhf.cells import PLACE, base, cell_of


def plan_of(
    version: str | None = NEWEST, cell: dict[str, Any] | None = None, **changes: Any
) -> LaunchPlan:
    settings = base(backend={"version": version}, **changes)
    return BACKEND.translate(cell_of(settings, **(cell or {})), PLACE)


def flags(plan: LaunchPlan) -> dict[str, tuple[str, ...]]:
    """--name -> the words after it."""
    given: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in plan.argv[3:]:
        if word.startswith("--"):
            name = word
            given[name] = ()
        else:
            given[name] += (word,)
    return given


def entry(plan: LaunchPlan, field: str) -> LedgerEntry:
    return next(e for e in plan.ledger if e.field == field)


IS = "algo.advantage.is_correction"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["_level", "seq"], "seq"),
        (["_level", "token", f"--{IS}_gating", "tv"], "tv"),
        (["_threshold", "2.0"], f"ignored without --{IS}_level"),
        (["_level", "off", f"--{IS}_mode", "clip"], f"ignored without --{IS}_level"),
    ],
)
def test_a_strangers_correction_that_no_cell_has_is_a_fault(more: list[str], sentence: str) -> None:
    plan = plan_of()
    with pytest.raises(SpecError, match=sentence):
        BACKEND.parse([*plan.argv, f"--{IS}{more[0]}", *more[1:]], plan.files)


def test_a_single_threshold_is_the_upper_bound() -> None:
    plan = plan_of()
    more = [f"--{IS}_level", "token", f"--{IS}_mode", "clip", f"--{IS}_threshold", "2.0"]
    correction = BACKEND.parse([*plan.argv, *more], plan.files).loss.correction
    assert correction == EngineCorrection(kind="tis_token", most=2.0)


def test_cells_that_share_their_flags_stay_apart() -> None:
    """On policy with one minibatch, five names have one gradient and two launches."""
    names = ("k2+", "sg_rho_k2", "k3+", "rho_k3")
    plans = {n: plan_of(kl={"estimator": n, "placement": "loss"}) for n in names}
    assert plans["k2+"].argv == plans["sg_rho_k2"].argv
    assert {BACKEND.parse(p.argv, p.files).kl.estimator for p in plans.values()} == set(names)


def test_a_version_left_open_is_the_newest_and_another_cell() -> None:
    open_, named = plan_of(None), plan_of(NEWEST)
    assert open_.version == NEWEST
    assert open_.argv == named.argv
    assert open_.cell_id != named.cell_id
    assert fingerprint(BACKEND.parse(open_.argv, open_.files)) == open_.cell_id


class TestParse:
    def test_every_fault_at_once(self) -> None:
        plan = plan_of()
        argv = (*plan.argv, "--algo.kl.estimater", "k1", "--rollout.batch_size", "many")
        with pytest.raises(SpecError) as caught:
            BACKEND.parse(argv, {"needs.json": "{}"})
        told = str(caught.value)
        assert "did you mean '--algo.kl.estimator'" in told
        assert "--rollout.batch_size takes" in told
        assert "needs.json" in told

    def test_what_orch_has_no_word_for(self) -> None:
        plan = plan_of()
        argv = tuple("gae" if word == "rloo" else word for word in plan.argv)
        with pytest.raises(
            SpecError, match=r"no advantage\.estimator for 'gae' \(it knows: rloo, group_norm"
        ):
            BACKEND.parse(argv, plan.files)

    def test_another_program(self) -> None:
        with pytest.raises(SpecError, match="does not run openrlhf"):
            BACKEND.parse(("python3", "-m", "openrlhf.cli.train_sft"), plan_of().files)

    def test_a_file_that_contradicts_the_flags(self) -> None:
        plan = plan_of(kl={"estimator": "rho_k3", "placement": "loss"})
        files = {**plan.files, "needs.json": plan.files["needs.json"].replace("rho_k3", "k2+")}
        with pytest.raises(SpecError, match=r"asks for k2\+"):
            BACKEND.parse(plan.argv, files)


@pytest.mark.parametrize(
    ("num_prompts", "status", "said"),
    [
        (1280, "exact", "one shuffle"),
        (2000, "approximated", "only the first 1280 prompts"),
        (1000, "approximated", "2 copies"),
    ],
)
def test_prompts_drawn_from_shuffled_copies_are_not_the_data_set(
    num_prompts: int, status: str, said: str
) -> None:
    plan = plan_of(data={"num_prompts": num_prompts}, batch={"num_prompts": 256}, num_train_steps=5)
    told = entry(plan, "data.path")
    assert told.status == status
    assert said in told.note
