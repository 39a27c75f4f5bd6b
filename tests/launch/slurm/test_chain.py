"""Training, export, evaluation and report as one chain of jobs, by the command line alone."""

import json
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


@pytest.mark.slow
def test_train_export_evaluate_report(cluster: Cluster, tmp_path: Path, house: Path) -> None:
    """Also of a cell whose numbers are no longer finite: it has ended, as a crash of no other kind.

    Its last finite checkpoint is evaluated.
    """
    place = standin_verl.environment(tmp_path / "verl's env")
    problems = [{"question": f"What is 1 + {n}?", "answer": str(1 + n)} for n in range(16)]
    lines = "".join(json.dumps(each) + "\n" for each in problems)
    (tmp_path / "sums.jsonl").write_text(lines)
    (tmp_path / "validation.jsonl").write_text(lines)
    (tmp_path / "chain.yaml").write_text(SPEC.replace("BREAKS", standin_verl.BREAKS))
    (tmp_path / "site").mkdir()
    options = {"memory_gib": 2, "environments": {"verl": {"venv": str(place)}}, "gres": "gpu:2"}
    (tmp_path / "site" / "here.yaml").write_text(json.dumps({"kind": "slurm", "options": options}))

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
