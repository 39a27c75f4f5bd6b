"""A spec to begin with: a starter, or a copy of a shipped spec; with the schema beside it."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import OrchError, did_you_mean
from orchestrator.files import write_text
from orchestrator.spec.schema import schema
from orchestrator.spec.shipped import shipped_folder, shipped_names

USUAL_GPUS = 4
"""GPUs of a node, if no scheduler answers."""

SCHEMA = "spec.schema.json"
MODELINE = f"# yaml-language-server: $schema={SCHEMA}\n"
"""Editors with yaml-language-server complete, explain and check a file that begins with it."""

STARTER = """\
# A starter experiment. It runs on this machine as it is, at micro scale:
#
#   orch plan {file}
#   orch run {file}
#
# Every field is described by `orch init --schema`; an editor with yaml-language-server shows it.

name: {name}
question: Does k1-in-reward reach a higher accuracy than k3-in-loss at the same beta?
seeds: [0, 1, 2]

studies:
  estimators:
    title: Two estimators at two strengths, beside no KL at all
    base:
      model: {{name: my-model, path: Qwen/Qwen2.5-7B}}
      data: {{name: math, path: DigitalLearningGmbH/MATH-lighteval, num_prompts: 7500}}
      advantage: {{estimator: rloo}}
      loss: {{aggregation: token_mean}}
      rollout: {{group_size: 5, max_response_tokens: 1024}}
      batch: {{num_prompts: 256}}
      optimizer: {{learning_rate: 1.0e-6}}
      num_train_steps: 250
      backend: {{name: verl}}
      resources: {{num_nodes: 1, gpus_per_node: {gpus}}}
      cadence: {{checkpoint_every_steps: 50}}
    axes:
      kl:
        - {{estimator: none}}
        - product: {{estimator: [k1], placement: [reward], beta: [0.1, 0.3]}}
        - product: {{estimator: [k3], placement: [loss], beta: [0.1, 0.3]}}

claims:
  k1_reward_scores_higher: >-
    eval/accuracy_in_domain[kl=k1.reward] > eval/accuracy_in_domain[kl=k3.loss]
    at beta in [0.1, 0.3]
"""


class WrittenFile(NamedTuple):
    """A file that was written."""

    path: Path
    following: str = ""
    """The command that comes next; empty for a file that needs none."""


def write_starter(path: Path, site: str = "", gpus: int = 0) -> list[WrittenFile]:
    """Write the starter spec to `path`. Return the written files.

    site: the name of a site file that the spec uses. gpus: the GPUs of a node; 0: as usual.
    """
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", path.stem).lstrip("._+-")[:64] or "experiment"
    text = STARTER.format(name=name, file=shlex.quote(path.name), gpus=gpus or USUAL_GPUS)
    if site:
        text = text.replace("\nname: ", f"\ndefaults: [site: {site}, _self_]\n\nname: ", 1)
    return write_spec(path, text)


def copy_shipped(name: str, path: Path) -> list[WrittenFile]:
    """Write a shipped spec to `path`. Return the written files. Raise OrchError for an unknown
    name."""
    names = shipped_names()
    if name not in names:
        hint = did_you_mean(name, names) or f" (there are: {', '.join(names)})"
        raise OrchError(f"no shipped spec is called '{name}'{hint}")
    return write_spec(path, (shipped_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def write_spec(path: Path, text: str) -> list[WrittenFile]:
    """Write a spec, and the schema that its first line names beside it."""
    schema_path = path.parent / SCHEMA
    write_text(path, MODELINE + text)
    write_text(schema_path, json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
    return [WrittenFile(schema_path), WrittenFile(path, f"orch plan {shlex.quote(str(path))}")]
