"""Python programs of others that build TRL's trainer: run as they are, by the real library."""

import json
import subprocess
from pathlib import Path

import pytest

from backends import trl
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.prove.program import (
    ProgramRehearsal,
    commands_of,
    library_of,
    rehearse_command,
    rehearse_program,
)
from tests.backends.environments import cpu_python, root
from tests.backends.trained import hold

HEAD = """
import os
from datasets import Dataset

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import {name}Config, {name}Trainer

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
rows = [
    dict(prompt=[dict(role="user", content=f"What is {{i}} + {{i}}?")], answer=str(2 * i))
    for i in range(64)
]

def correct(completions, answer, **kwargs):
    return [float(a in c[-1]["content"]) for c, a in zip(completions, answer)]

async def short(completions, **kwargs):
    return [-len(c[-1]["content"]) / 100 for c in completions]

ROLLOUT
config = {name}Config(
    output_dir="out",
    bf16=True,
    use_vllm=True,
    beta=0.04,
    num_generations=8,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=4,
    max_completion_length=512,
    max_steps=500,
    learning_rate=1e-6,
    report_to="wandb",
    OPTIONS
)
model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="flash_attention_2")
trainer = {name}Trainer(
    model=model,
    processing_class=AutoTokenizer.from_pretrained(MODEL),
    reward_funcs=[correct, short],
    args=config,
    train_dataset=Dataset.from_list(rows),
    MORE
)
trainer.train()
trainer.save_model("out/final")
trainer.push_to_hub()
"""

ROLLOUT = """
import torch

def sample(prompts, trainer):
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    ids, completions, chances = [], [], []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(prompt, tokenize=False)
        asked = tokenizer(text, add_special_tokens=False)["input_ids"]
        row = list(asked)
        logs = []
        with torch.no_grad():
            while len(row) < len(asked) + 6 and (row[-1] != 2 or len(row) == len(asked)):
                logits = model(torch.tensor([row])).logits[0, -1].log_softmax(-1)
                token = int(torch.multinomial(logits.exp(), 1))
                row.append(token)
                logs.append(float(logits[token]))
        ids.append(asked)
        completions.append(row[len(asked):])
        chances.append(logs)
    return dict(prompt_ids=ids, completion_ids=completions, logprobs=chances)
"""
"""A sampler of the program's own, as an engine would be: it reports its log-probabilities."""


def program(folder: Path, name: str, rollout: str = "", options: str = "", more: str = "") -> Path:
    path = folder / "my train.py"
    text = HEAD.format(name=name).replace("ROLLOUT", rollout).replace("OPTIONS", options)
    path.write_text(text.replace("MORE", more))
    return path


def rehearsed(path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> ProgramRehearsal:
    cpu_python("trl", version)
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(root()))
    monkeypatch.chdir(path.parent)
    (path.parent / "requirements.txt").write_text(f"trl=={version}\n")
    return rehearse_program(path, path.parent / "runs")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "version"), [("GRPO", "1.16.0"), ("RLOO", "1.16.0"), ("GRPO", "1.9.2")]
)
def test_a_program_is_run_and_predicted(
    name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPO's samples by itself: TRL 1.16.0 hands on the log-probabilities of such a sampler, and
    the hook keeps them."""
    samples = (name, version) == ("GRPO", "1.16.0")
    own = {"rollout": ROLLOUT, "more": "rollout_func=sample,"} if samples else {}
    real = tmp_path / "out" / "final" / "model.safetensors"
    real.parent.mkdir(parents=True)
    real.write_text("of a week on GPUs")
    outcome = rehearsed(program(tmp_path, name, **own), version, monkeypatch)
    assert not outcome.troubles, (outcome.troubles, outcome.ending)
    assert outcome.proof is not None, outcome.without_proof
    assert (outcome.proof.version, outcome.proof.num_steps) == (version, 4)
    worst = {each.name: each.worst for each in outcome.proof.quantities}
    assert {"advantages", "grad_norm", "weights"} <= worst.keys()
    assert worst["grad_norm"] < 1e-4
    assert real.read_text() == "of a week on GPUs", "it saves nothing over the program's own files"
    changed = {each.name: (each.launch, each.here) for each in outcome.deviations}
    assert changed["max_steps"] == ("500", "4")
    assert changed["use_vllm"] == ("True", "False")
    assert "Qwen/Qwen2.5-0.5B-Instruct" in str(changed["AutoModelForCausalLM.from_pretrained"])
    assert {"beta", "num_generations"}.isdisjoint(changed), "they are the program's"
    unexplained = [x.name for x in outcome.deviations if x.kind == "argument" and not x.why]
    assert unexplained == ["saves to out/final"]
    held = {each.name: each.holds for each in outcome.checks}
    if samples:
        assert held["the trainer scores tokens as the sampler did"]
    assert held["the program's reward correct"]
    assert held["the program's reward short"]
    assert held["KL is 0 at the first step"]
    assert held["the gradient is not 0"]
    assert held["the exported checkpoint is the trained policy"]
    hold("trl", version, f"somebody's program of {name}, rehearsed", 4)


@pytest.mark.real
@pytest.mark.slow
def test_what_no_cell_has_is_run_and_not_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path, "GRPO", options='loss_type="bnpo",')
    outcome = rehearsed(path, "1.16.0", monkeypatch)
    assert not outcome.troubles, (outcome.troubles, outcome.ending)
    assert outcome.proof is None
    assert "no loss.aggregation for 'bnpo'" in outcome.without_proof
    assert {each.name: each.holds for each in outcome.checks}["the gradient is not 0"]


SCRIPT = """#!/bin/bash
set -u
srun --gpus 8 trl grpo --model_name_or_path org/model --dataset_name {data} \\
  --reward_funcs my_rewards.correct --bet 0.04 --num_generations 8 \\
  --num_processes 8 --mixed_precision bf16 --accelerate_config zero3 \\
  --max_completion_length 512 --output_dir out --run_name "$SLURM_JOB_ID" --use_vllm
"""
REWARD = """
def correct(completions, answer, **kwargs):
    return [float(a in c[-1]["content"]) for c, a in zip(completions, answer)]
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long
def test_a_launch_by_trl_is_taken_apart_by_trl_itself_and_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own command line divides the words; accelerate's flags are listed, one by one."""
    cpu_python("trl", "1.16.0")
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(root()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("trl==1.16.0\n")
    (tmp_path / "my_rewards.py").write_text(REWARD)
    (tmp_path / "data").mkdir()
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + {i}?"}], "answer": str(2 * i)}
        for i in range(64)
    ]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "go.sh"
    path.write_text(SCRIPT.format(data="data"))
    (command,) = commands_of(path)
    outcome = rehearse_command(command, tmp_path / "runs")
    assert not outcome.troubles, (outcome.troubles, outcome.ending)
    assert outcome.proof is not None, outcome.without_proof
    assert outcome.proof.holds
    changed = {each.name: (each.launch, each.here) for each in outcome.deviations}
    assert changed["before the command"] == ("srun --gpus 8", None)
    assert changed["accelerate --num_processes"] == ("8", None)
    assert changed["accelerate --mixed_precision"] == ("bf16", None)
    assert "zero3.yaml" in str(changed["accelerate --config_file"])
    assert changed["max_completion_length"] == ("512", "6")
    assert "beta" not in changed
    held = {each.name: each.holds for each in outcome.checks}
    assert held["KL is 0 at the first step"]
    assert held["the program's reward correct"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nohup accelerate launch --num_processes 4 train.py --bs 8 &", "accelerate launch"),
        ("uv run torchrun --nproc_per_node 8 train.py", "torchrun --nproc_per_node 8 train.py"),
        ("CUDA_VISIBLE_DEVICES=0 python -u -m trl.scripts.rloo --beta 0.1", "python -u -m trl"),
        ("trl grpo --config a.yaml --seed $SEED", "trl grpo --config a.yaml"),
    ],
)
def test_the_words_of_a_command_are_kept(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("beta: 0.1\n")
    (tmp_path / "train.py").write_text("from trl import GRPOConfig\nGRPOConfig(beta=0.1)\n")
    path = tmp_path / "go.sh"
    path.write_text(f"{line}\n")
    (command,) = commands_of(path)
    assert " ".join(command.words).startswith(words)
    assert [each.name for each in command.deviations if each.launch == "?"] == (
        ["--seed"] if "SEED" in line else []
    )


def test_an_objective_that_only_a_shell_would_know_is_not_rehearsed(tmp_path: Path) -> None:
    path = tmp_path / "go.sh"
    path.write_text("trl grpo --dataset_name a/b --beta $BETA\n")
    with pytest.raises(EnvironmentFault, match=r"go.sh:1: beta comes from \$BETA: set it in the"):
        commands_of(path)


def test_a_launcher_that_cannot_be_taken_apart_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from trl import GRPOConfig\nGRPOConfig(beta=0.1)\n")
    path = tmp_path / "go.sh"
    path.write_text("deepspeed --num_gpus 8 train.py\n")
    with pytest.raises(EnvironmentFault, match="orch cannot start this launcher without its proc"):
        commands_of(path)


FLAGS = """
import json
from accelerate.commands.launch import launch_command_parser
names = {o[2:].replace("-", "_") for a in launch_command_parser()._actions
         for o in a.option_strings if o.startswith("--")}
print(json.dumps(sorted(names)))
"""


@pytest.mark.real
@pytest.mark.parametrize("version", ["1.16.0", "1.9.2"])
def test_the_flags_that_trl_hands_on_are_those_of_accelerate(version: str) -> None:
    python = cpu_python("trl", version)
    answer = subprocess.run(
        [python, "-c", FLAGS], capture_output=True, text=True, check=True, timeout=120
    )
    file = Path(trl.__file__).parent / "audit" / "accelerate.json"
    assert json.loads(answer.stdout) == json.loads(file.read_text())["flags"]


@pytest.mark.parametrize("version", ["1.16.0", "1.9.2"])
def test_the_release_is_the_one_that_stands_beside_the_program(
    version: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(f"trl=={version}\n")
    assert library_of(program(tmp_path, "GRPO")) == ("trl", version)


def test_a_file_without_a_trainer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nprint(torch.ones(2))\n")
    with pytest.raises(EnvironmentFault, match="builds no trainer whose program orch can run"):
        library_of(path)
