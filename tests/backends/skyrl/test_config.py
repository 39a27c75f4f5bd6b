"""SkyRL's own parser and validator, at each release, on everything orch tells it."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from backends.skyrl import BACKEND
from backends.skyrl.manifest import ADAPTER, CUTS, MANIFEST, OFF_POLICY, tables
from backends.skyrl.overrides import read
from backends.skyrl.parse import parse
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import EngineCorrection
from tests.backends.skyrl.cells import (
    PLACE,
    VERSIONS,
    asked_of,
    asynchronous,
    changed,
    drawn,
    onpolicy,
    shipped,
)
from tests.backends.skyrl.library import ask
from tests.backends.specs import which_ask_anew

TABLE_2 = (
    'trainer.algorithm.kl_estimator_type="k1"',
    "trainer.algorithm.use_kl_in_reward=True",
)
"""The paper's arguments for SkyRL, to the letter."""

CORRECTION_BOUNDS = {cut.cap for cut in CUTS.values() if cut.ratio} | {
    cut.bound(side) for cut in CUTS.values() if cut.metric for side in ("low", "high")
}
"""Keys that do nothing while the keys that every launch says ask for no correction."""


def at(config: Mapping[str, Any], key: str) -> object:
    return reduce(lambda part, name: part[name], key.split("."), config)


def same(given: object, made: object) -> bool:
    if isinstance(given, float) and isinstance(made, float):
        return math.isclose(given, made, rel_tol=0, abs_tol=0)
    return type(given) is type(made) and given == made


def accepted(version: str, plans: Sequence[LaunchPlan]) -> None:
    """SkyRL takes every launch, and makes of each argument exactly what orch meant."""
    answers = ask(version, [plan.argv[2:] for plan in plans])
    assert len(answers) == len(plans)
    for plan, answer in zip(plans, answers, strict=True):
        assert "error" not in answer, (answer["error"], plan.argv)
        for key, value in read(plan.argv[2:]).items():
            if not key.startswith("orch."):
                assert same(value, at(answer["values"], key)), (key, at(answer["values"], key))


def plans_of(cells: Sequence[Cell]) -> list[LaunchPlan]:
    found = []
    for cell in cells:
        try:
            found.append(BACKEND.translate(cell, PLACE))
        except UnsupportedSetting:
            continue
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_skyrl_accepts_every_shipped_cell(version: str) -> None:
    plans = plans_of([asked_of(cell, version) for cell in shipped()])
    assert len(plans) > 50
    asked = which_ask_anew(plans, lambda plan: plan.argv)
    assert len(asked) > 30
    accepted(version, asked)


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_a_drawn_cell_reads_back(cell: Cell) -> None:
    plan = BACKEND.translate(cell, PLACE)
    assert fingerprint(parse(plan.argv, plan.files)) == cell.id


@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(drawn(), min_size=15, max_size=20))
def test_skyrl_accepts_drawn_cells(cells: list[Cell]) -> None:
    by_version: dict[str, list[LaunchPlan]] = {}
    for plan in plans_of(cells):
        by_version.setdefault(plan.version, []).append(plan)
    for version, plans in by_version.items():
        accepted(version, plans)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shipped_cell_reads_back(version: str) -> None:
    for cell in shipped():
        mine = asked_of(cell, version)
        for plan in plans_of([mine]):
            assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == mine.id, cell.slug


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_are_skyrls(version: str) -> None:
    (answer,) = ask(version, [["trainer.logger=tensorboard"]])
    for key, value in tables()[version].defaults.items():
        if key == "data.train_data" or key not in MANIFEST.keys(version):
            continue
        assert at(answer["values"], key) == value, key


@pytest.mark.parametrize("version", VERSIONS)
def test_the_papers_table_2_is_refused_to_the_letter(version: str) -> None:
    (answer,) = ask(version, [[*TABLE_2, "trainer.logger=tensorboard"]])
    assert "mutually exclusive" in answer["error"]
    with pytest.raises(SpecError, match=r"use_kl_loss=false.*@ trainer.algorithm.use_kl_in_reward"):
        parse(["main_base", *TABLE_2, "trainer.max_training_steps=250"], {})


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_right_of_table_2_is_in_the_translation(version: str) -> None:
    plan = BACKEND.translate(onpolicy(version), PLACE)
    told, paper = read(plan.argv), read(TABLE_2)
    assert {key: told[key] for key in paper} == paper
    assert told["trainer.algorithm.use_kl_loss"] is False


def test_a_nasty_place_arrives(tmp_path: Any) -> None:
    nasty = [
        "a b",
        "quo\"te's",
        "new\nline",
        "ünï😀",
        "${home}",
        "\\${x}",
        "back\\",
        "#no: {x}",
        "[1,2]",
        "null",
        "1e5",
        "a=b",
        "tab\t\x7f\x85\u2028",
    ]
    plans = []
    for name in nasty:
        root = tmp_path / name
        place = PLACE._replace(plan_dir=root / "plan", checkpoints_dir=root / "checkpoints")
        cell = onpolicy()
        cell = changed(cell, model=cell.settings.model.model_copy(update={"path": name}))
        plans.append(BACKEND.translate(cell, place))
        told = read(plans[-1].argv)
        assert told["data.train_data"] == [str(root / "plan" / "data" / "train.parquet")]
        assert told["trainer.policy.model.path"] == name
        assert fingerprint(parse(plans[-1].argv, plans[-1].files)) == cell.id
    accepted("0.4.0", plans)


# ---------------------------------------------------------------- what SkyRL takes in silence


@pytest.mark.parametrize(
    "wrong",
    [
        "trainer.algorithm.kl_estimator_type=k4",
        "trainer.algorithm.use_kl_loss=flase",
        "trainer.algorithm.kl_loss_coef=lots",
        "trainer.policy.optimizer_config.lr=small",
        "trainer.policy.optimizer_config.scheduler=sometimes",
        "trainer.seed=0.5",
        "generator.sampling_params.temperature=null",
    ],
)
def test_a_value_skyrl_takes_and_could_not_use_is_a_fault(wrong: str) -> None:
    launch = ["trainer.logger=tensorboard", "trainer.max_training_steps=9", wrong]
    (answer,) = ask("0.4.0", [launch])
    assert "error" not in answer, "SkyRL checks it by now; drop the row"
    key = wrong.partition("=")[0]
    with pytest.raises(SpecError, match=key.replace(".", r"\.")):
        parse(launch, {})


def test_every_fault_of_a_launch_is_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse(["trainer.seed=x", "trainer.algorithm.use_kl_loss=flase", "+trainer.new=1"], {})
    assert len(caught.value.faults) == 3


def test_prompts_that_skyrl_would_drop_are_refused() -> None:
    """5 prompts of 2 rollouts on 8 GPUs: SkyRL's validator takes it and trains on 4 prompts."""
    cell = onpolicy("0.4.0")
    rollout = cell.settings.rollout.model_copy(update={"group_size": 2})
    odd = changed(
        cell, rollout=rollout, batch=cell.settings.batch.model_copy(update={"num_prompts": 5})
    )
    with pytest.raises(UnsupportedSetting, match=r"batch\.num_prompts=5.*drops prompts"):
        BACKEND.translate(odd, PLACE)
    plan = BACKEND.translate(onpolicy("0.4.0"), PLACE)
    (answer,) = ask(
        "0.4.0",
        [
            [
                *plan.argv[2:],
                "trainer.train_batch_size=5",
                "trainer.policy_mini_batch_size=5",
                "generator.n_samples_per_prompt=2",
                "trainer.micro_train_batch_size_per_gpu=1",
                "trainer.micro_forward_batch_size_per_gpu=1",
            ]
        ],
    )
    assert "error" not in answer


OF_OTHER_LOSSES = tuple(f"trainer.algorithm.{name}." for name in ("cispo", "dppo", "sapo"))
"""Keys that only the policy losses of these names read; policy_loss_type is always sent."""


def test_no_default_of_skyrls_that_would_change_a_cell_is_left_in_place() -> None:
    cell = onpolicy("0.4.0")
    none = changed(cell, kl=cell.settings.kl.model_validate({"estimator": "none"}))
    told = read(BACKEND.translate(none, PLACE).argv)
    assert told["trainer.algorithm.use_kl_loss"] is False
    assert told["trainer.algorithm.use_kl_in_reward"] is False
    for key in MANIFEST.keys("0.4.0"):
        if not key.startswith(("orch.", f"{ADAPTER}.", *OF_OTHER_LOSSES)) and key not in (
            "trainer.algorithm.kl_estimator_type",
            "trainer.algorithm.max_seq_len",
            "trainer.algorithm.clip_ratio_c",
            "trainer.algorithm.entropy_loss_coef",  # use_entropy_loss=false is always sent
            "trainer.fully_async.max_staleness_steps",
            *CORRECTION_BOUNDS,
            "generator.inference_engine.model_dtype",  # sent for a cell that names a precision
        ):
            assert key in told, key


@pytest.mark.parametrize("version", VERSIONS)
def test_skyrl_resolves_each_correction_to_the_keys_of_its_kind(version: str) -> None:
    """Its own validator takes them, and what it then has is what the cell asks for, no more."""
    cell = onpolicy(version)
    asked = []
    for kind in CUTS:
        least = 0.0 if kind.startswith("tis") else 0.5
        correction = EngineCorrection(kind=kind, least=least, most=3.0)  # type: ignore[arg-type]  # a key of CUTS
        asked.append(changed(cell, loss=cell.settings.loss.but(correction=correction)))
    answers = ask(version, [BACKEND.translate(each, PLACE).argv[2:] for each in asked])
    for (kind, cut), answer in zip(CUTS.items(), answers, strict=True):
        assert "error" not in answer, (kind, answer)
        found = at(answer["values"], OFF_POLICY)
        assert isinstance(found, dict)
        of_tokens = cut.mask == "token_mask_is_threshold"
        assert (found["tis_ratio_type"], found["sequence_mask_metric"]) == (cut.ratio, cut.metric)
        for side, bound in (("low", 0.5), ("high", 3.0)):
            wanted = bound if of_tokens else None
            assert found[f"token_mask_is_threshold_{side}"] == wanted, kind
            assert found[f"outlier_token_is_threshold_{side}"] is None
            if cut.metric:
                assert found[f"{cut.mask}_{side}"] == bound
        if cut.ratio:
            assert found[f"{cut.ratio}_tis_ratio_clip_high"] == 3.0
        assert at(answer["values"], "trainer.algorithm.use_tis") is False


# ---------------------------------------------------------------- releases


def test_max_training_steps_is_refused_before_0_3_0() -> None:
    launch = ["trainer.logger=tensorboard", "trainer.max_training_steps=9"]
    assert "Invalid fields" in ask("0.2.0", [launch])[0]["error"]
    assert "error" not in ask("0.3.0", [launch])[0]
    told = read(BACKEND.translate(onpolicy("0.2.0"), PLACE).argv)
    assert "trainer.max_training_steps" not in told
    assert told["orch.max_training_steps"] == 250


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plain_ppo_loss_trains_asynchronously_in_0_2_0_only(version: str) -> None:
    plan = BACKEND.translate(asynchronous(version), PLACE)
    plain = [*plan.argv[2:], "trainer.algorithm.policy_loss_type=regular"]
    (answer,) = ask(version, [plain])
    assert ("error" in answer) == (version != "0.2.0"), answer.get("error")
    told = read(plan.argv)["trainer.algorithm.policy_loss_type"]
    assert told == ("regular" if version == "0.2.0" else "orch_rollout_ppo")


@pytest.mark.parametrize("version", VERSIONS)
def test_too_many_generation_workers_are_what_skyrl_refuses(version: str) -> None:
    """Says that the asynchronous trainer's own checks are really asked."""
    plan = BACKEND.translate(asynchronous(version), PLACE)
    workers = "trainer.fully_async.num_parallel_generation_workers"
    assert read(plan.argv)[workers] == 32 * 11
    (answer,) = ask(version, [[*plan.argv[2:], f"{workers}=353"]])
    assert "num_parallel_generation_workers" in answer["error"]


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(UnsupportedSetting, match=r"backend\.version=0\.1\.0"):
        BACKEND.translate(onpolicy("0.1.0"), PLACE)
