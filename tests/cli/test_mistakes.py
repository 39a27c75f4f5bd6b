"""A person's mistakes: each a sentence and a non-zero exit, no traceback, nothing lost."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import orch

from orchestrator.cli import answer

SMOKE = "experiments/smoke.yaml"


def refuses(done: subprocess.CompletedProcess[str], *words: str) -> None:
    said = done.stderr + done.stdout
    assert done.returncode not in (0, 2), said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


def test_an_unknown_command_is_named_with_the_nearest(tmp_path: Path) -> None:
    done = orch(tmp_path, "pln", "x.yaml")
    assert done.returncode == 2
    assert "no command 'pln', did you mean 'plan'" in done.stderr


@pytest.mark.parametrize("command", ["plan", "run", "status", "report", "prune"])
def test_a_missing_spec(command: str, tmp_path: Path) -> None:
    refuses(orch(tmp_path, command, "nowhere.yaml"), "nowhere.yaml")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["bad.yaml"]),
        (b"\x00\x01\xff\xfe\x00binary", ["bad.yaml"]),
        (b"name: x\nstudies: !!python/object/apply:os.system ['true']\n", ["line 2"]),
        (b"name: ../../etc\nseeds: [0]\nstudies: {a: {axes: {kl: [none]}}}\n", ["$.name"]),
    ],
    ids=["empty", "binary", "tag", "climbing name"],
)
def test_a_spec_that_is_none(content: bytes, words: list[str], empty: Path) -> None:
    (empty / "bad.yaml").write_bytes(content)
    refuses(orch(empty, "plan", "bad.yaml"), *words)


def test_all_faults_of_a_spec_at_once(empty: Path) -> None:
    (empty / "experiments" / "bad.yaml").write_text(
        "defaults: [{recipe: onpolicy_math}, _self_]\n"
        "name: bad\n"
        "seeds: [0]\n"
        "studies:\n"
        "  one:\n"
        "    axes:\n"
        "      model: [qwen2.5-8b]\n"
        "      kl: [{estimator: k1, placement: reward, beta: -1}]\n"
        "  two:\n"
        "    titel: x\n"
        "    axes: {kl: []}\n"
    )
    done = orch(empty, "plan", "experiments/bad.yaml")
    refuses(
        done,
        "qwen2.5-8b",
        "did you mean 'qwen2.5-7b'",
        "-1",
        "did you mean 'title'",
        "line 7",
        "line 8",
        "line 10",
        "line 11",
    )


def test_a_runs_folder_from_a_newer_orch(empty: Path) -> None:
    folder = empty / "runs" / "smoke.micro"
    folder.mkdir(parents=True)
    (folder / "format.json").write_text(json.dumps({"format": 99, "orch": "9.0"}))
    for command in ("plan", "run", "status"):
        refuses(orch(empty, command, SMOKE), "written by orch 9.0", "Upgrade orch")
    assert sorted(p.name for p in folder.iterdir()) == ["format.json"]


def test_a_runs_folder_that_is_a_file(empty: Path) -> None:
    (empty / "runs").write_text("mine")
    refuses(orch(empty, "run", SMOKE), "a part of its path is a file, not a folder")
    assert (empty / "runs").read_text() == "mine"


def test_a_disk_that_fills_up(empty: Path) -> None:
    """The file size limit stands for a full disk: the kernel refuses the same writes."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "run", SMOKE, "--train-only"],
        cwd=empty,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=small_files,
        stdin=subprocess.DEVNULL,
    )
    refuses(done)
    assert "run again" in done.stderr or "orch logs --failed" in done.stderr, done.stderr
    orch(empty, "retry", SMOKE)
    after = orch(empty, "run", SMOKE, "--train-only")
    assert after.returncode == 0, after.stderr
    states = json.loads(orch(empty, "status", SMOKE, "--json").stdout)[0]["states"]
    assert states == {"succeeded": 4}


@pytest.mark.slow
def test_a_checkpoint_cut_in_half_costs_only_itself(workspace: Path) -> None:
    cells = sorted((workspace / "runs" / "smoke.micro" / "cells").iterdir())
    shutil.rmtree(cells[0] / "eval")
    weights = next((cells[0] / "checkpoints").glob("step-*/model.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    done = orch(workspace, "eval", SMOKE)
    refuses(done, cells[0].name.rpartition("-")[0])
    assert "micro_sort" in done.stdout, "the other cells' scores are printed all the same"


@pytest.mark.slow
def test_a_torn_last_line_costs_only_itself(workspace: Path) -> None:
    cell = sorted((workspace / "runs" / "smoke.micro" / "cells").iterdir())[0]
    metrics = cell / "attempts" / "1" / "metrics.jsonl"
    os.truncate(metrics, metrics.stat().st_size - 20)
    done = orch(workspace, "report", SMOKE, "--format", "mlflow")
    refuses(done, "metrics.jsonl line", "is cut off", "the rest is kept")


@pytest.mark.slow
def test_a_tracking_server_that_is_down_costs_a_message(workspace: Path) -> None:
    done = orch(
        workspace,
        "report",
        SMOKE,
        "--format",
        "mlflow",
        MLFLOW_TRACKING_URI="http://me:hunter2@127.0.0.1:9",
    )
    refuses(done, "127.0.0.1:9")
    assert "hunter2" not in done.stderr + done.stdout
    assert orch(workspace, "report", SMOKE, "--format", "mlflow").returncode == 0


def test_cells_without_prompts_are_refused_before_anything_is_submitted(empty: Path) -> None:
    done = orch(empty, "run", SMOKE, "site=slurm_a100")
    refuses(done, "nothing was started", "orch data prepare")
    assert not list((empty / "runs").glob("*/cells/*"))


def test_a_dashboard_without_its_extra(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(empty)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert answer(["dashboard", "smoke"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("this needs vl_convert, which this installation of orch leaves out")
    assert "pip install" in said.err
