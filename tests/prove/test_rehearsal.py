"""What `orch prove --rehearse` would train, and all in which that differs from the launch.

That the real library trains it is tested beside the library (tests/backends/verl/test_real.py).
"""

from pathlib import Path

import pytest

from backends.verl.lab.cpu_launch import split
from orchestrator import plugins
from orchestrator.errors import EnvironmentFault, OrchError, UnsupportedSetting
from orchestrator.lab.cpu import CpuLaunch
from orchestrator.lab.prove import real
from orchestrator.lab.prove.scaled_down import (
    NOWHERE,
    WANTED,
    cell_of,
    cells_of,
    environment_of,
    on_cpu,
    scaled_down,
)
from orchestrator.launch.endings import Ending
from orchestrator.library.launches import UnreadableScript
from orchestrator.settings import Kl
from tests.backends.specs import declared
from tests.command_line import ROOT, orch

SCRIPT = """#!/bin/bash
MODEL=Qwen/Qwen2.5-3B-Instruct
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \\
    data.train_batch_size=512 data.max_prompt_length=512 data.max_response_length=1024 \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 \\
    trainer.total_training_steps=100 $@
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "it's mine.sh"
    path.write_text(SCRIPT)
    return path


def test_a_scripts_objective_is_kept_and_its_size_is_not(script: Path, tmp_path: Path) -> None:
    (chosen,) = real.chosen_of_script(script, tmp_path / "runs")
    settings = chosen.small.cell.settings
    assert settings.kl == Kl(estimator="k3", placement="loss", beta=0.001)
    assert settings.advantage.estimator == "grpo"
    assert (settings.rollout.group_size, settings.batch.num_minibatches) == (5, 2)
    assert settings.num_train_steps == real.BATCHES * 2
    assert settings.backend.version == "0.9.1"


def test_a_script_keeps_its_other_arguments_and_every_change_is_listed(
    script: Path, tmp_path: Path
) -> None:
    (chosen,) = real.chosen_of_script(script, tmp_path / "runs")
    launch = on_cpu(chosen.small.cell, NOWHERE, chosen.argv)
    given, here = split(chosen.argv), split(launch.plan.argv)
    assert here["data.truncation"] == "error"
    assert "data.truncation" not in split(on_cpu(chosen.small.cell, NOWHERE).plan.argv)
    listed = {each.name for each in launch.deviations if each.kind == "argument"}
    silent = {
        key
        for key in given.keys() & here.keys() - listed
        if given[key].strip("\"'") != here[key].strip("\"'")
    }
    assert not silent - {"trainer.logger"}, silent
    assert given.keys() <= here.keys()
    assert {"actor_rollout_ref.model.path", "trainer.n_gpus_per_node"} <= listed


def test_what_is_no_launch_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "nothing.sh"
    path.write_text("echo hello\n")
    with pytest.raises((UnreadableScript, EnvironmentFault), match="no launch"):
        real.chosen_of_script(path, tmp_path / "runs")
    path.write_text(SCRIPT.replace("low_var_kl", "full"))
    with pytest.raises(OrchError, match="kl_loss_type"):
        real.chosen_of_script(path, tmp_path / "runs")


def test_declared_cells_that_are_one_training_are_trained_once(tmp_path: Path) -> None:
    cells = [c for c in declared("comedy_full") if c.settings.backend.name == "verl"]
    chosen = real.chosen(cells, tmp_path)
    assert len(chosen) < len(cells)
    assert sum(len(each.declared) for each in chosen) == len(cells)
    for each in chosen:
        on_cpu(each.small.cell, NOWHERE)
        (one,) = {c.settings.kl.model_dump_json() for c in each.declared}
        assert one == each.small.cell.settings.kl.model_dump_json()


def test_a_proofs_cells_ask_for_fp32() -> None:
    cells = dict(cells_of("verl", "0.9.1"))
    assert cells.keys() == WANTED.keys()
    assert {c.settings.precision.training for c in cells.values()} == {"fp32"}
    with pytest.raises(EnvironmentFault, match="takes none"):
        list(cells_of("verl", "0.8.0"))


def test_a_release_that_cannot_be_run_here_is_refused(tmp_path: Path) -> None:
    cell = next(c for c in declared("comedy_full") if c.settings.backend.name == "verl")
    old = cell.model_copy(
        update={
            "settings": cell.settings.model_copy(
                update={"backend": cell.settings.backend.model_copy(update={"version": "0.8.0"})}
            )
        }
    )
    with pytest.raises(UnsupportedSetting, match="without a GPU"):
        on_cpu(old, NOWHERE)
    with pytest.raises(EnvironmentFault):
        environment_of("verl", "0.8.0")
    assert not plugins.load("micro").dumps_rollouts


@pytest.mark.parametrize(
    ("library", "version"),
    [("openrlhf", "0.11.2"), ("prime_rl", "0.5.0"), ("skyrl", "0.4.0"), ("trl", "1.16.0")],
)
def test_every_library_is_rehearsed_through_the_protocol(
    library: str, version: str, tmp_path: Path
) -> None:
    settings = {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.05}}
    chosen = scaled_down(cell_of(library, version, settings), tmp_path, batches=2)
    assert chosen.cell.settings.kl == Kl(estimator="k3", placement="loss", beta=0.05)
    launch = on_cpu(chosen.cell, NOWHERE)
    assert launch.plan.argv
    assert launch.deviations


def test_a_second_rehearsal_begins_anew(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on from the first one's last checkpoint, and trained a step that nobody asked for."""
    (chosen,) = real.chosen_of_script(script, tmp_path / "runs")
    left = tmp_path / "runs" / "cells" / chosen.small.cell.directory / "checkpoints" / "step-8"
    left.mkdir(parents=True)

    def train(*_: object, **__: object) -> tuple[CpuLaunch, Ending]:
        assert not left.exists()
        return on_cpu(chosen.small.cell, NOWHERE), Ending("failed", message="it was not run")

    monkeypatch.setattr(real, "environment_of", lambda *_: None)
    monkeypatch.setattr(real, "train", train)
    assert real.rehearse(chosen, tmp_path / "runs").ending.message == "it was not run"


@pytest.mark.slow
def test_the_command_needs_an_environment_and_says_how_to_make_it(tmp_path: Path) -> None:
    spec = ROOT / "experiments/smoke.yaml"
    said = orch(
        tmp_path,
        "prove",
        "--rehearse",
        spec,
        "-w",
        "kl.estimator=k1",
        f"site.runs_dir={tmp_path}",
        ORCH_ENVIRONMENTS=str(tmp_path / "none"),
    )
    assert said.returncode == 1
    assert "`orch env create verl@0.9.1 --cpu` makes one" in said.stderr
    assert "Traceback" not in said.stderr
