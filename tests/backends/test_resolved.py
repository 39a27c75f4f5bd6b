"""What a library fills in itself: keys that a launch does not give, resolved to the end.

tests/backends/test_accepted.py compares each key that a launch gives. Here are those that a library
derives from others: a model's tokenizer, its reference, a server's lengths. The cell's values are
no library's defaults.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import plugins
from orchestrator.records import LaunchPlan
from tests import golden
from tests.backends import child
from tests.backends.environments import cpu_python
from tests.backends.openrlhf.cells import asked_of_library
from tests.backends.skyrl import library as skyrl
from tests.backends.verl import library as verl

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

CHANGES: Mapping[str, Any] = {
    "model.path": "acme/odd-1b",
    "data.max_prompt_tokens": 111,
    "rollout.max_response_tokens": 222,
    "rollout.temperature": 0.7,
    "kl": {"estimator": "k3", "placement": "loss", "beta": 0.037},
}
DERIVED: Mapping[str, Mapping[str, object]] = {
    "verl": {
        "actor_rollout_ref.model.tokenizer_path": None,
        "data.tokenizer": None,
        "actor_rollout_ref.ref.fsdp_config.dtype": "bfloat16",
        "actor_rollout_ref.rollout.prompt_length": 111,
        "actor_rollout_ref.rollout.response_length": 222,
    },
    "skyrl": {
        "trainer.ref.model.path": "acme/odd-1b",
        "trainer.algorithm.temperature": 0.7,
        "trainer.bf16": True,
        "generator.inference_engine.model_dtype": "bfloat16",
    },
    "openrlhf": {},
    "trl": {"generation_batch_size": 1280, "fp16": False},
}
"""Library -> its resolved keys that the launch does not give, and their values."""
NAMES_MODELS = ("path", "name", "model", "tokenizer", "pretrain", "model_name_or_path")
FOREIGN = ("qwen", "llama", "mistral", "gemma", "gpt")


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), value


def other_models(resolved: Mapping[str, Any]) -> dict[str, str]:
    """The names in a configuration of models or tokenizers that are not the cell's."""
    return {
        key: value
        for key, value in resolved.items()
        if key.rpartition(".")[2] in NAMES_MODELS
        and not key.startswith("environment.skyrl_gym.")  # SkyRL's own environments, not used
        and isinstance(value, str)
        and any(word in value.lower() for word in FOREIGN)
    }


PARSE_TRL = """
import dataclasses, importlib, json, os, sys
for line in sys.stdin:
    script, folder = json.loads(line)
    os.chdir(folder)
    parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
    parts = parser.parse_args_and_config(args=["--config", f"{script}.yaml"])
    found = {k: v for each in parts for k, v in dataclasses.asdict(each).items()}
    print("ANSWER " + json.dumps(found, default=str), flush=True)
"""


def parsed_by_trl(version: str, plan: LaunchPlan, script: str, folder: Path) -> dict[str, Any]:
    """What a script's own parser makes of a launch, on a CPU."""
    options = yaml.safe_load(plan.files[f"{script}.yaml"])
    options |= {"use_cpu": True, "output_dir": "out"}
    (folder / f"{script}.yaml").write_text(yaml.safe_dump(options))
    (folder / "orch_reward.py").write_text("def task_reward(**_): ...\n")
    resolved: dict[str, Any] = child.ask(
        (cpu_python("trl", version), "-c", PARSE_TRL), [script, str(folder)]
    )
    # PEFT's word for every layer is a list of one on the command line, and a text after it.
    sent = {k: v[0] if v == ["all-linear"] else v for k, v in options.items()}
    differing = {key for key, value in sent.items() if resolved.get(key) != value}
    assert differing == {"report_to"}, "each option is read as it was sent; none is an empty list"
    return resolved


def resolved(library: str, version: str, plan: LaunchPlan, folder: Path) -> Mapping[str, Any]:
    """The configuration that a library's own parser makes of a launch."""
    if library == "verl":
        [answer] = verl.compose(version, [plan.argv[3:]], sorted(DERIVED[library]))
    elif library == "skyrl":
        [answer] = skyrl.ask(version, [plan.argv[2:]])
    elif library == "openrlhf":
        [answer] = asked_of_library(version, [plan.argv])
    else:
        answer = {"values": parsed_by_trl(version, plan, "grpo", folder)}
    found: Mapping[str, Any] = answer["values"]
    return found


@pytest.mark.parametrize(
    ("library", "version"),
    [(name, version) for name in DERIVED for version in plugins.load(name).versions],
)
def test_what_the_library_fills_in_is_the_cells(library: str, version: str, tmp_path: Path) -> None:
    machine = {"resources": {"num_nodes": 1, "gpus_per_node": 1 if library == "trl" else 8}}
    cell = golden.cell_of(library, version, {**CHANGES, **machine})
    plan = plugins.load(library).translate(cell, golden.PLACE)
    flat = dict(leaves(resolved(library, version, plan, tmp_path)))
    assert other_models(flat) == {}
    wanted = DERIVED[library]
    assert {key: flat.get(key, "(no such key)") for key in wanted} == wanted
