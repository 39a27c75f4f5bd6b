"""A RayJob of KubeRay (ray.io/v1) that runs an experiment, as YAML for `kubectl apply`.

KubeRay starts a Ray, and on its head `orch run SPEC --wait`, which sends the cells to the job
server of that same Ray. So a RayJob that is tried again goes on where the last one stopped. The
manifest was held against the field names in tests/launch/ray/test_manifest.py and never applied to
a cluster. Secrets are references to keys of a Kubernetes secret called `orch`.
"""

import shlex
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from orchestrator.launch.ray.submit import DEFAULT_RUNNING, JobShape
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import RayOptions

SECRET = "orch"  # noqa: S105  (a name)
IMAGE, CLAIM = "IMAGE", "VOLUME-CLAIM"
"""Placeholders for what the site file does not say."""
SERVER = "http://127.0.0.1:8265"
_HEAD_CPUS, _BACKOFF = 2.0, 3


def rayjob_text(
    folder: RunFolder, arguments: Sequence[str], shapes: Sequence[JobShape], options: RayOptions
) -> str:
    """Return the RayJob as YAML."""
    import yaml

    return yaml.safe_dump(rayjob(folder, arguments, shapes, options), sort_keys=False)


def rayjob(
    folder: RunFolder, arguments: Sequence[str], shapes: Sequence[JobShape], options: RayOptions
) -> dict[str, Any]:
    """Return the RayJob that runs `orch run ARGUMENTS`. shapes: of the jobs of its cells."""
    python = options.python or "python"
    program = [python, "-m", "orchestrator", "run", *arguments, "--wait"]
    program.append(f"site.options.address={SERVER}")
    running = min(options.max_running or DEFAULT_RUNNING, len(shapes))
    # As many nodes as the largest cells need, so many of them at the same time.
    nodes = running * max((shape.nodes for shape in shapes), default=1)
    gpus = max((shape.gpus or shape.actors_gpus for shape in shapes), default=0)
    # Ray starts an actor only where its claim is free: a node has its share of the actors' CPUs.
    cpus = max((s.cpus + ceil(s.actors_cpus / s.nodes) for s in shapes), default=1.0)
    worker = {
        "groupName": "workers",
        "replicas": nodes,
        "minReplicas": 0,
        "maxReplicas": nodes,
        "rayStartParams": {},
        "template": _pod("ray-worker", max(cpus, 1.0), gpus, folder, options),
    }
    head = {"rayStartParams": {}, "template": _pod("ray-head", _HEAD_CPUS, 0, folder, options)}
    spec: dict[str, object] = {
        "entrypoint": f"exec {shlex.join(program)}",
        "submissionMode": "K8sJobMode",
        "backoffLimit": _BACKOFF,
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {"headGroupSpec": head, "workerGroupSpecs": [worker]},
    }
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in folder.experiment.lower())
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": f"orch-{name.strip('-')[:40]}"},
        "spec": spec,
    }


def _pod(
    name: str, cpus: float, gpus: int, folder: RunFolder, options: RayOptions
) -> Mapping[str, object]:
    limits: dict[str, object] = {"cpu": f"{cpus:g}"}
    if options.memory_gib:
        limits["memory"] = f"{options.memory_gib:g}Gi"
    if gpus:
        limits["nvidia.com/gpu"] = gpus
    runs_dir = str(folder.path.parent)
    container: dict[str, object] = {
        "name": name,
        "image": options.image or IMAGE,
        "workingDir": runs_dir,
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [{"name": "runs", "mountPath": runs_dir}],
    }
    plain = [{"name": each, "value": value} for each, value in options.env.items()]
    secret = [
        {"name": each, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": each}}}
        for each, source in options.secrets.items()
        if source is None
    ]
    if plain or secret:
        container["env"] = [*plain, *secret]
    claim = {"claimName": options.volume_claim or CLAIM}
    return {
        "spec": {
            "containers": [container],
            "volumes": [{"name": "runs", "persistentVolumeClaim": claim}],
        }
    }
