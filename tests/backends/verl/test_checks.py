"""What verl accepts without a word (facts of 0.9.1: 13 of 16 broken launches), we do not."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from backends.verl import BACKEND
from orchestrator.errors import SpecError
from tests.backends.verl import library
from tests.backends.verl.cells import PLACE, cell

ACTOR, OPTIMIZER = "actor_rollout_ref.actor", "actor_rollout_ref.actor.optim"
ASYNC: Mapping[str, Any] = {"max_staleness_steps": 4, "batch.num_minibatches": 2}

SILENT: Sequence[tuple[Mapping[str, Any], str, str]] = (
    ({}, "algorithm.kl_penalty=k4", "none of"),
    ({}, "algorithm.kl_penalty=full", "none of"),
    ({}, f"{ACTOR}.kl_loss_type=k33", "did you mean"),
    ({}, f"{ACTOR}.kl_loss_type=full", "none of"),
    ({}, f"{ACTOR}.kl_loss_type=rho_k3", "none of"),
    ({}, "algorithm.kl_ctrl.type=adapt", "fixed"),
    ({}, "+algorithm.kl_coef=0.3", "no such key"),
    ({}, f"+{ACTOR}.kl_coef=0.3", "no such key"),
    ({}, f"+{ACTOR}.use_kl_in_loss=True", "did you mean"),
    ({}, "algorithm.adv_estimator=rlo", "did you mean 'rloo'"),
    ({}, "algorithm.adv_estimator=orch_reinforce", "none of"),
    ({}, "trainer.v1.trainer_mode=async", "separate_async"),
    ({}, "trainer.logger=[console,weights_and_biases]", "none of"),
    ({}, "~actor_rollout_ref.rollout.name", "one value"),
    ({}, "actor_rollout_ref.rollout.name=vlm", "did you mean 'vllm'"),
    ({}, "algorithm.norm_adv_by_std_in_grpo=often", "none of True, False"),
    ({}, f"{ACTOR}.use_kl_loss=maybe", "none of True, False"),
    ({}, "data.train_batch_size=many", "multiple"),
    ({}, "data.train_batch_size=128", "multiple"),
    ({}, "data.train_batch_size=300", "multiple"),
    ({}, "trainer.total_epochs=2", "ends after 58 of 250"),
    ({}, "trainer.total_training_steps=null", "set it"),
    ({}, "+custom_reward_function.path=/r.py", "ignored by verl 0.9.1"),
    ({}, "+reward_model.enable=True", "ignored by verl 0.9.1"),
    ({}, f"{ACTOR}.ppo_epochs=2", "none of 1"),
    ({}, f"{ACTOR}.policy_loss.loss_mode=kl_cov", "vanilla"),
    ({}, f"{OPTIMIZER}.lr_scheduler_type=linear", "none of"),
    ({}, "algorithm.rollout_correction.rollout_rs=seq_max_k2", "rollout_rs"),
    (ASYNC, "algorithm.rollout_correction.rollout_is=token", "ignored"),
    (ASYNC, "algorithm.rollout_correction.bypass_mode=False", "ratios"),
    (ASYNC, "trainer.v1.separate_async.parameter_sync_step=4", "must be data.train_batch_size"),
    (ASYNC, "actor_rollout_ref.rollout.nnodes=0", "1 or more"),
    (ASYNC, "actor_rollout_ref.rollout.checkpoint_engine.backend=naive", "nccl"),
    (ASYNC, "actor_rollout_ref.hybrid_engine=False", "leave it True"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_threshold=8", "one more than"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_strategy=drop", "set wait"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_strategy=dorp", "none of"),
)


def argv(changes: Mapping[str, Any], *more: str) -> tuple[tuple[str, ...], dict[str, str]]:
    plan = BACKEND.translate(cell(dict(changes)), PLACE)
    return (*plan.argv, *more), plan.files


@pytest.mark.parametrize(("changes", "override", "sentence"), SILENT)
def test_a_silent_acceptance_is_caught(
    changes: Mapping[str, Any], override: str, sentence: str
) -> None:
    BACKEND.parse(*argv(changes))  # sound without it
    with pytest.raises(SpecError) as error:
        BACKEND.parse(*argv(changes, override))
    (fault,) = error.value.faults
    assert sentence in str(fault)


@pytest.mark.slow
def test_they_are_silent_indeed() -> None:
    """verl composes each of them; the rest of its validation is of numbers of GPUs and batches."""
    launches: list[list[str]] = []
    for _, text, _ in SILENT:  # together, as many as are of different keys
        if not text.startswith("~"):
            key = text.lstrip("+").partition("=")[0]
            free = (each for each in launches if not any(key in one for one in each))
            launch = next(free, None)
            if launch is None:
                launches.append(launch := ["actor_rollout_ref.rollout.name=vllm"])
            launch.append(text)
    missing = "custom_reward_function.path"  # composes without the + too
    launches.append(["custom_reward_function.path=/r.py", "reward_model.enable=True"])
    answers = library.compose("0.9.1", launches, [missing])
    assert not [answer for answer in answers if "error" in answer]
    assert answers[-1]["values"][missing] == "/r.py"


@pytest.mark.parametrize(
    ("kept", "override", "sentence"),
    [
        (f"{ACTOR}.kl_loss_type", f"{ACTOR}.kl_loss_type=k1", "a cell has one"),
        (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_coef=0.2", "a cell has one"),
    ],
)
def test_two_different_kls_are_no_cell(kept: str, override: str, sentence: str) -> None:
    both = {"kl": {"estimator": "k3", "placement": "reward_and_loss", "beta": 0.1}}
    with pytest.raises(SpecError) as error:
        BACKEND.parse(*argv(both, override))
    (fault,) = error.value.faults
    assert kept in fault.path
    assert sentence in fault.message


@pytest.mark.parametrize(
    ("dropped", "given", "key"),
    [
        ("clip_ratio_low", f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.clip_ratio"),
        ("optim.clip_grad", f"{ACTOR}.grad_clip=0.5", f"{ACTOR}.grad_clip"),
        ("loss_scale_factor", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", "loss_scale"),
        ("rollout.name", "trainer.save_freq=1", "rollout.name"),
    ],
)
def test_what_is_left_out_is_missed(dropped: str, given: str, key: str) -> None:
    whole, files = argv({}, given)
    with pytest.raises(SpecError) as error:
        BACKEND.parse([arg for arg in whole if f"{dropped}=" not in arg], files)
    (fault,) = error.value.faults
    assert key in fault.path


def test_the_older_release_moves_the_old_reward_keys_itself() -> None:
    changes = {"backend.version": "0.8.0"}
    assert BACKEND.parse(*argv(changes, "custom_reward_function.path=/r.py")).seed == 0


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(SpecError) as error:
        BACKEND.parse(
            *argv(
                {},
                "algorithm.kl_penalty=k4",
                "trainer.total_epochs=1",
                "a b = [",
            )
        )
    assert len(error.value.faults) == 3


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["python", "train.py"], "verl.trainer.main_ppo"),
        (["-m", "verl.trainer.main_ppo", "trainer.project_name=verl@0.5.0"], "0.5.0"),
        (["-m", "verl.trainer.main_ppo", "data.max_prompt_length=1,2"], "sweeps"),
    ],
)
def test_what_is_no_launch_of_ours_is_told(command: list[str], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        BACKEND.parse(command, {})


def test_a_strangers_script_is_read_over_verls_defaults() -> None:
    """Table 2's flags and the least that makes a launch of them."""
    settings = BACKEND.parse(
        [
            "python3",
            "-m",
            "verl.trainer.main_ppo",
            "algorithm.adv_estimator=rloo",
            "algorithm.use_kl_in_reward=True",
            "algorithm.kl_penalty=kl",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=5",
            "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B",
            "trainer.total_training_steps=250",
            "data.train_files=$HOME/data/math/train.parquet",
            "trainer.logger=console",
        ],
        {},
    )
    assert settings.kl.label == "k1.reward"
    assert settings.kl.beta == 0.001  # the table gives none
    assert settings.batch.num_minibatches == 4
    assert settings.num_train_steps == 1000
    assert settings.loss.clip is not None
    assert settings.loss.clip.dual == 3.0
    assert settings.model.name == "Qwen2.5-7B"
