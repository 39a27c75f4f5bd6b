"""Searches whose trials are jobs: a real cluster, real training, real kills."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from command_line import orch
from lifeline import heed_ctrl_c

from orchestrator.launch.slurm import submissions
from orchestrator.rundir import RunFolder
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for

pytestmark = pytest.mark.long

SITE = (
    "backend=micro",
    "site.kind=slurm",
    "+site.options={memory_gib: 1, time_limit_hours: 0.2}",
    "+base.num_train_steps=100",
)
FLAGS = (
    "+tune={beta: [0.05, 5], maximize: eval/accuracy_in_domain, seeds: [0], trials: 6}",
    "+tune.parallel=2",
    "-w",
    "kl=k1.reward",
)
SPEC = "experiments/smoke.yaml"


def ended(journal: Path) -> list[int]:
    """Return the trials that Optuna's own log has as ended."""
    lines = map(json.loads, journal.read_text().splitlines())
    return [one["trial_id"] for one in lines if one["op_code"] == 6 and one["state"] in (1, 2, 3)]


@pytest.mark.slow
def test_a_kill_and_a_cancel(cluster: Cluster, empty: Path) -> None:
    """A controller is killed and a job is cancelled under the next one, which goes on. Later a
    search is stopped with its jobs waiting, and --cancel ends those."""
    argv = [sys.executable, "-m", "orchestrator", "tune", SPEC, *SITE, *FLAGS]
    logs = [empty / "killed.log", empty / "other.log"]
    with logs[0].open("wb") as file:
        first = subprocess.Popen(argv, cwd=empty, stdout=file, stderr=file)
    wait_for(lambda: "asked" in logs[0].read_text(), 120, "no trial was asked")
    refused = orch(empty, *argv[3:])
    assert (refused.returncode, "another orch tune works" in refused.stderr) == (1, True)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with logs[1].open("wb") as file:
        second = subprocess.Popen(argv, cwd=empty, stdout=file, stderr=file)
    (element, *_) = wait_for(
        lambda: cluster.run("squeue", "-h", "-r", "-t", "R", "-o", "%F_%K").split(),
        120,
        "none runs",
    )
    cluster.run("scancel", element)
    assert second.wait(400) == 0, logs[1].read_text()
    runs = empty / "runs" / "smoke"
    cells = list((runs / "cells").iterdir())
    exits = [path for cell in cells for path in cell.glob("attempts/*/exit.json")]
    ends = Counter(json.loads(path.read_text())["state"] for path in exits)
    assert (len(cells), ends["succeeded"]) == (6, 5), "each trained once"
    elements = cluster.run("sacct", "-X", "-n", "-P", "--format=JobName%256").split()
    names = {sent.name for sent in submissions.read(RunFolder(runs.absolute())).values()}
    assert sum(name in names for name in elements) == 6, "each submitted once"
    assert sorted(Counter(ended(runs / "tune/search/journal.log")).values()) == [1] * 6

    cluster.run("scontrol", "update", "nodename=ALL", "state=drain", "reason=full")
    more = [*argv, "tune.trials=8"]
    log = empty / "stopped.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            more, cwd=empty, stdout=file, stderr=file, preexec_fn=heed_ctrl_c
        )
        wait_for(
            lambda: len(cluster.run("squeue", "-h", "-r", "-o", "%F_%K").split()) == 2,
            120,
            "they are not submitted",
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130, log.read_text()
    assert len(cluster.run("squeue", "-h", "-r", "-o", "%F_%K").split()) == 2, "they are left"
    done = orch(empty, *more[3:], "--cancel")
    assert (done.returncode, "2 cells of trials cancelled" in done.stderr) == (0, True), done.stderr
    wait_for(lambda: not cluster.run("squeue", "-h"), 120, "jobs are left")
    told = orch(empty, *more[3:], "--json")
    assert told.returncode == 0, told.stderr
    (search,) = json.loads(told.stdout)
    states = Counter(trial["state"] for trial in search["trials"])
    assert states == {"COMPLETE": 5, "FAIL": 3}, told.stderr
    whys = [trial["why"] for trial in search["trials"] if trial["state"] == "FAIL"]
    assert sum("cancelled by a person" in why for why in whys) == 2, whys
