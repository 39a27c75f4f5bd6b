"""A sharded launch of TRL, with two processes on a CPU: FSDP2 itself, and no engine.

accelerate shards on accelerators only: the driver tells it that two processes on a CPU are such.
All else is the launch's: its arguments, which accelerate's own parser turns into variables, its
program, TRL's trainer.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.trl import BACKEND
from backends.trl.launch.orch_trl import is_whole, newest
from backends.trl.translate import SHARDED
from orchestrator.data import prepared
from orchestrator.launch.worker import link_policy
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Kl, Precision
from tests.backends.environments import cpu_python
from tests.backends.trl.cells import cell

RELEASE, STEPS, EVERY = "1.16.0", 4, 2
ON_CPU = {
    "use_vllm: true": "use_vllm: false",
    "use_cpu: false": "use_cpu: true",
    "gradient_checkpointing: true": "gradient_checkpointing: false",
}
DRIVER = """
import json, os, runpy, sys
import torch
import accelerate.state as state
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
torch.set_num_threads(1)
words = json.loads(sys.argv[1])
arguments = launch_command_parser().parse_args(words)
for name, value in prepare_multi_gpu_env(arguments).items():
    if name.startswith(("FSDP_", "ACCELERATE_")):
        os.environ[name] = value
os.environ["ACCELERATE_USE_CPU"] = "true"
begin = state.PartialState.__init__
def as_accelerators(self, cpu=False, **others):
    begin(self, cpu=cpu, **others)
    shared = self._shared_state
    if arguments.use_fsdp and shared.get("distributed_type") == DistributedType.MULTI_CPU:
        shared["distributed_type"] = DistributedType.MULTI_GPU
state.PartialState.__init__ = as_accelerators
sys.argv = [arguments.training_script, *arguments.training_script_args]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def asked(kl: Kl | None = None, **changes: Any) -> Cell:
    each = cell(
        kl or Kl(estimator="k3", placement="loss", beta=0.3),
        gpus=2,
        steps=STEPS,
        every=EVERY,
        precision=Precision(training="fp32"),
    )
    return each.but(**changes)


def prepared_launch(home: Path) -> tuple[AttemptPaths, list[str]]:
    """The folders of the launch, and the words after `accelerate launch`."""
    paths = AttemptPaths(home / "plan", home / "attempt", home / "checkpoints")
    for place in paths:
        place.mkdir(parents=True)
    plan = BACKEND.translate(asked(), paths)
    for name, text in plan.files.items():
        (paths.plan_dir / name).parent.mkdir(parents=True, exist_ok=True)
        for old, new in ON_CPU.items():
            assert name != "grpo.yaml" or old in text
            text = text.replace(old, new)
        (paths.plan_dir / name).write_text(text)
    prepared.make_shipped(plan)
    prepared.link(paths.plan_dir)
    link_policy("micro:elder", plan, paths.plan_dir)
    return paths, list(plan.argv[2:])


def train(home: Path, paths: AttemptPaths, words: list[str], port: int) -> None:
    driver = home / "driver.py"
    driver.write_text(DRIVER)
    python = str(cpu_python("trl", RELEASE))
    start = [python, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"]
    done = subprocess.run(
        [*start, str(port), str(driver), json.dumps(words)],
        cwd=paths.plan_dir,
        env={
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(home / "datasets"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def lines(paths: AttemptPaths) -> list[dict[str, Any]]:
    """The lines of train steps; those of validations are left out."""
    text = (paths.attempt_dir / "trl.jsonl").read_text()
    every = [json.loads(line) for line in text.splitlines()]
    return [line for line in every if "loss" in line["values"]]


def weights(checkpoint: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(checkpoint / "model.safetensors"))


def distance(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert {str(each.dtype) for each in first.values()} == {"float32"}
    return max(float(abs(first[name] - second[name]).max()) for name in first)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long(200)
def test_shards_train_as_whole_models_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    sharded, words = prepared_launch(tmp_path / "sharded")
    train(tmp_path / "sharded", sharded, words, 29_611)
    logged = lines(sharded)
    assert [line["step"] for line in logged] == [1, 2, 3, 4]
    # the reference of every process is the policy before training: nothing lies between them
    assert logged[0]["values"]["kl"] == pytest.approx(0, abs=1e-6)
    assert logged[-1]["values"]["kl"] > 1e-3
    half, end = (sharded.checkpoints_dir / f"checkpoint-{step}" for step in (2, 4))
    assert (half / "optimizer.bin").exists()  # FSDP's: the launch did shard
    assert is_whole(half)
    assert is_whole(end)

    whole, words = prepared_launch(tmp_path / "whole")
    at = words.index(SHARDED[0])
    plain = [*words[:at], "--multi_gpu", *words[at + len(SHARDED) + 2 :]]
    train(tmp_path / "whole", whole, plain, 29_612)
    assert not (whole.checkpoints_dir / "checkpoint-2" / "optimizer.bin").exists()
    assert distance(half, whole.checkpoints_dir / "checkpoint-2") < 1e-4

    resumed, words = prepared_launch(tmp_path / "resumed")
    kept = resumed.checkpoints_dir / half.name
    shutil.copytree(half, kept)
    cut = resumed.checkpoints_dir / end.name
    shutil.copytree(end, cut)
    with (cut / "optimizer.bin").open("r+b") as file:
        file.truncate(1000)  # as a kill leaves it
    assert newest(resumed.checkpoints_dir) == kept
    train(tmp_path / "resumed", resumed, words, 29_613)
    assert [line["step"] for line in lines(resumed)] == [3, 4]
    assert distance(end, cut) < 1e-5
