"""orch as a person uses it on a login node: the guide's commands, in order, and its table."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, orch

from tests.cluster import Cluster

pytestmark = pytest.mark.long(90)

GUIDE = ROOT / "docs" / "slurm.md"
HERE = Path(__file__).parent


@pytest.mark.slow
def test_a_day_on_the_cluster(
    cluster: Cluster, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that the guide shows, on a day when MLflow is away."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    shown = re.findall(r"^\$ orch (.*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    spec = ["experiments/smoke.yaml", "backend=micro"]

    def person(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        done = orch(empty, *words, **env)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    cluster.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # jobs wait
    told = {}
    for words in map(shlex.split, shown):
        away = {}
        if "--wait" in words:
            cluster.run("scontrol", "update", "PartitionName=gpu", "State=UP")
            away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
        told[words[0]] = done = person(*words, **away)
        expected = {"doctor": 1}.get(words[0], int(bool(away)))
        assert done.returncode == expected, (words, done.stdout, done.stderr)
        if words[0] == "run" and not away:
            assert "submitted 1 cell as job array" in done.stderr
            assert "submitted" not in person(*words).stderr, "running again submits nothing"
    assert "wrote experiments/site/orch.yaml" in told["init"].stdout
    assert "takes no jobs at present" in told["doctor"].stdout, "it is down"
    # "submitted" until accounting has heard of the job, which a busy machine delays
    assert re.search("0 of 4 cells done, 3 planned, 1 (pending|submitted)", told["status"].stdout)
    assert "1 of 1 cells cancelled" in told["cancel"].stdout
    assert "1 of 1 cells will run again" in told["retry"].stdout
    assert "submitted 2 cells" in told["run"].stderr
    assert "`orch report` mirrors what is missing" in told["run"].stderr
    assert "evaluating" not in told["run"].stderr, "the cluster did it, beside the training"
    assert told["logs"].stdout.strip() == "0 failed cells of 4"
    assert (empty / "runs" / "smoke" / "report" / "index.html").exists()
    assert len(list((empty / "runs" / "smoke" / "cells").glob("*/eval"))) == 2
    plain = json.loads(person("status", *spec, "--json").stdout)[0]
    assert plain["states"] == {"succeeded": 2, "planned": 2}
    assert plain["cluster"]["evaluations"] == {"succeeded": 2}
    id_ = next(c["id"] for c in plain["cells"] if c["state"] == "succeeded")
    assert person("logs", id_).returncode == 0
    later = person("report", "--format", "mlflow", *spec)
    assert later.returncode == 0, later.stderr
    assert "smoke: 3 runs\n" in later.stderr, "what MLflow missed is mirrored"


@pytest.mark.slow
def test_another_login_node_goes_on(cluster: Cluster, empty: Path) -> None:
    """Submitted on one machine; watched, cancelled and finished on one of another name."""
    spec = [
        "experiments/smoke.yaml",
        "backend=micro",
        "+base.num_train_steps=3",
        "site.kind=slurm",
        "+site.options={evaluate: false, memory_gib: 1.0}",
    ]

    def elsewhere(*words: str) -> "subprocess.CompletedProcess[str]":
        named = ["unshare", "--uts", "sh", "-c", 'hostname login2 && exec "$@"', "sh"]
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return subprocess.run(
            [*named, sys.executable, "-m", "orchestrator", *words],
            cwd=empty,
            env=inherited,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    if elsewhere("--version").returncode:
        pytest.skip("needs the right to name a machine anew (unshare --uts)")
    cluster.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # jobs wait
    here = orch(empty, "run", *spec, PYTHONPATH="")
    assert "submitted 4 cells" in here.stderr, here.stderr
    assert "4 pending" in elsewhere("status", *spec).stdout
    assert "submitted" not in elsewhere("run", *spec).stderr, "running again submits nothing"
    assert "1 of 1 cells cancelled" in elsewhere("cancel", *spec, "-w", "kl.estimator=k1").stdout
    cluster.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    done = elsewhere("run", *spec, "-w", "kl.estimator!=k1", "--wait", "--train-only")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    told = orch(empty, "status", *spec, "--json", PYTHONPATH="")
    assert json.loads(told.stdout)[0]["states"] == {"succeeded": 3, "cancelled": 1}
