"""`orch init --from SCRIPT`: each key of a launch is in the spec, or in a comment."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result

from orchestrator import plugins
from orchestrator.audit.as_spec import ASK, OF_OWN, LaunchSpec, launch_of, spec_of, spec_text
from orchestrator.cli import orch
from orchestrator.errors import SpecError
from orchestrator.library.release_marks import Replaced
from orchestrator.records import AttemptPaths
from orchestrator.spec.expand import expand
from orchestrator.spec.load import load

SCRIPTS = sorted((Path(__file__).parent / "forty_keys").glob("*.sh"))
STARTERS = {"num_processes", "mixed_precision", "module", "address", "runtime-env-json"}
"""Flags of what starts a trainer."""
SAID = {"num_train_steps": 400, "data.path": "d", "data.num_prompts": 12800}
SAID |= {"optimizer.num_warmup_steps": 0}
"""What a person gives, where a script leaves it to its data."""
OWN = "custom_reward_function.path=my.py reward_model.reward_manager=dapo"
ACTOR = "actor_rollout_ref.actor"
GRPO = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"
VERL = (
    f"python3 -m verl.trainer.main_ppo {GRPO} data.train_files=d.parquet data.train_batch_size=512 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.model.path=M "
)
BYPASS = f"{VERL}async_training.staleness_threshold=0.5 " + " ".join(
    f"algorithm.rollout_correction.{key}"
    for key in ("bypass_mode=True", "rollout_rs=seq_mean_k1", "rollout_rs_threshold=0.9_1.1")
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain M --prompt_data D --lr_scheduler constant "
    "--advantage_estimator group_norm --n_samples_per_prompt 8 --num_episodes 3 "
)
ALONE = "--micro_train_batch_size 1"
TRL = """from trl import GRPOConfig, GRPOTrainer
A = GRPOConfig(output_dir="o", beta=0.01, epsilon=0.2)
GRPOTrainer(model="M", train_dataset=d, reward_funcs=f, args=A)
"""
GUARDED = "from os import path\ntry:\n    " + TRL.replace("\nA", "\nexcept E:\n    pass\nA")
OWN_LOSS = f"{TRL}".replace("GRPOTrainer(", "T(").replace(
    "A =",
    "class T(GRPOTrainer):\n    def _compute_loss(self, model, inputs):\n        return 0\nA =",
)
OWN_SAMPLES = OWN_LOSS.replace("_compute_loss", "_generate_and_score_completions")
LENGTH = "loss_type='dr_grpo', max_completion_length=n()"
LORA = "trl grpo --use_peft --lora_r 8 --lora_alpha 8"
STARTED = (
    "accelerate launch --num_processes 4 -m trl.scripts.grpo --model_name_or_path M "
    "--per_device_train_batch_size 8 --steps_per_generation 4 --num_generations 8"
)
RECIPE = """# from open-r1
num_generations: 2
per_device_train_batch_size: 2
use_peft: true
lora_r: 8
lora_alpha: 8
lora_target_modules: [q, k]
"""
VLLM = TRL.replace("epsilon=0.2", "use_vllm=True")
OPEN = VLLM.replace("True", "c.x, warmup_ratio=c.y, max_steps=9")
CAP = "vllm_importance_sampling_cap"
RLOO = "accelerate launch rloo.py --num_mini_batches 2 --total_episodes 90 --rloo_k 4 --kl_coef 0.1"
RLOO += " --response_length 512 --missing_eos_penalty 2 --own_flag 3"
PRIME = "uv run rl @ rl.toml --trainer.model.lora.rank 16 --trainer.model.lora.alpha 32.0"
ONE_TARGET = "--trainer.model.lora.target-modules.0"
RESPONSE = "--orchestrator.train.sampling.max-completion-tokens"
DEAD = "--use_kl_loss --use_kl_estimator_k3 --packing_samples --micro_train_batch_size 8"
PACKED = {"loss.aggregation": "token_mean"}
FULLY = "skyrl.train.entrypoints.fully_async"
SKYRL = (
    "uv run -m skyrl_train.entrypoints.main_base trainer.algorithm.advantage_estimator=grpo "
    "trainer.policy.model.path=M trainer.algorithm.use_kl_loss=false "
)


def read(text: str, release: str = "verl@0.9.1") -> LaunchSpec:
    library, _, version = release.partition("@")
    versions = {library: f"{version} said"} if version else {}
    name = "train.py" if text.startswith("from ") else "train.sh"
    name = "train.yaml" if text.startswith(RECIPE) else name
    return spec_of(*launch_of(text, name, {}, versions)[:2])


def at(spec: LaunchSpec, name: str) -> object:
    value: object = spec.fields
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def init(folder: Path, text: str, *words: str) -> Result:
    script = folder / "a 'train' β.sh"
    script.write_text(text, encoding="utf-8")
    spec = str(folder / "s.yaml")
    return CliRunner().invoke(orch, ["init", "--from", str(script), spec, *words])


def keys_of(text: str) -> set[str]:
    """The keys of a script, one a line: KEY=VALUE with a dot in the key, and --KEY."""
    keys = re.findall(r"^\s*(?:--([a-z][\w.-]*)|([a-z_]+\.[\w.]+)=)", text, re.MULTILINE)
    return {flag or key for flag, key in keys} - STARTERS


@pytest.mark.parametrize("script", SCRIPTS, ids=[file.stem for file in SCRIPTS])
def test_a_script_of_forty_keys_loses_none(tmp_path: Path, script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    done = init(tmp_path, text)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "s.yaml").read_text(encoding="utf-8")
    comments = [line for line in written.splitlines() if line.startswith("# ")]
    keys = keys_of(text)
    assert len(keys) >= 40
    assert not [key for key in keys if not any(f"{key}=" in line for line in comments)]
    asked = read(text, script.stem).asked
    if asked:
        with pytest.raises(SpecError):
            load(tmp_path / "s.yaml")
    changes = [
        f"{name if name.startswith(('data.', 'model.')) else f'base.{name}'}={value}"
        for name, value in SAID.items()
        if name in asked or name == "data.num_prompts"
    ]
    (cell,) = expand(load(tmp_path / "s.yaml", changes))
    assert cell.settings.backend.name == script.stem
    assert plugins.load(script.stem).translate(cell, AttemptPaths(*[tmp_path] * 3)).argv


@pytest.mark.parametrize(
    ("release", "text", "fields"),
    [
        # before 0.3 the coefficient alone puts a KL into the reward
        (
            "verl@0.2",
            f"{VERL} actor_rollout_ref.actor.use_kl_loss=False algorithm.kl_ctrl.kl_coef=0.002",
            {"kl": {"estimator": "k1", "placement": "reward", "beta": 0.002}},
        ),
        # its own default, not the next release's
        ("verl@0.2", VERL, {"kl": {"estimator": "k1", "placement": "reward", "beta": 0.001}}),
        ("openrlhf@0.5.9", OPENRLHF, {"kl.beta": 0.01, "kl.placement": "reward"}),
        (
            "openrlhf@0.5.9",
            f"{OPENRLHF} --prompt_max_len 500 --generate_max_len 3000",
            {"rollout.max_response_tokens": 3000, "data.max_prompt_tokens": 500},
        ),
        (
            "skyrl@0.2.0",
            f"{SKYRL} trainer.algorithm.use_tis=true trainer.algorithm.tis_imp_ratio_cap=2.0",
            {"loss.correction": {"kind": "tis_token", "least": 0.0, "most": 2.0}},
        ),
        # a cap on the prompts is no number of them
        (
            "openrlhf@0.10.1.post2",
            f"{OPENRLHF} --max_samples 100000000 --lr_warmup_ratio 0.03",
            {"num_train_steps": ASK, "optimizer.num_warmup_steps": ASK},
        ),
        ("verl@0.9.1", VERL.replace("path=M", "path=$M"), {"model.path": ASK}),
        ("verl@0.9.1", VERL.replace("actor_rollout_ref.model.path=M", ""), {"model.path": ASK}),
        ("verl@0.9.1", VERL.replace("=d.parquet", "="), {"data.path": ASK}),
        ("verl@0.9.1", VERL.replace("size=128", "size=1024"), {"batch.num_minibatches": ASK}),
        ("verl@0.9.1", VERL.replace("grpo", "gae"), {"advantage.estimator": ASK}),
        ("verl@0.9.1", f"{VERL} trainer.total_epochs=15", {"num_train_steps": ASK}),
        (
            "verl@0.9.1",
            f"{VERL} actor_rollout_ref.actor.use_kl_loss=True algorithm.use_kl_in_reward=True",
            {"kl": dict.fromkeys(("estimator", "placement", "beta"), ASK)},
        ),
        # a minibatch of a cell has whole prompts
        (
            "openrlhf@0.9.7",
            f"{OPENRLHF} --rollout_batch_size 16 --train_batch_size 4",
            {"batch.num_minibatches": ASK, "batch.num_prompts": 16},
        ),
        (
            "openrlhf@0.9.7",
            f"{OPENRLHF.replace(' D ', ' a,b ')} --lora_rank 8",
            {"lora.rank": ASK, "data.path": "a"},
        ),
        # micro-batches that hold as many tokens as fit are of more than one response
        ("openrlhf@0.9.7", f"{OPENRLHF} {ALONE}", {"loss.aggregation": "sequence_mean"}),
        (
            "openrlhf@0.9.7",
            f"{OPENRLHF} {ALONE} --use_dynamic_batch",
            {"loss.aggregation": "token_mean"},
        ),
        ("trl@1.5.0", TRL, {"loss.clip.high": 0.2, "lora": None}),
        (
            "trl@1.5.0",
            TRL.replace("epsilon=0.2", "fp16=True, bf16=False").replace(
                "=A)", "=A, peft_config=P)"
            ),
            {"precision.training": ASK, "lora.rank": ASK},
        ),
        # somebody's own code, adapters of another package, what a file may set
        ("trl@1.5.0", OWN_LOSS, {"loss.policy": ASK, "kl.estimator": ASK}),
        ("trl@1.5.0", f"from peft import LoraConfig\n{TRL}LoraConfig(r=8)", {"lora.targets": ASK}),
        (
            "trl@1.5.0",
            TRL.replace("epsilon=0.2", "epsilon=0.2, **cfg"),
            {"batch.num_minibatches": ASK, "loss.clip.low": 0.2, "rollout.group_size": ASK},
        ),
        (
            "trl@0.17.0",
            TRL.replace("epsilon=0.2", "warmup_ratio=0.1, max_steps=25, max_prompt_length=256"),
            {"optimizer.num_warmup_steps": 3, "data.max_prompt_tokens": 256},
        ),
        (
            "verl@0.9.1",
            VERL.replace("trainer.main_ppo", "mix_src.main_mix_ppo"),
            {"loss.policy": ASK, "advantage.estimator": ASK, "kl.estimator": ASK},
        ),
        # rollouts of an older policy
        (
            "verl@0.9.1",
            VERL.replace("trainer.main_ppo", "experimental.one_step_off_policy.main_ppo"),
            {"max_staleness_steps": ASK},
        ),
        (
            "skyrl@0.3.0",
            SKYRL.replace("skyrl_train.entrypoints.main_base", FULLY)
            + "trainer.fully_async.max_staleness_steps=4",
            {"max_staleness_steps": 4},
        ),
        # the release's own defaults and names
        ("verl@0.2.0", VERL, {"loss.entropy_bonus": 0.001, "loss.clip.dual": None}),
        ("openrlhf@0.2.7", OPENRLHF, {"loss.aggregation": "sequence_mean"}),
        (
            "verl@0.5.0",
            f"{VERL}{ACTOR}.optim.warmup_style=cosine {ACTOR}.grad_clip=0.5",
            {"optimizer.schedule": "cosine", "optimizer.max_grad_norm": ASK},
        ),
        ("verl@0.9.1", VERL.replace("=d.parquet", "=[a,b]"), {"data.path": "a"}),
        (
            "openrlhf@0.10.1.post2",
            f"{OPENRLHF} --rollout_batch_size 8 --train_batch_size 2048",
            {"batch.num_minibatches": ASK, "data.num_prompts": ASK},
        ),
        (
            "openrlhf@0.6.0",
            f"{OPENRLHF} --use_kl_loss --use_kl_estimator_k3",
            {"kl.estimator": "k3"},
        ),
        # the correction is that of the release, and of the keys with an effect
        ("trl@0.17.0", VLLM, {"loss.correction": None}),
        ("trl@0.24.0", VLLM, {"loss.correction.kind": "tis_token", "loss.correction.most": 2.0}),
        ("trl@1.9.2", VLLM.replace("True", f"True, {CAP}=2.5"), {"loss.correction.most": 2.5}),
        ("verl@0.9.1", BYPASS, {"loss.correction": None, "max_staleness_steps": ASK}),
        # former names, a fork's defaults, values that only a run shows
        ("trl@0.14.0", RLOO, {"rollout.group_size": 4, "rollout.max_response_tokens": 512}),
        ("trl@0.14.0", RLOO, {"num_train_steps": ASK, "batch.num_minibatches": ASK}),
        ("trl@0.21.0", RLOO, {"optimizer.learning_rate": 5e-5}),
        ("trl@1.5.0", GUARDED.replace("=A", "=A, peft_config=p"), {"lora.rank": ASK}),
        ("trl@0.14.0", RECIPE + "scale_rewards: false\n", {"advantage.estimator": ASK}),
        ("trl@0.16.0", TRL, {"loss.aggregation": ASK}),
        (
            "trl@0.16.0",
            TRL.replace("GRPO", "RLOO").replace("epsilon=0.2", "normalize_advantage=True"),
            {"advantage.estimator": ASK, "loss.ratio_level": "sequence"},
        ),
        # a fork's keys, and a part of a launch
        ("verl@0.1", f"{VERL} trainer.total_training_steps=9", {"num_train_steps": ASK}),
        (
            "verl@0.1",
            f"{VERL} actor_rollout_ref.rollout.n_agent=5",
            {"rollout.group_size": ASK, "batch.num_minibatches": ASK},
        ),
        ("prime_rl@0.5.0", PRIME, {"rollout.group_size": ASK}),
        ("trl@0.29.1", RECIPE + "scale_rewards: false\n", {"advantage.estimator": "dr_grpo"}),
        ("trl@0.24.0", f"from unsloth import A\n{TRL}", {"seed": 3407, "loss.aggregation": ASK}),
        ("trl@0.27.0", OPEN, {"optimizer.num_warmup_steps": ASK, "loss.correction": ASK}),
        ("verl@0.9.1", VERL.replace("=d.parquet", "=/d/$"), {"data.path": ASK}),
        ("prime_rl@0.5.0", PRIME, {"max_staleness_steps": ASK, "lora.alpha": 32}),
        ("prime_rl@0.5.0", f"{PRIME} {ONE_TARGET} q", {"lora.targets": "q"}),
        ("prime_rl@0.5.0", f"{PRIME} {RESPONSE} 9", {"rollout.max_response_tokens": 9}),
        # a KL without gradient is none, and packed samples of that time have one mean
        ("openrlhf@0.6.0", f"{OPENRLHF} {DEAD}", {"kl.estimator": "none", **PACKED}),
        # lists and dictionaries are whole; what hangs on an unknown length is unknown
        ("trl@0.16.0", RECIPE, {"lora.targets": "k,q", "lora.rank": 8}),
        ("trl@1.9.2", f"{LORA} --lora_target_modules q k v --beta 0.1", {"lora.targets": "k,q,v"}),
        ("trl@0.22.2", TRL.replace("epsilon=0.2", LENGTH), {"loss.constant_tokens": ASK}),
        (
            "trl@1.9.2",
            TRL.replace("epsilon=0.2", "generation_kwargs={'top_p': 0.9, 'temperature': 0.8}"),
            {"rollout.top_p": 0.9, "rollout.temperature": ASK},
        ),
        ("trl@1.9.2", OWN_SAMPLES, {"advantage.estimator": ASK, "rollout.top_p": ASK}),
        # what starts the processes says how many there are, or nothing does
        ("trl@1.9.2", STARTED, {"batch.num_prompts": 16}),
        ("trl@1.9.2", STARTED.replace("4 -m", "$N -m"), {"batch.num_prompts": ASK}),
        ("trl@1.9.2", STARTED.replace("num_processes 4", "config f"), {"batch.num_prompts": ASK}),
    ],
)
def test_a_field_is_what_the_script_trains(
    release: str, text: str, fields: dict[str, object]
) -> None:
    spec = read(text, release)
    assert {name: at(spec, name) for name in fields} == fields
    asked = {name for name in ("kl.estimator", *fields) if at(spec, name) == ASK}
    assert asked <= spec.asked.keys()


def test_each_comment_is_one_line_and_no_secret_is_written() -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    there = f"http://me:{secret[:9]}@h/"
    text = f"{OPENRLHF} --use_wandb {secret} --remote_rm_url {there} --wandb_project "
    text = text.replace(" D ", f" {there} ")
    spec = read(f"{text}'a\nname: evil'", "openrlhf@0.10.1.post2")
    written = spec_text(spec, "train\nname: other.sh")
    assert secret[:9] not in written
    assert at(spec, "data.path") == ASK
    assert "use_wandb=***: a secret" in written
    assert [line for line in written.splitlines() if line.startswith("name: ")] == [
        "name: train-name-other"
    ]


EPOCHS = f"{ACTOR}.ppo_epochs"


@pytest.mark.parametrize(
    ("release", "text", "said"),
    [
        ("verl@0.9.1", VERL, "another reward: the script's is named by no key"),
        (
            "verl@0.9.1",
            f"{VERL}{OWN}\n",
            f"another reward: the script's is {', '.join(OWN.split())}",
        ),
        (
            "verl@0.9.1",
            f"{VERL}{EPOCHS}=2",
            f"the script has {EPOCHS}=2, orch's launches {EPOCHS}=1",
        ),
        ("openrlhf@0.9.7", f"{OPENRLHF} --lora_rank 8", "give lora.rank in s.yaml: lora_rank=8"),
        ("openrlhf@0.9.7", OPENRLHF.replace(" D ", " a,b "), "first of the script's 2 files"),
        (
            "openrlhf@0.9.7",
            f"{OPENRLHF} --max_epochs 2 --rollout_batch_size 16",
            "makes 2 train steps",
        ),
        ("openrlhf@0.9.7", f"{OPENRLHF} --kl_target 6", "the script's β moves (--kl_target)"),
        (
            "openrlhf@0.9.7",
            f"{OPENRLHF} --max_samples 9",
            "give num_train_steps in s.yaml: max_samples=9",
        ),
        ("trl@0.14.0", RLOO, "no field holds missing_eos_penalty=2, own_flag=3"),
        ("openrlhf@0.10.1.post2", f"{OPENRLHF} --normalize_reward", "no field holds normalize_rew"),
        ("prime_rl@0.5.0", PRIME, "moved further than 0.2, either way, has only that KL"),
        ("verl@0.9.1", f"{VERL}algorithm.own=False", "no field holds algorithm.own=False"),
        (
            "verl@0.9.1",
            f"{VERL}data.filter_overlong_prompts=False",
            "no field holds data.filter_overlong_prompts=False",
        ),
        ("trl@0.17.0", f"{LORA} --warmup_ratio 0.1", "s.yaml: warmup_ratio=0.1: it gives no val"),
    ],
)
def test_what_the_spec_trains_otherwise_is_said(
    release: str, text: str, said: str, tmp_path: Path
) -> None:
    done = init(tmp_path, text, "--library", release)
    assert said in " ".join(done.stderr.split())


def test_an_entry_that_wins_over_its_option_and_own_sampling_are_said() -> None:
    sampled = TRL.replace("epsilon=0.2", "generation_kwargs={'top_p': 0.9, 'top_k': 50}")
    remarks = " ".join(read(sampled.replace("=A", "=A, rollout_func=g"), "trl@0.27.2").remarks)
    assert "top_k=50" in remarks
    assert "rollout_func samples" in remarks


def test_a_path_of_variables_is_one_word_and_a_weight_is_no_file() -> None:
    folders = OPENRLHF.replace(" M ", " $D/$N/m ").replace(" D ", " $D/$N.jsonl,1 ")
    spec = read(f"D=d\nN=n\nX='{folders}'\neval $X\n", "openrlhf@0.9.7")
    assert (at(spec, "model.path"), at(spec, "data.path")) == ("d/n/m", "d/n.jsonl")
    assert not [each for each in spec.remarks if "first of" in each]


def test_a_program_that_tells_its_use_is_one_launch_and_a_notebook_is_read() -> None:
    used = f'"""Run:\n    python t.py\n    python t.py --lr 3\n"""\n{TRL}A(lr)\n'
    assert launch_of(used, "t.py", {}, {})[2] == 1
    cells = {"nbformat": 4, "cells": [{"cell_type": "code", "source": TRL.splitlines(True)}]}
    (launch, reading, _) = launch_of(json.dumps(cells), "t.ipynb", {}, {})
    assert at(spec_of(launch, reading), "loss.clip.high") == 0.2


def test_a_configuration_beside_is_the_scripts() -> None:
    beside = {
        "verl/trainer/config/ppo_trainer.yaml": "actor_rollout_ref: {rollout: {top_p: 0.95}}",
        "own/main.py": "from verl.trainer import main_ppo\n@hydra.main(config_name='my')\n",
        "own/my.yaml": "actor_rollout_ref: {actor: {clip_ratio_c: 10, grad_clip: 0.5}}",
    }
    (launch, reading, _) = launch_of(VERL, "a.sh", beside, {})
    assert at(spec_of(launch, reading), "rollout.top_p") == 0.95
    own = VERL.replace("verl.trainer.main_ppo", "own.main")
    spec = spec_of(*launch_of(own, "a.sh", beside, {})[:2])
    assert (at(spec, "loss.clip.dual"), at(spec, "optimizer.max_grad_norm")) == (10, ASK)


def test_a_coefficient_without_effect_is_no_weight() -> None:
    key = "algorithm.kl_ctrl.kl_coef"
    text = f"{VERL} {key}=0.5 actor_rollout_ref.actor.use_kl_loss=True"
    (line,) = (each for each in read(text).lines if each.key == key)
    assert (line.outcome, line.fields) == ("idle", ())


def test_a_guessed_release_is_said() -> None:
    spec = read(TRL, "trl")
    assert "(a guess)" in spec_text(spec, "a.py")
    assert any(each.startswith("taken for granted: the release is") for each in spec.remarks)


def test_all_that_may_be_of_ones_own_has_its_fields() -> None:
    assert OF_OWN.keys() == {*get_args(Replaced)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello\n", "no launch of "),
        ("python open_instruct/grpo_fast.py --beta 0.05\n", "trains with none"),
        ("uv run rl @ rl.toml --max-async-level 2\n", "--library prime_rl@"),
    ],
)
def test_a_script_without_a_cell_is_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    done = init(tmp_path, text)
    assert message in str(done.exception) + done.output


def test_a_default_that_a_former_release_leaves_open_is_no_empty_text() -> None:
    text = "trl grpo --model_name_or_path M --dataset_name d --max_grad_norm 0 --num_generations 8"
    written = spec_text(read(text, "trl@1.5.0"), "train.sh")
    assert ": ''" not in written
    assert "max_grad_norm: null" in written  # absent, it would be 1
