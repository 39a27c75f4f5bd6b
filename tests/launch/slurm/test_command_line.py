"""orch as a person uses it on a login node: submit, leave, ask, change one's mind, report."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from command_line import orch

from tests.launch.slurm.conftest import ROOT

Person = Callable[..., "subprocess.CompletedProcess[str]"]
SPEC = str(ROOT / "experiments" / "smoke.yaml")


@pytest.fixture
def person(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    """orch in a shell of its own, whatever it exits with."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    config = [SPEC, "backend=micro", "site.kind=auto", "+site.options.memory_gib=1",
              "-w", "kl.estimator!=k3"]  # fmt: skip

    def call(
        verb: str, *more: str, spec: bool = True, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        return orch(tmp_path, verb, *(config if spec else []), *more, **env)

    return call


@pytest.mark.slow
def test_a_day_on_the_cluster(person: Person, cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # jobs wait
    try:
        sent = person("run", "-w", "kl.estimator=k1")
        assert sent.returncode == 0, sent.stderr
        assert "submitted 1 cells as job array" in sent.stderr
        again = person("run", "-w", "kl.estimator=k1")
        assert "submitted" not in again.stderr, "running again submits nothing"
        states = json.loads(person("status", "--json").stdout)[0]["states"]
        assert states == {"pending": 1, "planned": 1}
        stopped = person("cancel", "-w", "kl.estimator=k1")
        assert "1 of 1 cells cancelled" in stopped.stdout
    finally:
        cluster.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    assert "1 of 1 cells will run again" in person("retry", "-w", "kl.estimator=k1").stdout
    done = person("run", "--wait", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.returncode == 1, "MLflow is away"
    assert "submitted 2 cells" in done.stderr
    assert "`orch collect` mirrors what is missing" in done.stderr
    assert "Traceback" not in done.stderr
    shown = json.loads(person("status", "--json").stdout)[0]
    assert shown["states"] == {"succeeded": 2}
    assert (tmp_path / "runs" / "smoke" / "report" / "index.html").exists()
    scored = list((tmp_path / "runs" / "smoke" / "cells").glob("*/eval"))
    assert len(scored) == 2
    assert "evaluating" not in done.stderr, "the cluster did it, beside the training"
    assert person("logs", shown["cells"][0]["id"], spec=False).returncode == 0
    assert person("errors").stdout.strip() == "0 failed cells of 2"
    assert shown["cluster"]["evaluations"] == {"succeeded": 2}
    later = person("run")
    assert later.returncode == 0, later.stderr
    assert "runs made" in later.stderr, "what MLflow missed is mirrored"
