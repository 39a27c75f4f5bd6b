"""Whom `site.options.on_end` tells that a run has ended, and what."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import cancel as cancel_command
from orchestrator.cli import orch
from orchestrator.pipeline.notify import notify
from orchestrator.runs.experiment import Experiment, open_experiment
from tests.cluster.waiting import wait_for

KEEP = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"


def keeper(kept: Path) -> list[str]:
    """A program that keeps its input."""
    return [sys.executable, "-c", KEEP, str(kept)]


def experiment(tmp_path: Path, on_end: Any) -> Experiment:
    opened = open_experiment("smoke", ["site=local", f"site.runs_dir={tmp_path}/runs"])
    site = opened.spec.site.but(options={"on_end": on_end})
    return replace(opened, spec=opened.spec.but(site=site))


def test_a_run_tells_a_program_how_it_ended(tmp_path: Path) -> None:
    """`orch run` itself, with a cell that trains: once, and not again where nothing is to do."""
    kept = tmp_path / "kept.json"
    words = ["run", "smoke", "site=local", "-w", "kl=none", "--train-only"]
    words += [f"site.runs_dir={tmp_path}/runs"]
    words += [f"site.options.on_end={json.dumps(keeper(kept))}"]
    assert CliRunner().invoke(orch, words, standalone_mode=False).exception is None
    message = json.loads(kept.read_text())
    assert message["ended"] == "finished"
    assert message["cells"] == {"succeeded": 1}
    assert (message["run"], message["experiment"]) == ("smoke.micro", "smoke")
    assert message["path"] == f"{tmp_path}/runs/smoke.micro"
    assert message["text"] == "orch: smoke.micro finished: 1 succeeded"
    kept.unlink()
    assert CliRunner().invoke(orch, words, standalone_mode=False).exception is None
    assert not kept.exists()


@pytest.mark.parametrize(
    ("on_end", "sentence"),
    [
        (["/nowhere/tell"], "/nowhere/tell could not be run: No such file"),
        (
            [sys.executable, "-c", "import sys; sys.exit('api_key=abc')"],
            "exited with 1: api_key=***",
        ),
    ],
)
def test_who_cannot_be_told_is_a_sentence_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on_end: Any, sentence: str
) -> None:
    notify(experiment(tmp_path, on_end), "finished")
    said = capsys.readouterr().err
    assert said.startswith("site.options.on_end: ")
    assert sentence in said
    assert said.rstrip().endswith("the run is as it was")


@pytest.mark.parametrize(("where", "tells"), [("slurm", True), ("local", False)])
def test_a_cancel_tells_of_the_end_on_a_cluster(tmp_path: Path, where: Any, tells: bool) -> None:
    """On this machine the `orch run` that trains tells; on a cluster nobody else would."""
    kept = tmp_path / "kept.json"
    cancel_command._notify_end(replace(experiment(tmp_path, keeper(kept)), where=where))
    assert kept.exists() == tells


@pytest.mark.slow
def test_a_cancel_of_a_run_on_this_machine_tells_once(tmp_path: Path) -> None:
    """`orch cancel` in one shell, `orch run` in another: the one that trains tells."""
    kept = tmp_path / "kept.json"
    spec = ["smoke", "site=local", "-w", "kl=none", f"site.runs_dir={tmp_path}/runs"]
    spec += ["+base.num_train_steps=100000", f"site.options.on_end={json.dumps(keeper(kept))}"]
    program = [sys.executable, "-m", "orchestrator"]
    run = subprocess.Popen(
        [*program, "run", *spec, "--train-only"], stderr=subprocess.PIPE, text=True
    )
    try:
        metrics = "runs/*/cells/*/attempts/*/metrics*"
        wait_for(lambda: list(tmp_path.glob(metrics)), 120, "nothing trains", 0.2)
        cancelled = subprocess.run(
            [*program, "cancel", *spec], capture_output=True, text=True, check=False
        )
        assert "1 of 1 cells cancelled" in cancelled.stdout, cancelled.stderr
        _, said = run.communicate(timeout=120)
    finally:
        run.kill()
    got = json.loads(kept.read_text())
    assert (got["ended"], got["cells"]) == ("cancelled", {"cancelled": 1}), said
