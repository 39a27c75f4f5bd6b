"""Launches as a person would paste them, their ledgers, and what is refused."""

from pathlib import Path

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.launch.orch_skyrl import OPTIONS, repeated, split
from backends.skyrl.overrides import read
from backends.skyrl.translate import micro_batch
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import Cadence, EngineCorrection, Resources, Settings
from tests.backends.skyrl.cells import PLACE, asynchronous, changed, onpolicy

A, P, E = "trainer.algorithm", "trainer.placement", "generator.inference_engine"


def plan(cell: Cell) -> LaunchPlan:
    return BACKEND.translate(cell, PLACE)


def kl(cell: Cell, **fields: object) -> Cell:
    return changed(cell, kl=cell.settings.kl.model_validate(fields))


def status(of: LaunchPlan, field: str) -> tuple[str, str]:
    (entry,) = [entry for entry in of.ledger if entry.field == field]
    return entry.status, entry.note


TOLD = """
python /runs/plan/orch_skyrl.py
data.train_data=["/runs/plan/data/train.parquet"]
trainer.policy.model.path=Qwen/Qwen2.5-7B trainer.ref.model.path=Qwen/Qwen2.5-7B
environment.env_class=orch trainer.logger=tensorboard
trainer.algorithm.advantage_estimator=rloo trainer.algorithm.loss_reduction=token_mean
trainer.algorithm.policy_loss_type=regular
trainer.algorithm.kl_estimator_type=k1 trainer.algorithm.use_kl_in_reward=true
trainer.algorithm.use_kl_loss=false trainer.algorithm.kl_loss_coef=0.05
generator.n_samples_per_prompt=5 generator.sampling_params.max_generate_length=1024
trainer.train_batch_size=256 trainer.policy_mini_batch_size=256
trainer.policy.optimizer_config.lr=1e-06
trainer.policy.optimizer_config.adam_betas=[0.9,0.999]
trainer.max_training_steps=250 trainer.epochs=250 trainer.seed=0
trainer.ckpt_interval=50 trainer.hf_save_interval=50 trainer.eval_interval=10
trainer.resume_mode=latest trainer.ckpt_path=/runs/checkpoints/state
trainer.export_path=/runs/checkpoints/exports-x1
trainer.placement.policy_num_nodes=2 trainer.placement.policy_num_gpus_per_node=4
trainer.placement.ref_num_nodes=2 trainer.placement.ref_num_gpus_per_node=4
trainer.placement.colocate_all=true generator.inference_engine.num_engines=8
trainer.fully_async.enabled=false
"""


def test_k1_in_the_reward_to_the_letter() -> None:
    argv, told = plan(onpolicy()).argv, TOLD.split()
    assert list(argv[:2]) == told[:2]
    assert not set(told) - set(argv)
    assert not [argument for argument in argv if argument.startswith("orch.")]
    assert len({argument.partition("=")[0] for argument in argv}) == len(argv), "a key twice"


def test_asynchronous_dr_grpo_to_the_letter() -> None:
    told = read(plan(asynchronous("0.4.0")).argv)
    assert told["orch.asynchronous"] is True
    assert told["trainer.fully_async.enabled"] is True
    assert told["trainer.fully_async.max_staleness_steps"] == 10
    assert told[f"{A}.advantage_estimator"] == "grpo"
    assert told[f"{A}.grpo_norm_by_std"] is False
    assert told[f"{A}.loss_reduction"] == "seq_mean_token_sum_norm"
    assert told[f"{A}.max_seq_len"] == 4096
    assert told[f"{A}.policy_loss_type"] == "orch_rollout_ppo"
    assert told["trainer.train_batch_size"] == told["trainer.policy_mini_batch_size"] == 32
    shared = (told[f"{P}.policy_num_nodes"], told[f"{P}.policy_num_gpus_per_node"])
    assert (*shared, told[f"{E}.num_engines"], told[f"{P}.colocate_all"]) == (1, 4, 4, False)


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


def test_a_truncated_sampler_in_the_ratio_is_no_exact_setting() -> None:
    cell = asynchronous("0.4.0")
    truncated = plan(changed(cell, rollout=cell.settings.rollout.but(top_p=0.9)))
    assert status(truncated, "rollout.top_p")[0] == "approximated"
    assert "0.9 to 1" in status(truncated, "rollout.top_p")[1]
    assert status(plan(cell), "rollout.top_p")[0] == "exact"
    on = onpolicy("0.4.0")
    weighted = on.settings.loss.but(correction=EngineCorrection(kind="tis_token", most=2.0))
    kept = on.settings.rollout.but(top_p=0.9)
    corrected = plan(changed(on, loss=weighted, rollout=kept))
    assert status(corrected, "rollout.top_p")[0] == "approximated"
    assert status(plan(changed(on, rollout=kept)), "rollout.top_p")[0] == "exact"


def test_a_reference_policy_at_another_temperature_is_no_exact_setting() -> None:
    warm = changed(onpolicy("0.4.0"), rollout=onpolicy("0.4.0").settings.rollout.but(temperature=2))
    grade, note = status(plan(warm), "rollout.temperature")
    assert grade == "approximated"
    assert "the reference policy's at 1" in note
    assert status(plan(onpolicy("0.4.0")), "rollout.temperature")[0] == "exact"
    free = changed(warm, kl=warm.settings.kl.but(estimator="none", placement=None, beta=0.0))
    assert status(plan(free), "rollout.temperature")[0] == "exact"


def test_the_plain_loss_of_0_2_0_is_said_to_be_without_a_clip() -> None:
    old = plan(asynchronous("0.2.0"))
    assert status(old, "loss.clip")[0] == "approximated"
    assert "nothing is clipped" in status(old, "loss.clip")[1]
    assert "trainer.fully_async.enabled" not in read(old.argv)
    assert status(plan(asynchronous("0.4.0")), "loss.clip")[0] == "extension"
    assert status(plan(onpolicy()), "loss.clip")[0] == "exact"


def test_the_ledger_says_what_the_loss_averages_over() -> None:
    loss = plan(kl(onpolicy(), estimator="k3", placement="loss", beta=0.1))
    assert status(loss, "kl.placement")[0] == "approximated"
    assert "averaged over each response" in status(loss, "kl.placement")[1]
    assert "held within 20" in status(loss, "kl.estimator")[1]
    cell = onpolicy()
    mean = cell.settings.loss.model_copy(update={"aggregation": "sequence_mean"})
    agreeing = kl(changed(cell, loss=mean), estimator="k2", placement="loss", beta=0.1)
    assert status(plan(agreeing), "kl.placement")[0] == "exact"


def test_both_places_through_the_extension() -> None:
    both = plan(kl(onpolicy(), estimator="k1", placement="reward_and_loss", beta=0.1))
    told = read(both.argv)
    assert (told[f"{A}.use_kl_in_reward"], told[f"{A}.use_kl_loss"]) == (True, False)
    assert told["orch.kl_in_loss_too"] is True
    assert status(both, "kl.placement")[0] == "extension"


@pytest.mark.parametrize("estimator", ["k1+", "k3+", "rho_k3", "sg_rho_k2"])
def test_an_estimator_of_the_worker_is_refused_with_the_nearest(estimator: str) -> None:
    with pytest.raises(UnsupportedSetting, match=r"Set kl\.estimator=k2\.") as caught:
        plan(kl(onpolicy(), estimator=estimator, placement="loss", beta=0.1))
    assert caught.value.field == "kl.estimator"


def refused(cell: Cell) -> str:
    with pytest.raises(UnsupportedSetting) as caught:
        plan(cell)
    return caught.value.field


def test_what_is_refused_names_its_field() -> None:
    cell = onpolicy()
    whole: Settings = cell.settings
    reset = whole.kl.model_copy(update={"reset_reference_every_steps": 50})
    assert refused(changed(cell, kl=reset)) == "kl.reset_reference_every_steps"
    epsilon = whole.optimizer.model_copy(update={"epsilon": 1e-5})
    assert refused(changed(cell, optimizer=epsilon)) == "optimizer.epsilon"
    few = whole.data.model_copy(update={"num_prompts": 255})
    assert refused(changed(cell, data=few)) == "batch.num_prompts"
    embedded = whole.model.model_copy(update={"path": "micro:elder"})
    assert refused(changed(cell, model=embedded)) == "model.path"
    minibatches = whole.batch.model_copy(update={"num_minibatches": 2})
    assert refused(changed(cell, batch=minibatches, max_staleness_steps=1)) == (
        "batch.num_minibatches"
    )
    for resources, bound in ((Resources(), 0), (Resources(gpus_per_node=1), 1)):
        idle = cell.model_copy(update={"resources": resources})
        assert refused(changed(idle, max_staleness_steps=bound)) == "resources.gpus_per_node"


def test_a_cell_without_cadence_shows_itself_at_its_end() -> None:
    told = read(plan(onpolicy().model_copy(update={"cadence": Cadence()})).argv)
    for key in ("ckpt_interval", "hf_save_interval", "eval_interval"):
        assert told[f"trainer.{key}"] == 250


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


def test_where_it_runs_changes_no_setting() -> None:
    here = onpolicy()
    there = here.model_copy(update={"resources": Resources(num_nodes=1, gpus_per_node=8)})
    assert BACKEND.parse(plan(here).argv, plan(here).files) == BACKEND.parse(
        plan(there).argv, plan(there).files
    )


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
