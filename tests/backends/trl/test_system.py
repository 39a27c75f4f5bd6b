"""TRL's own gradients with two values of each setting of `system` that was measured.

With AdamW's epsilon at 1 and a learning rate of 1 the first update is g / (|g| + 1), a function of
each gradient alone, so the weights after one train step show the gradients. One process of TRL
trains every variant. backends/trl/system.json keeps what was measured.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.trl import BACKEND
from orchestrator.data import prepared
from orchestrator.identity import fingerprint
from orchestrator.launch.worker import link_policy
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Settings, System
from tests.backends.environments import cpu_python

RELEASE = "1.16.0"
KEPT = Path(__file__).parents[3] / "backends" / "trl" / "system.json"
LOSSES: dict[str, dict[str, Any]] = {
    "token_mean": {"aggregation": "token_mean"},
    "sequence_mean": {"aggregation": "sequence_mean"},
    "constant": {"aggregation": "constant", "constant_tokens": 1},
    "token_mean, entropy bonus": {"aggregation": "token_mean", "entropy_bonus": 0.1},
}
VARIANTS = {
    "whole": System(micro_batch=64, gradient_checkpointing=False),
    "micro_batch": System(micro_batch=8, gradient_checkpointing=False),
    "gradient_checkpointing": System(micro_batch=64, gradient_checkpointing=True),
}
DRIVER = """
import json, os, runpy, sys
import torch
from safetensors.torch import load_file
torch.set_num_threads(1)
moved, lengths = {}, []
for name, (folder, words, begun, ended) in json.load(open(sys.argv[1])).items():
    os.chdir(folder)
    sys.argv, sys.path[:0] = words, [folder]
    for module in [m for m in sys.modules if m.startswith("orch_")]:
        del sys.modules[module]
    runpy.run_path(words[0], run_name="__main__")
    one, other = load_file(begun), load_file(ended)
    lines = open(words[words.index("--metrics") + 1]).readlines()
    logged = next(v for v in (json.loads(x)["values"] for x in lines) if "grad_norm" in v)
    lengths.append([logged["completions/min_length"], logged["completions/max_length"]])
    moved[name] = torch.cat([(other[k].float() - one[k].float()).flatten() for k in sorted(one)])
far = {}
for name, change in moved.items():
    loss, variant = name.split("/")
    whole = moved[loss + "/whole"]
    if variant != "whole":
        far.setdefault(loss, {})[variant] = float((change - whole).norm() / whole.norm())
print("MEASURED", json.dumps({"distances": far, "lengths": lengths[0]}))
"""
"""Relative distance of the gradients of each variant to those of the whole batch at once."""


def cell(loss: dict[str, Any], system: System) -> Cell:
    settings = Settings.model_validate(
        {
            "model": {"name": "elder", "path": "micro:elder", "chat_template": "none"},
            "data": {
                "name": "sort",
                "path": "micro:sort",
                "reward": "exact",
                "max_prompt_tokens": 8,
            },
            "advantage": {"estimator": "rloo"},
            "loss": loss,
            "kl": {"estimator": "k3", "placement": "loss", "beta": 0.3},
            # hot: the lengths of responses must differ, or every divisor is the same
            "rollout": {"group_size": 8, "max_response_tokens": 12, "temperature": 2.0},
            "batch": {"num_prompts": 8},
            "optimizer": {"learning_rate": 1.0, "epsilon": 1.0, "max_grad_norm": None},
            "num_train_steps": 1,
            "backend": {"name": "trl", "version": RELEASE},
            "precision": {"training": "fp32"},
        }
    )
    return Cell(
        id=fingerprint(settings),
        slug="measured",
        studies=(),
        axes={},
        settings=settings,
        system=system,
    )


def measured(folder: Path) -> dict[str, Any]:
    """The distances, by loss and variant, and the shortest and longest response."""
    from orchestrator import plugins

    runs = {}
    for name, loss in LOSSES.items():
        for variant, system in VARIANTS.items():
            home = folder / f"{len(runs)}"
            paths = AttemptPaths(home / "plan", home / "attempt", home / "checkpoints")
            for place in paths:
                place.mkdir(parents=True)
            each = cell(
                loss,
                system.model_copy()
                if "entropy" not in name
                else System(gradient_checkpointing=system.gradient_checkpointing),
            )
            if "entropy" in name:
                backend = each.settings.backend.model_copy(
                    update={"extra": (("per_device_train_batch_size", str(system.micro_batch)),)}
                )
                each = each.but(settings=each.settings.but(backend=backend))
            plan = BACKEND.translate(each, paths)
            for file, text in plan.files.items():
                (paths.plan_dir / file).parent.mkdir(parents=True, exist_ok=True)
                (paths.plan_dir / file).write_text(text)
            prepared.make_shipped(plan)
            prepared.link(paths.plan_dir)
            link_policy("micro:elder", plan, paths.plan_dir)
            begun = plugins.shipped_policy("micro:elder")
            runs[f"{name}/{variant}"] = (
                str(paths.plan_dir),
                list(plan.argv[1:]),
                str(begun / "model.safetensors"),
                str(paths.checkpoints_dir / "checkpoint-1" / "model.safetensors"),
            )
    (folder / "runs.json").write_text(json.dumps(runs))
    (folder / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [str(cpu_python("trl", RELEASE)), str(folder / "driver.py"), str(folder / "runs.json")],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(folder)},
        check=False,
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("MEASURED ")), None)
    assert line is not None, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(line.removeprefix("MEASURED "))
    return found


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long(100)
def test_what_was_measured_is_measured_again(tmp_path: Path) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    found = measured(tmp_path)
    shortest, longest = found["lengths"]
    assert shortest < longest
    for loss, variants in found["distances"].items():
        for variant, distance in variants.items():
            before = kept["distances"][loss][variant]
            # rounding moves in its last digits; another divisor moves all of it
            assert (distance < kept["rounding"]) == (before < kept["rounding"]), (loss, variant)
