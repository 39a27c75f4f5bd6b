"""Launches as a person would paste them, their ledgers, and what is refused."""

from pathlib import Path

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.launch.orch_skyrl import OPTIONS, repeated, split
from backends.skyrl.overrides import read
from backends.skyrl.translate import micro_batch
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import Cadence, EngineCorrection
from tests.backends.skyrl.cells import PLACE, asynchronous, changed, onpolicy

A, P, E = "trainer.algorithm", "trainer.placement", "generator.inference_engine"


def plan(cell: Cell) -> LaunchPlan:
    return BACKEND.translate(cell, PLACE)


def kl(cell: Cell, **fields: object) -> Cell:
    return changed(cell, kl=cell.settings.kl.model_validate(fields))


def status(of: LaunchPlan, field: str) -> tuple[str, str]:
    (entry,) = [entry for entry in of.ledger if entry.field == field]
    return entry.status, entry.note


def test_an_engine_whose_probabilities_are_in_the_ratio_reports_them_at_the_temperature() -> None:
    """vLLM reports raw ones unless told; the trainer's are at the temperature of the rollout."""
    key = f"{E}.engine_init_kwargs.logprobs_mode"
    cell = asynchronous("0.4.0")
    warm = changed(cell, rollout=cell.settings.rollout.but(temperature=0.6))
    assert read(plan(warm).argv)[key] == "processed_logprobs"
    on = onpolicy("0.4.0")
    weighted = on.settings.loss.but(correction=EngineCorrection(kind="tis_token", most=2.0))
    corrected = changed(on, loss=weighted, rollout=on.settings.rollout.but(temperature=0.6))
    assert read(plan(corrected).argv)[key] == "processed_logprobs"
    recomputed = changed(on, rollout=on.settings.rollout.but(temperature=0.6))
    assert not any(key in argument for each in (cell, recomputed) for argument in plan(each).argv)


def refused(cell: Cell) -> str:
    with pytest.raises(UnsupportedSetting) as caught:
        plan(cell)
    return caught.value.field


def test_checkpoints_at_the_end_of_a_pass_are_told() -> None:
    """SkyRL saves there whatever its intervals say (trainer.py: is_epoch_end)."""
    cell = onpolicy("0.4.0")
    [entry] = [e for e in plan(cell).ledger if e.field == "cadence.checkpoint_every_steps"]
    assert (entry.status, entry.key) == ("approximated", "trainer.hf_save_interval")
    prompts, batch = cell.settings.data.num_prompts, cell.settings.batch.num_prompts
    assert prompts is not None
    assert f"every {prompts // batch} train steps" in entry.note
    few = changed(cell, num_train_steps=prompts // batch)
    for other in (few, onpolicy("0.2.0")):
        assert not [e for e in plan(other).ledger if e.field.startswith("cadence.checkpoint")]


def test_micro_batches_divide_a_gpus_minibatch_and_hold_few_tokens() -> None:
    assert [micro_batch(160, 2048), micro_batch(10, 2048), micro_batch(7, 100)] == [4, 2, 7]
    assert micro_batch(128, 20_000) == 1


def test_ray_is_told_the_cpus_that_skyrl_claims() -> None:
    """One a GPU; one of each node, for the task that removes old checkpoints; its program's own."""
    for cell in (onpolicy("0.4.0"), asynchronous("0.4.0")):
        assert plan(cell).ray_cpus == 2 * (4 + 1) + 1
    assert plan(onpolicy("0.3.0")).ray_cpus is None


# ---------------------------------------------------------------- what travels with a launch


def test_the_files_stand_alone() -> None:
    files = plan(onpolicy()).files
    scorer = [name for name in files if name.startswith("orch_scoring/")]
    assert {"needs.json", "orch_skyrl.py", "prompts.json", "reward.py"} == {*files} - {*scorer}
    for name in ("orch_skyrl.py", "reward.py", *scorer):
        compile(files[name], name, "exec")
        assert "import orchestrator" not in files[name]
        assert "from backends" not in files[name]


def test_options_are_taken_out_of_the_arguments() -> None:
    options, overrides = split(["a.b=1", "orch.chat_template=none", "c=orch.x"])
    assert options == {**OPTIONS, "chat_template": "none"}
    assert overrides == ["a.b=1", "c=orch.x"]
    with pytest.raises(SystemExit, match=r"orch\.colour"):
        split(["orch.colour=red"])


def test_data_is_repeated_to_exactly_the_rows_wanted() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"n": list(range(10))})
    numbers = repeated(rows, 25, seed=0)["n"]
    assert len(numbers) == 25
    assert sorted(numbers[:10]) == sorted(numbers[10:20]) == list(range(10))
    assert list(numbers[:10]) != list(numbers[10:20]), "each pass is shuffled anew"


def test_a_launch_somebody_else_wrote_is_read(tmp_path: Path) -> None:
    asked = BACKEND.parse(
        [
            "uv",
            "run",
            "-m",
            "skyrl.train.entrypoints.main_base",
            "data.train_data=['/data/gsm8k/train.parquet']",
            "trainer.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct",
            f"{A}.use_kl_loss=True",
            "trainer.max_training_steps=20",
        ],
        {},
    )
    assert asked.kl.label == "k3.loss"
    assert (asked.batch.num_prompts, asked.batch.num_minibatches) == (1024, 4)
    assert asked.num_train_steps == 80
    assert asked.model.name == "Qwen2.5-1.5B-Instruct"


def test_a_cell_that_asks_for_its_rollouts_gets_what_writes_them() -> None:
    cell = onpolicy()
    asked = cell.model_copy(update={"cadence": Cadence(dump_rollouts=True)})
    more = plan(asked)
    assert set(more.files) - set(plan(cell).files) == {"orch_skyrl_dump.py", "orch_rollout_dump.py"}
    assert more.env["ORCH_ROLLOUT_DUMP"] == str(PLACE.attempt_dir / "rollouts")
    assert more.argv == plan(cell.model_copy(update={"cadence": Cadence()})).argv
