"""Trains a real library on this machine with the launch that orch emits.

The plan is `translate`'s, made fit for a CPU by `cpu_launch`; the prompts are those that `orch data
prepare` makes; the environment is the one that `orch env create LIBRARY@VERSION --cpu` makes.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.prove import scaled_down
from lab.prove.scaled_down import CONTENT_ONLY
from orchestrator import plugins
from orchestrator.environments.lock import Environment
from orchestrator.metrics.names import VALIDATION
from orchestrator.records import AttemptPaths, Cell, Checkpoint, MetricPoint
from orchestrator.rundir import CellDir
from orchestrator.settings import Cadence
from tests.backends import child

POLICY = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "elder"
TWICE = CONTENT_ONLY.replace("{{ message['content'] }}", "{{ message['content'] * 2 }}")
"""A chat template that nobody may apply: its prompts are too long to be trained on."""
STEPS, GROUP, PROMPTS = 20, 4, 4
K1 = {"kl": {"estimator": "k1", "placement": "reward", "beta": 0.05}}
K3 = {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.05}}
STALE_K1 = {**K1, "max_staleness_steps": 2}


class Trained(NamedTuple):
    """A run that ended."""

    cell: Cell
    place: AttemptPaths
    policy: Path
    logged: list[MetricPoint]
    checkpoints: list[Checkpoint]

    @property
    def points(self) -> list[MetricPoint]:
        """The train steps."""
        return [point for point in self.logged if "train/reward_mean" in point.values]

    @property
    def validation(self) -> dict[int, float]:
        """Train step -> the library's own validation."""
        return {p.step: p.values[VALIDATION] for p in self.logged if VALIDATION in p.values}

    def values(self, name: str) -> list[float]:
        """A metric of every step."""
        return [point.values[name] for point in self.points]


def policy(folder: Path, template: str) -> Path:
    """A shipped policy with a chat template."""
    shutil.copytree(POLICY, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return folder


def word(number: int) -> str:
    """Five digits, another for every number below 100,000."""
    return f"{number * 48611 % 100_000:05d}"


def prompts(folder: Path) -> Path:
    """Words to copy, train and validation, as a file that a spec's `data.path` can name."""
    folder.mkdir()
    for name, numbers in (("train", range(64)), ("validation", range(64, 72))):
        words = map(word, numbers)
        rows = [json.dumps({"question": f"C{each}=", "answer": each}) for each in words]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "train.jsonl"


def cell(
    library: str,
    version: str,
    model: Path,
    data: Path,
    changes: Mapping[str, Any],
) -> Cell:
    """RLOO on words to copy; `changes`: fields of Settings, of the model only those that differ."""
    settings = {
        "data": {
            "name": "copy",
            "path": str(data),
            "reward": "exact",
            "max_prompt_tokens": 10,
            "num_prompts": 64,
        },
        "rollout": {"group_size": GROUP, "max_response_tokens": 6},
        "batch": {"num_prompts": PROMPTS},
        "num_train_steps": STEPS,
        **changes,
        "model": {"name": "elder", "path": str(model), **changes.get("model", {})},
    }
    made = scaled_down.cell_of(library, version, settings)
    return scaled_down.on_few_gpus(made.but(cadence=Cadence(checkpoint_every_steps=STEPS // 2)))


def train(
    library: str,
    version: str,
    python: Path,
    folder: Path,
    changes: Mapping[str, Any],
    *,
    reward_code: str = "",
    evaluate_every: int | None = None,
) -> Trained:
    """Train a cell to its end. Raise AssertionError, with the end of the log, if it fails."""
    is_plain = changes.get("model", {}).get("chat_template") == "none"
    model = policy(folder / "policy", TWICE if is_plain else CONTENT_ONLY)
    trained = cell(library, version, model, prompts(folder / "prompts"), changes)
    cadence = trained.cadence.model_copy(update={"evaluate_every_steps": evaluate_every})
    trained = trained.model_copy(update={"reward_code": reward_code, "cadence": cadence})
    cell_dir = CellDir(folder / "cells" / trained.id)
    environment = Environment(library, version, "cpu", python.parents[1], "")
    _, ending = scaled_down.train(trained, cell_dir, environment, exact=False, patience=2)
    attempt = cell_dir.attempts()[-1]
    logs = [attempt.stdout, attempt.stderr, *sorted((attempt.path / "logs").glob("*.stdout"))]
    said = [f"\n== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs]
    assert ending.state == "succeeded", "".join([ending.message, *said])
    backend = plugins.load(library)
    return Trained(
        trained,
        cell_dir.paths(attempt),
        model,
        list(backend.read_metrics(attempt.path)),
        backend.find_checkpoints(cell_dir.checkpoints),
    )


def dtypes(checkpoint: Path) -> set[str]:
    """The number formats of a saved policy's weights."""
    raw = (checkpoint / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {tensor["dtype"] for name, tensor in header.items() if name != "__metadata__"}


def distances(python: Path, base: Path, adapter: Path, merged: Path) -> dict[str, float]:
    """The largest difference of a logit from what PEFT makes of an adapter: of the merged policy,
    and of the base."""
    program = f"""
import json, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
ids = torch.arange(3, 13)[None]
load = lambda path: AutoModelForCausalLM.from_pretrained(path).float()
with torch.no_grad():
    of = {{name: load(path)(ids).logits for name, path in
          (("merged", {str(merged)!r}), ("base", {str(base)!r}))}}
    wanted = PeftModel.from_pretrained(load({str(base)!r}), {str(adapter)!r})(ids).logits
print(json.dumps({{name: (each - wanted).abs().max().item() for name, each in of.items()}}))
"""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def scores(policies: Sequence[Path], python: Path, count: int = 64) -> list[float]:
    """The mean probability that each saved policy gives to the right answer, by transformers in an
    environment: of words that no prompt has, and without sampling."""
    program = f"""
import sys, json, math
sys.path.insert(0, {str(Path(__file__).parents[2] / "lab" / "cpu")!r})
from orch_cpu_sampler import Sampler
words = {[word(number) for number in range(1000, 1000 + count)]!r}
means = []
for policy in {list(map(str, policies))!r}:
    sampler = Sampler(policy)
    tokens = sampler.tokenizer
    prompts = tokens(["C" + word + "=" for word in words])["input_ids"]
    answers = tokens(words, add_special_tokens=False)["input_ids"]
    rows = [[*p, *answer, tokens.eos_token_id] for p, answer in zip(prompts, answers)]
    chances = [math.exp(sum(row[len(p):])) for row, p in zip(sampler.score(rows), prompts)]
    means.append(sum(chances) / {count})
print(json.dumps(means))
"""
    parent = child.Imported(python, ("torch", "transformers.models.llama.modeling_llama"))
    done = child.forked(parent, program, (), Path.cwd())
    assert done.returncode == 0, done.stderr[-2000:]
    means: list[float] = json.loads(done.stdout.splitlines()[-1])
    return means
