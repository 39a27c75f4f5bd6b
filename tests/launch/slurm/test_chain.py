"""Training, export, evaluation and report as one chain of jobs, by the command line alone."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster
from command_line import orch

from tests.launch.slurm import standin_verl

SPEC = """\
defaults: [site: here, _self_]
name: chain
seeds: [0, 1]
studies:
  all:
    base:
      model: {name: qwen2.5-0.5b, path: Qwen/Qwen2.5-0.5B}
      data: {name: BREAKS, path: sums.jsonl, num_prompts: 16}
      advantage: {estimator: rloo}
      loss: {aggregation: token_mean}
      rollout: {group_size: 5, max_response_tokens: 64}
      batch: {num_prompts: 16}
      optimizer: {learning_rate: 1.0e-6}
      num_train_steps: 30
      backend: {name: verl, version: 0.9.1}
      resources: {num_nodes: 1, gpus_per_node: 2, hours: 0.5}
    axes: {kl: [{estimator: k1, placement: reward, beta: 0.3}]}
claims: {it_learns: "eval/in_domain/mean[kl=k1.reward] >= 0.3"}
evaluation:
  tasks:
    - {name: micro_sort, domain: in, repeats: 2, max_items: 32, chat_template: none}
    - {name: micro_copy, domain: out, repeats: 2, max_items: 32, chat_template: none}
  sampling: {max_response_tokens: 7}
  engine: {name: hf}
"""


def write_spec(folder: Path, data: str) -> Path:
    """Write chain.yaml, its site and its prompts. Return the stand-in's environment."""
    place = standin_verl.environment(folder / "verl's env")
    problems = [{"question": f"What is 1 + {n}?", "answer": str(1 + n)} for n in range(16)]
    lines = "".join(json.dumps(each) + "\n" for each in problems)
    (folder / "sums.jsonl").write_text(lines)
    (folder / "validation.jsonl").write_text(lines)
    (folder / "chain.yaml").write_text(SPEC.replace("BREAKS", data))
    (folder / "site").mkdir()
    options = {"memory_gib": 2, "environments": {"verl": {"venv": str(place)}}, "gres": "gpu:2"}
    (folder / "site" / "here.yaml").write_text(json.dumps({"kind": "slurm", "options": options}))
    return place


@pytest.mark.slow
def test_train_export_evaluate_report(cluster: Cluster, tmp_path: Path, house: Path) -> None:
    """Also of a cell whose numbers are no longer finite: it has ended, as a crash of no other kind.

    Its last finite checkpoint is evaluated.
    """
    place = write_spec(tmp_path, standin_verl.BREAKS)

    def call(*words: str) -> "subprocess.CompletedProcess[str]":
        done = orch(tmp_path, *words, PYTHONPATH=str(house))
        print("$ orch", *words, done.stdout, done.stderr, sep="\n")
        assert "Traceback" not in done.stderr, done.stderr
        return done

    assert call("data", "prepare", "chain.yaml").returncode == 0
    done = call("run", "chain.yaml", "--wait")
    assert done.returncode == 0
    shown = json.loads(call("status", "chain.yaml", "--json").stdout)[0]
    assert shown["states"] == {"succeeded": 2}
    assert shown["cluster"]["evaluations"] == {"succeeded": 2}
    assert 0 < shown["gpu_hours"]["used"] < 0.2
    for cell in (tmp_path / "runs" / "chain" / "cells").iterdir():
        (record,) = cell.glob("exports/*/export.json")
        assert json.loads(record.read_text())["environment"]["venv"] == str(place)
        assert (record.parent / "huggingface" / "model.safetensors").exists()
        assert not list(cell.glob("checkpoints/**/*.safetensors")), "verl left shards alone"
    told = (tmp_path / "runs" / "chain" / "report" / "report.md").read_text()
    assert "runs collapsed: 1 of 2" in told
    scores = (tmp_path / "runs" / "chain" / "cells").glob("*/eval/*.json")
    steps = {json.loads(each.read_text())["asked"]["step"] for each in scores}
    assert steps == {30, 20}, "of the run whose numbers broke, the last checkpoint before"


@pytest.mark.slow
def test_a_launch_that_was_taken_away_trains_by_sbatch_alone(
    cluster: Cluster, tmp_path: Path, house: Path
) -> None:
    """`orch show SPEC -w seed=0 --out DIR`, then plain sbatch in a shell with the library."""
    place = write_spec(tmp_path, "sums")
    chosen = ("chain.yaml", "-w", "seed=0", "site.options.cpus_per_task=2")
    assert orch(tmp_path, "data", "prepare", "chain.yaml", PYTHONPATH=str(house)).returncode == 0
    done = orch(tmp_path, "show", *chosen, "--out", "away", PYTHONPATH=str(house))
    assert done.returncode == 0, done.stderr
    away = tmp_path / "away"
    assert (away / "data" / "train.parquet").is_file(), "its prompts are copies"
    # The stand-in asks orch for the cell that verl would train.
    shown = json.loads(orch(tmp_path, "show", *chosen, "--json", PYTHONPATH=str(house)).stdout)
    (tmp_path / "cell.json").write_text(json.dumps(shown["cell"]))
    own = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(house)}
    sent = subprocess.run(
        ["sbatch", "--wait", "launch.sh"],  # noqa: S607 - as a person types it
        cwd=away,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    log = "".join(path.read_text() for path in away.glob("slurm-*.out"))
    assert sent.returncode == 0, sent.stderr + log
    (curve,) = away.glob("output/verl.*.jsonl")
    assert json.loads(curve.read_text().splitlines()[-1])["step"] == 30
    assert list(away.glob("checkpoints/*/global_step_30/actor/model_world_size_2_rank_1.pt"))
