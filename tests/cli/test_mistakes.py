"""A person's mistakes: each a sentence and a non-zero exit, no traceback, nothing lost."""

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
import yaml
from command_line import orch

from orchestrator.cli import answer
from tests.settings import SPEC

SMOKE = "experiments/smoke.yaml"


def refuses(done: subprocess.CompletedProcess[str], *words: str) -> None:
    said = done.stderr + done.stdout
    assert done.returncode not in (0, 2), said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


MISTAKES = {
    row["mistake"]: row
    for row in yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_its_first_lines(mistake: str, tmp_path: Path) -> None:
    """What was wrong and what to write, in the first two lines after a banner or a count."""
    row = MISTAKES[mistake]
    old = SPEC if row.get("whole") else row.get("old")
    (tmp_path / "S.yaml").write_text(SPEC.replace(old, row["new"], 1) if old else SPEC)
    (tmp_path / "train.sh").write_text("python3 -m verl.trainer.main_ppo a.b=1\n")
    argv = ["S.yaml" if word == "S" else word for word in row["run"].split()]
    done = orch(tmp_path, *argv)
    said = f"{done.stderr}{done.stdout}"
    assert done.returncode == row.get("code", 1), said
    assert "Traceback" not in said
    plain = " ".join("\n".join(said.split("MICRO SCALE")[-1].splitlines()[:4]).split())
    assert row["says"] in plain, said
    assert len(said.splitlines()[0]) < 400


def test_a_refusal_is_a_document_too_and_ctrl_c_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(["plan", "smoke", "seeds=[a]", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"error": printed.err.strip()}
    monkeypatch.setattr("orchestrator.cli.orch", Mock(side_effect=click.Abort))
    assert (answer([]), capsys.readouterr().err) == (130, "interrupted\n")


def test_a_runs_folder_that_is_a_file(empty: Path) -> None:
    (empty / "runs").write_text("mine")
    refuses(orch(empty, "run", SMOKE), "a part of its path is a file, not a folder")
    assert (empty / "runs").read_text() == "mine"


@pytest.mark.slow
def test_a_tracking_server_that_is_down_costs_a_message(workspace: Path) -> None:
    done = orch(
        workspace,
        "report",
        SMOKE,
        "--format",
        "mlflow",
        MLFLOW_TRACKING_URI="http://me:hunter2@127.0.0.1:9",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="1",
    )
    refuses(done, "127.0.0.1:9")
    assert "hunter2" not in done.stderr + done.stdout


def test_cells_without_prompts_are_refused_before_anything_is_submitted(empty: Path) -> None:
    done = orch(empty, "run", SMOKE, "site=slurm_a100")
    refuses(done, "nothing was started", "orch data prepare")
    assert not list((empty / "runs").glob("*/cells/*"))


def test_a_report_without_the_extra_for_its_pictures(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(empty)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert answer(["report", "smoke", "--no-mlflow"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("this needs vl_convert, which this installation of orch leaves out")
    assert "pip install" in said
