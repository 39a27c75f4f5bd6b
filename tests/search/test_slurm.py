"""Searches whose trials are jobs: a real cluster, real training, real kills."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, orch
from lifeline import heed_ctrl_c

from orchestrator.launch.slurm import poll, submissions
from orchestrator.pipeline.training import keep_spec
from orchestrator.rundir import CellState, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import open_experiment
from orchestrator.runs.state import read_state
from orchestrator.runs.wait import SubmitRequest, start
from orchestrator.search.controller import Controller
from orchestrator.search.design import design
from orchestrator.search.slurm import JobScorer, cluster_rules
from orchestrator.spec.site_options import SlurmOptions
from tests.cluster import Cluster
from tests.search.rehearsed import BLOCK, House, train

pytestmark = pytest.mark.long

SITE = (
    "backend=micro",
    "site.kind=slurm",
    "+site.options={memory_gib: 1, time_limit_hours: 0.2}",
    "+base.num_train_steps=100",
)
LONG = 2000
"""Train steps of a cell that trains longer than a controller takes to look twice."""
FLAGS = (
    "+tune={beta: [0.05, 5], maximize: eval/accuracy_in_domain, seeds: [0], trials: 6}",
    "+tune.parallel=2",
    "+tune.sampler=random",
    "-w",
    "kl=k1.reward",
)
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


def waited(found: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """What is found in the end."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return answer


def ended(journal: Path) -> list[int]:
    """Return the trials that Optuna's own log has as ended."""
    lines = map(json.loads, journal.read_text().splitlines())
    return [one["trial_id"] for one in lines if one["op_code"] == 6 and one["state"] in (1, 2, 3)]


@pytest.mark.slow
def test_a_kill_and_a_cancel(cluster: Cluster, folder: Path) -> None:
    """A controller is killed and a job is cancelled under the next one, which goes on. Later a
    search is stopped with its jobs waiting, and --cancel ends those."""
    argv = [sys.executable, "-m", "orchestrator", "tune", SPEC, *SITE, *FLAGS]
    logs = [folder / "killed.log", folder / "other.log"]
    with logs[0].open("wb") as file:
        first = subprocess.Popen(argv, cwd=folder, stdout=file, stderr=file)
    until(logs[0], "as 1 job array", first)
    refused = orch(folder, *argv[3:])
    assert (refused.returncode, "another orch tune works" in refused.stderr) == (1, True)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with logs[1].open("wb") as file:
        second = subprocess.Popen(argv, cwd=folder, stdout=file, stderr=file)
    (element, *_) = waited(
        lambda: cluster.run("squeue", "-h", "-r", "-t", "R", "-o", "%F_%K").split(), "none runs"
    )
    cluster.run("scancel", element)
    assert second.wait(400) == 0, logs[1].read_text()
    runs = folder / "runs" / "smoke"
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
    log = folder / "stopped.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            more, cwd=folder, stdout=file, stderr=file, preexec_fn=heed_ctrl_c
        )
        until(log, "submitted 2 cells", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130, log.read_text()
    assert len(cluster.run("squeue", "-h", "-r", "-o", "%F_%K").split()) == 2, "they are left"
    done = orch(folder, *more[3:], "--cancel")
    assert (done.returncode, "2 cells of trials cancelled" in done.stderr) == (0, True), done.stderr
    waited(lambda: not cluster.run("squeue", "-h"), "jobs are left")
    told = orch(folder, *more[3:], "--json")
    assert told.returncode == 0, told.stderr
    (search,) = json.loads(told.stdout)
    states = Counter(trial["state"] for trial in search["trials"])
    assert states == {"COMPLETE": 5, "FAIL": 3}, told.stderr
    whys = [trial["why"] for trial in search["trials"] if trial["state"] == "FAIL"]
    assert sum("cancelled by a person" in why for why in whys) == 2, whys


def cluster_house(
    tmp_path: Path, options: SlurmOptions, steps: int = 100, **block: object
) -> Controller:
    length = f"+base.num_train_steps={steps}"
    asked = [*SITE[:-1], length, f"site.runs_dir='{tmp_path}/runs'"]
    opened = open_experiment(ROOT / "experiments" / "beta_sweep.yaml", asked)
    (study,) = opened.spec.studies
    studies = (study.model_copy(update={"axes": {**study.axes, "kl": ["k1.reward"]}}),)
    spec = opened.spec.model_copy(update={"tune": None, "studies": studies})
    opened = replace(opened, spec=spec)
    house = House(opened, design(opened, {**BLOCK, **block}), [])
    house.folder.open()
    scorer = JobScorer(house.searches[0].block, house.folder, options)
    return Controller(house.searches, house.journal(), scorer, cluster_rules(options, print))


def test_a_job_whose_trial_is_behind_is_stopped_and_keeps_its_record(
    cluster: Cluster, tmp_path: Path
) -> None:
    poll.forget()
    options = SlurmOptions(time_limit_hours=0.2, memory_gib=1.0)
    controller = cluster_house(
        tmp_path,
        options,
        steps=LONG,
        trials=5,
        pruner="median",
        maximize="eval/accuracy_in_domain",
    )
    folder = controller.folder
    with controller.journal.controlling():
        for _ in range(4):
            (cell,) = controller.tick()
            train(
                folder,
                cell,
                {"eval/accuracy_in_domain": 2.0},
                earlier={step: {"eval/accuracy_in_domain": 2.0} for step in range(1, LONG)},
            )
        (cell,) = controller.tick()
        start(SubmitRequest([cell], folder, options, evaluate=False, tell=print))
        waited(lambda: controller.tick() or controller.done, "it was not pruned")
    place = folder.cell(cell)
    found = read_state(place)
    assert found.state == "cancelled"
    assert found.exit is not None
    assert "given up by the search: pruned with" in found.exit.message
    assert "trial 4" in found.exit.message
    (record,) = collect([cell], folder)
    assert any("eval/accuracy_in_domain" in point.values for point in record.metrics)
    assert controller.studies["k1.reward"].get_trials()[4].state.name == "PRUNED"
    waited(lambda: not cluster.run("squeue", "-h"), "its job is left")
    poll.forget()


@pytest.mark.slow
def test_an_evaluation_that_is_missing_is_a_job_of_its_own(
    cluster: Cluster, tmp_path: Path
) -> None:
    poll.forget()
    options = SlurmOptions(time_limit_hours=0.2, memory_gib=2.0)
    controller = cluster_house(tmp_path, options, trials=1, maximize="eval/in_domain/mean")
    keep_spec(controller.searches[0].experiment)
    with controller.journal.controlling():
        (cell,) = controller.tick()
        start(SubmitRequest([cell], controller.folder, options, evaluate=False, tell=print))
        waited(lambda: controller.tick() or controller.done, "it is not evaluated", 300)
    (trial,) = controller.studies["k1.reward"].get_trials()
    assert trial.state.name == "COMPLETE"
    assert 0 <= trial.values[0] <= 1
    assert len(controller.folder.cell(cell).attempts()) == 1, "trained once"
    evaluations = [s for s in submissions.read(controller.folder).values() if s.kind == "evaluate"]
    assert len(evaluations) == 1
    poll.forget()


def test_what_failed_is_tried_again_as_the_site_allows(tmp_path: Path) -> None:
    options = SlurmOptions(retries={"error": 1})
    controller = cluster_house(tmp_path, options, trials=1)
    verdict = cluster_rules(options, print).decide
    with controller.journal.controlling():
        (cell,) = controller.tick()
        place = controller.folder.cell(cell)
        train(controller.folder, cell, {}, state="failed")
        assert verdict(place, read_state(place)) == "train"
        assert controller.tick() == [cell]
        train(controller.folder, cell, {}, state="failed")
        assert verdict(place, read_state(place)) == "over"
        controller.tick()
    assert controller.done
    assert verdict(place, CellState("unknown", fault="nobody answers")) == "wait"
    assert verdict(place, CellState("pending")) == "wait"
