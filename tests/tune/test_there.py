"""Searches whose trials are jobs: a real cluster, real training, real kills."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import ROOT, orch

from orchestrator.experiment import open_experiment
from orchestrator.launch.slurm import poll
from orchestrator.launch.slurm.options import SlurmOptions
from orchestrator.launch.slurm.wait import Request, start
from orchestrator.state import Look, look
from orchestrator.tune.controller import Controller
from orchestrator.tune.design import design
from orchestrator.tune.jobs import JobScorer
from orchestrator.tune.there import on_cluster
from tests.cluster import Cluster
from tests.tune.rehearsed import BLOCK, GOAL, House, theory, train
from tests.tune.test_search import COLLAPSED

SITE = ("backend=micro", "site.kind=slurm", "+site.options={memory_gib: 1, time_limit_hours: 0.2}",
        "+base.num_train_steps=40")  # fmt: skip
FLAGS = ("--each", "kl=[k1.reward]", "--space", "kl.beta=log(0.05, 5)", "--maximize", GOAL,
         "--seeds", "[0]", "--trials", "6", "--parallel", "3", "--sampler", "random")  # fmt: skip
SPEC = "experiments/smoke.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / 'it\'s a "search" ü'
    shutil.copytree(ROOT / "experiments", home / "experiments")
    return home


def until(log: Path, word: str, process: "subprocess.Popen[bytes]", seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while word not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_search_outlives_its_controller_and_nothing_runs_twice(
    cluster: Cluster, folder: Path
) -> None:
    log = folder / "killed.log"
    argv = [sys.executable, "-m", "orchestrator", "tune", SPEC, *SITE, *FLAGS]
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=folder, stdout=file, stderr=file)
        until(log, "submitted 3 cells as 1 job array", process)
        running = ("squeue", "-h", "-r", "-t", "R", "-o", "%F_%K")
        deadline = time.monotonic() + 60
        while not (found := cluster.run(*running).split()):
            assert time.monotonic() < deadline
        cluster.run("scancel", found[0])
        until(log, "complete", process)
        process.send_signal(signal.SIGKILL)  # two trials or more are under way
        process.wait()
    done = orch(folder, "tune", SPEC, *SITE, *FLAGS, "--json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    states = Counter(trial["state"] for trial in told["trials"])
    assert states == {"COMPLETE": 5, "FAIL": 1}, done.stderr
    (failed,) = [trial for trial in told["trials"] if trial["state"] == "FAIL"]
    assert "cancelled" in failed["why"]
    cells = list((folder / "runs" / "smoke" / "cells").iterdir())
    assert len(cells) == 6
    ends = [
        json.loads(e.read_text())["state"] for c in cells for e in c.glob("attempts/*/exit.json")
    ]
    assert ends.count("succeeded") == 5, "each trained once"
    elements = cluster.run("sacct", "-X", "-n", "-P", "--format=JobID,JobName").split()
    assert sum("orch-smoke-" in line for line in elements) == 6, "each submitted once"
    listed = (folder / "runs" / "smoke" / "tune" / "search" / "journal.log").read_text()
    ended = [json.loads(line) for line in listed.splitlines() if '"op_code": 6' in line
             or '"op_code":6' in line]  # fmt: skip
    told_once = Counter(one["trial_id"] for one in ended if one["state"] in (1, 2, 3))
    assert sorted(told_once.values()) == [1] * 6, "each told once"


def cluster_house(tmp_path: Path, options: SlurmOptions, **block: object) -> Controller:
    asked = [*SITE, f"site.runs_dir='{tmp_path}/runs'"]
    opened = open_experiment(ROOT / "experiments" / "beta_sweep.yaml", asked)
    opened = replace(opened, spec=opened.spec.model_copy(update={"tune": None}))
    house = House(opened, design(opened, {**BLOCK, **block}), [])
    house.folder.open()
    scorer = JobScorer(house.searches[0].objectives, house.folder, options)
    return Controller(house.searches, house.journal(), scorer,
                      launching=on_cluster(options, print))  # fmt: skip


def test_a_collapse_cancels_the_jobs_of_the_other_seeds(cluster: Cluster, tmp_path: Path) -> None:
    poll.forget()
    options = SlurmOptions(time_limit_hours=0.2, memory_gib=1.0)
    controller = cluster_house(tmp_path, options, seeds=[0, 1], trials=1)
    folder = controller.folder
    with controller.journal.controlling():
        one, other = controller.turn()
        train(folder, one, theory(one), outcome=COLLAPSED)
        start(Request([other], folder, options, evaluate=False, tell=print))
        assert cluster.run("squeue", "-h", "-r")
        controller.turn()
    assert controller.done
    assert look(folder.cell(other)).state == "cancelled"
    (trial,) = controller.studies["all"].get_trials()
    assert trial.state.name == "PRUNED"
    deadline = time.monotonic() + 30
    while cluster.run("squeue", "-h"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    poll.forget()


@pytest.mark.slow
def test_evaluation_is_a_job_and_is_asked_again_where_it_is_missing(
    cluster: Cluster, folder: Path
) -> None:
    flags = ("--each", "kl=[k1.reward]", "--space", "kl.beta=log(0.05, 5)", "--trials", "1",
             "--maximize", "eval/in_domain/mean", "--seeds", "[0]")  # fmt: skip
    site = (*SITE, "site.options.memory_gib=2")
    done = orch(folder, "tune", SPEC, *site, *flags, "--json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    (trial,) = told["trials"]
    assert trial["state"] == "COMPLETE"
    assert 0 <= trial["values"][0] <= 1
    tune = folder / "runs" / "smoke" / "tune"
    (cell,) = (folder / "runs" / "smoke" / "cells").iterdir()
    shutil.rmtree(cell / "eval")
    shutil.rmtree(tune)
    again = orch(folder, "tune", SPEC, *site, *flags, "--json")
    assert again.returncode == 0, again.stderr
    assert "submitted the evaluation of 1 cells" in again.stderr
    assert json.loads(again.stdout)[0]["trials"][0]["values"] == trial["values"]
    assert len(list(cell.glob("attempts/*"))) == 1, "trained once"


def test_what_failed_is_tried_again_as_the_site_allows(tmp_path: Path) -> None:
    options = SlurmOptions(retries={"error": 1})
    controller = cluster_house(tmp_path, options, trials=1)
    verdict = on_cluster(options, print).verdict
    with controller.journal.controlling():
        (cell,) = controller.turn()
        place = controller.folder.cell(cell)
        train(controller.folder, cell, {}, state="failed")
        assert verdict(place, look(place)) == "train"
        assert controller.turn() == [cell]
        train(controller.folder, cell, {}, state="failed")
        assert verdict(place, look(place)) == "over"
        controller.turn()
    assert controller.done
    assert verdict(place, Look("unknown", fault="nobody answers")) == "wait"
    assert verdict(place, Look("pending")) == "wait"
