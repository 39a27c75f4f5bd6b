"""Every command on a finished experiment, as a person would use it."""

import json
import shlex
import sqlite3
from pathlib import Path

import pytest
from command_line import orch

from orchestrator.launch import provenance

pytestmark = [pytest.mark.slow, pytest.mark.long(110)]

SMOKE = "experiments/smoke.yaml"


def ledger(folder: Path) -> list[dict[str, object]]:
    text = (folder / "runs" / "smoke.micro" / "ledger.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_run_trains_scores_mirrors_and_reports(finished: Path) -> None:
    folder = finished / "runs" / "smoke.micro"
    cells = sorted((folder / "cells").iterdir())
    assert len(cells) == 4
    for cell in cells:
        ended = json.loads((cell / "attempts" / "1" / "exit.json").read_text())
        assert ended["state"] == "succeeded"
        assert len(list((cell / "eval").glob("*.json"))) == 4
        job = json.loads((cell / "attempts" / "1" / "job.json").read_text())
        assert job["library"].startswith("micro 1")
        assert bool(job["commit"]) == bool(provenance.commit())
        assert {"python", "torch"} <= job["versions"].keys()
        assert job["versions"]["computed by"].startswith(("C kernels ", "torch ("))
    page = (folder / "report" / "index.html").read_text()
    assert "Does everything work on this machine?" in page
    with sqlite3.connect(finished / "runs" / "mlflow.db") as database:
        scales = database.execute("select value from tags where key = 'scale'").fetchall()
    assert len(scales) >= 4
    assert {value for (value,) in scales} == {"micro"}


def test_run_again_does_nothing(finished: Path) -> None:
    folder = finished / "runs" / "smoke.micro"
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    done = orch(finished, "run", SMOKE)
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    written = {path for path in after if after[path] != files.get(path)}
    assert written <= {folder / "spec.json"}
    assert files.keys() <= after.keys()


def test_plan_says_what_would_change_and_exits_3_then(workspace: Path) -> None:
    assert orch(workspace, "plan", SMOKE).returncode == 0
    changed = orch(workspace, "plan", SMOKE, "base.optimizer.learning_rate=5e-7", "--json")
    assert changed.returncode == 0, changed.stderr
    rows = json.loads(changed.stdout)["cells"]
    reasons = [row["reason"] for row in rows]
    assert reasons.count("changed") == 4
    assert reasons.count("orphan") == 4
    assert rows[0]["detail"].startswith("optimizer.learning_rate: ")


def test_plan_says_what_a_beta_weighs_in_each_library(empty: Path) -> None:
    args = ("plan", "experiments/cross_library.yaml", "site=local")
    said = " ".join(orch(empty, *args, "base.advantage.estimator=grpo").stdout.split())
    assert "k1.reward, k3.reward at β 0.05, 0.3: 0.05, 0.3 in verl@0.9.1, skyrl@0.4.0" in said
    assert "0.035, 0.21 in openrlhf@0.11.2, prime_rl@0.5.0" in said
    rloo = json.loads(orch(empty, *args, "--json").stdout)
    assert [line.partition(" at ")[0] for line in rloo["effective_betas"]] == ["k1.loss", "k3.loss"]


def test_status_with_and_without_a_spec(finished: Path) -> None:
    one = json.loads(orch(finished, "status", SMOKE, "--json").stdout)
    every = json.loads(orch(finished, "status", "--json").stdout)
    assert [e["states"] for e in one] == [e["states"] for e in every] == [{"succeeded": 4}]


def test_show_and_logs_take_the_start_of_an_id(finished: Path) -> None:
    cell = json.loads(orch(finished, "status", "--json").stdout)[0]["cells"][0]
    shown = orch(finished, "show", cell["id"][:6])
    assert shown.returncode == 0, shown.stderr
    assert cell["slug"] in shown.stdout
    assert "kl.estimator" in shown.stdout
    argv = orch(finished, "show", SMOKE, cell["slug"], "--argv").stdout
    assert "backends.micro" in argv
    assert "step 16/16: accuracy" in orch(finished, "logs", cell["id"]).stdout
    silent = orch(finished, "logs", cell["id"], "--stderr")
    assert silent.returncode == 0
    assert "has written nothing to stderr" in silent.stderr
    nobody = orch(finished, "show", "ffffffffffff")
    assert nobody.returncode == 1
    assert "no launched cell is called" in nobody.stderr


def test_prune_removes_only_what_left_the_spec_and_asks(workspace: Path) -> None:
    smaller = [SMOKE, "seeds=[7]"]
    refused = orch(workspace, "prune", *smaller)
    assert refused.returncode == 1
    assert "say --yes" in refused.stderr
    assert len(list((workspace / "runs" / "smoke.micro" / "cells").iterdir())) == 4
    assert "removed 4 of 4" in orch(workspace, "prune", *smaller, "--yes").stdout
    assert not list((workspace / "runs" / "smoke.micro" / "cells").iterdir())


def test_compare_and_report_from_disk_alone(workspace: Path) -> None:
    compared = json.loads(orch(workspace, "compare", SMOKE, "--json").stdout)
    assert len(compared["configurations"]) == 4
    by_kl = orch(workspace, "compare", SMOKE, "--by", "kl")
    for more in ((), ("--by", "kl"), ("--json",)):
        foo = orch(workspace, "compare", SMOKE, "--metric", "train/reward_men", *more)
        assert foo.returncode == 1
        assert "measured 'train/reward_men', did you mean 'train/reward_mean'?" in foo.stderr
    one = orch(workspace, "compare", SMOKE, "--metric", "train/reward_mean").stdout
    assert "train/reward_mean" in one
    assert "eval/in_domain/mean" not in one.splitlines()[0]
    assert "k1.reward" in by_kl.stdout
    unknown = orch(workspace, "compare", SMOKE, "--by", "moon")
    assert unknown.returncode == 1
    assert "no configuration has an axis 'moon'" in unknown.stderr
    single = orch(workspace, "compare", SMOKE, "--by", "max_staleness_steps")
    assert single.returncode == 1
    assert "no two values of 'max_staleness_steps' have finished cells" in single.stderr
    assert orch(workspace, "report", SMOKE, "-o", "else where", "--no-figures").returncode == 0
    assert (workspace / "else where" / "index.html").stat().st_size > 100_000


def test_init_writes_a_spec_that_plans_and_overwrites_nothing(tmp_path: Path) -> None:
    assert orch(tmp_path, "init", "mine").returncode == 0
    first = (tmp_path / "mine.yaml").read_text().splitlines()[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert "$defs" in json.loads((tmp_path / schema).read_text())
    assert orch(tmp_path, "plan", "mine.yaml").returncode == 0
    odd = orch(tmp_path, "init", "it's a test.yaml")
    assert shlex.split(odd.stdout.partition("Next: ")[2]) == ["orch", "plan", "it's a test.yaml"]
    assert orch(tmp_path, "plan", "it's a test.yaml").returncode == 0
    again = orch(tmp_path, "init", "mine.yaml")
    assert again.returncode == 1
    assert "exists" in again.stderr
