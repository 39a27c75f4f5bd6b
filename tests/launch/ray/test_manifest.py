"""The RayJob that `orch run --dry-run` prints, held against a model of KubeRay's fields."""

from collections.abc import Iterator
from typing import Any

import yaml

from orchestrator.launch.ray.manifest import rayjob_text
from orchestrator.launch.ray.submit import JobShape
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import RayOptions

CONTAINER = {
    "name": str,
    "image": str,
    "workingDir": str,
    "resources": {"limits": dict, "requests": dict},
    "volumeMounts": [{"name": str, "mountPath": str}],
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
}
POD = {
    "spec": {
        "containers": [CONTAINER],
        "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    }
}
RAYJOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "submissionMode": str,
        "backoffLimit": int,
        "shutdownAfterJobFinishes": bool,
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": dict, "template": POD},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": dict,
                    "template": POD,
                }
            ],
        },
    },
}
"""Fields of ray.io/v1 RayJob, RayCluster and of a pod that orch writes, with their types."""


def faults(plain: Any, model: Any, at: str = "") -> Iterator[str]:
    if isinstance(model, dict) and isinstance(plain, dict):
        for name, value in plain.items():
            if name not in model:
                yield f"{at}.{name} is not a field"
            else:
                yield from faults(value, model[name], f"{at}.{name}")
    elif isinstance(model, list) and isinstance(plain, list):
        for value in plain:
            yield from faults(value, model[0], at)
    elif not (isinstance(model, type) and type(plain) is model):
        yield f"{at} is {type(plain).__name__}"


def test_a_rayjob_has_fields_of_kuberay_and_no_secret(folder: RunFolder) -> None:
    options = RayOptions(
        env={"NCCL_DEBUG": "WARN"}, secrets={"HF_TOKEN": None}, image="me/orch:1", memory_gib=16
    )
    shapes = [JobShape(0.0, 0, 16.0, nodes=2, actors_gpus=8)] * 3
    text = rayjob_text(folder, ["a b.yaml", "seeds=[0]"], shapes, options)
    plain = yaml.safe_load(text)
    assert list(faults(plain, RAYJOB)) == []
    assert list(faults({"spec": {"entryPoint": ""}}, RAYJOB)) == [".spec.entryPoint is not a field"]
    spec = plain["spec"]
    assert spec["entrypoint"].startswith("exec python -m orchestrator run 'a b.yaml' 'seeds=[0]' ")
    assert "--wait site.options.address=http://127.0.0.1:8265" in spec["entrypoint"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["maxReplicas"] == 6
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "16Gi", "nvidia.com/gpu": 8}
    assert container["env"][1]["valueFrom"]["secretKeyRef"] == {"name": "orch", "key": "HF_TOKEN"}
    assert container["volumeMounts"][0]["mountPath"] == str(folder.path.parent)
