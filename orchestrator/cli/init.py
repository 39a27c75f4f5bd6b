"""orch init: a starter experiment, and on a cluster a site file from what the cluster answers."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.errors import OrchError, did_you_mean
from orchestrator.files import write_text
from orchestrator.launch.slurm.cluster import has_controller, read_cluster
from orchestrator.site.write import gpus_per_node, site_file
from orchestrator.spec import schema
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
# Every field is described by `orch schema`; an editor with yaml-language-server shows it.

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


@click.command(short_help="Write a starter experiment, or a shipped one to change.")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--site-only", is_flag=True, help="On a cluster: write the site file alone.")
@click.option(
    "--from", "shipped", metavar="NAME", help="Copy this shipped spec (`orch list` shows them)."
)
@common.as_json
def command(path: Path | None, site_only: bool, shipped: str | None, as_json: bool) -> None:
    """Write a starter spec to PATH (default experiment.yaml). Never overwrites a file.

    With --from, PATH (default NAME.yaml) becomes a copy of a shipped spec. orch finds its
    config groups by name; a folder of that name beside PATH has priority.

    On a SLURM cluster, orch asks for its partitions, GPUs, limits and accounts, and writes them
    to site/<cluster>.yaml beside the spec, which then uses this site.
    """
    if path is None:
        path = Path(f"{shipped or 'experiment'}.yaml")
    if path.suffix != ".yaml":
        path = path.with_name(path.name + ".yaml")
    if path.exists() and not site_only:
        raise OrchError(f"{path} exists; choose another name: orch init NAME.yaml")
    with _printed(as_json) as written:
        if shipped is not None:
            _copy(shipped, path, written)
            return
        cluster = write_site(path.parent / "site", written)
        if site_only and cluster is None:
            raise OrchError("there is no SLURM cluster here, so there is no site file to write")
        if not site_only:
            _write_starter(path, cluster, written)


@contextmanager
def _printed(as_json: bool) -> Iterator["Written"]:
    """Print what was written inside, in the order of writing."""
    written: Written = []
    yield written
    if as_json:
        print_json({"written": [str(file) for file, _ in written]})
        return
    for file, following in written:
        click.echo(f"wrote {file}" + (f". Next: {following}" if following else ""))


Written = list[tuple[Path, str]]
"""Files, each with the command that comes next; empty for what goes without saying."""


def _write_starter(path: Path, cluster: tuple[str, int] | None, written: Written) -> None:
    """Write the starter spec, for the site and the GPUs of a node where there is a cluster."""
    site, gpus = cluster or (None, 0)
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", path.stem).lstrip("._+-")[:64] or "experiment"
    text = STARTER.format(name=name, file=shlex.quote(path.name), gpus=gpus or USUAL_GPUS)
    if site is not None:
        text = text.replace("\nname: ", f"\ndefaults: [site: {site}, _self_]\n\nname: ", 1)
    _write(path, text, written)


def _write(path: Path, text: str, written: Written) -> None:
    """Write a spec, and the schema that its first line names beside it."""
    write_text(path, MODELINE + text)
    write_text(path.parent / SCHEMA, json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
    written += [(path.parent / SCHEMA, ""), (path, f"orch plan {shlex.quote(str(path))}")]


def _copy(name: str, path: Path, written: Written) -> None:
    """Write a shipped spec to `path`. Raise OrchError if there is none of this name."""
    names = shipped_names()
    if name not in names:
        hint = did_you_mean(name, names) or f" (there are: {', '.join(names)})"
        raise OrchError(f"no shipped spec is called '{name}'{hint}")
    source = shipped_folder() / f"{name}.yaml"
    _write(path, source.read_text(encoding="utf-8"), written)


def write_site(folder: Path, written: Written) -> tuple[str, int] | None:
    """Write a site file of this machine's cluster. Return its name and the GPUs of a node, or None
    where there is no cluster. An existing file stays as it is."""

    if not has_controller():
        return None

    cluster = read_cluster()
    if cluster is None:
        return None
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in cluster.name) or "cluster"
    file = folder / f"{name}.yaml"
    if file.exists():
        say(f"{file} is there already and is left as it is")
        return name, gpus_per_node(cluster)
    write_text(file, site_file(cluster))
    written.append((file, f"orch doctor --site {file}"))
    return name, gpus_per_node(cluster)
