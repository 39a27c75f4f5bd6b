"""Whom `site.options.on_end` tells that a run has ended, and what."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hooks import KEEP, SECRET, webhook

from orchestrator.cli import cancel as cancel_command
from orchestrator.cli import orch
from orchestrator.pipeline.notify import notify
from orchestrator.runs.experiment import Experiment, open_experiment


def experiment(tmp_path: Path, on_end: Any) -> Experiment:
    opened = open_experiment("smoke", ["site=local", f"site.runs_dir={tmp_path}/runs"])
    site = opened.spec.site.but(options={"on_end": on_end})
    return replace(opened, spec=opened.spec.but(site=site))


def test_a_run_tells_a_command_how_it_ended(tmp_path: Path) -> None:
    """`orch run` itself, with a cell that trains: once, and not again where nothing is to do."""
    kept, program = tmp_path / "kept.json", tmp_path / "keep.py"
    program.write_text(KEEP)
    words = ["run", "smoke", "site=local", "-w", "kl=none", "--train-only"]
    words += [f"site.runs_dir={tmp_path}/runs"]
    words += [f"site.options.on_end={{command: ['{sys.executable}', '{program}', '{kept}']}}"]
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


def test_a_webhook_gets_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as (address, messages):
        notify(experiment(tmp_path, {"webhook": address}), "cancelled", Path("report/index.html"))
        monkeypatch.setenv("TEAM_HOOK", address)
        notify(experiment(tmp_path, {"webhook_variable": "TEAM_HOOK"}), None)
    assert [m["ended"] for m in messages] == ["cancelled", "finished"]
    assert messages[0]["report"] == "report/index.html"
    assert messages[0]["cells"] == {"planned": 4}


@pytest.mark.parametrize(
    ("on_end", "sentence"),
    [
        ({"command": ["/nowhere/tell"]}, "/nowhere/tell could not be run: No such file"),
        (
            {"command": [sys.executable, "-c", "import sys; sys.exit('api_key=abc')"]},
            "exited with 1: api_key=***",
        ),
        ({"webhook": "http://127.0.0.1:9/T0P/s3cret"}, "127.0.0.1 cannot be reached"),
        ({"webhook": "file:///etc/passwd"}, "a webhook's address begins with https://"),
        ({"webhook_variable": "NO_SUCH_HOOK"}, "the variable NO_SUCH_HOOK is not set here"),
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
    assert SECRET not in said


@pytest.mark.parametrize(("where", "ends"), [("slurm", ["cancelled"]), ("local", [])])
def test_a_cancel_tells_of_the_end_on_a_cluster(
    tmp_path: Path, where: Any, ends: list[str]
) -> None:
    """On this machine the `orch run` that trains tells; on a cluster nobody else would."""
    with webhook() as (address, messages):
        cancel_command._notify_end(replace(experiment(tmp_path, {"webhook": address}), where=where))
    assert [each["ended"] for each in messages] == ends


@pytest.mark.slow
@pytest.mark.parametrize("way", ["command", "webhook"])
def test_a_cancel_of_a_run_on_this_machine_tells_once(tmp_path: Path, way: str) -> None:
    """`orch cancel` in one shell, `orch run` in another: the one that trains tells."""
    kept = tmp_path / "kept.json"
    with webhook() as (address, messages):
        tells = {"command": [sys.executable, "-c", KEEP, str(kept)], "webhook": address}
        spec = ["smoke", "site=local", "-w", "kl=none", f"site.runs_dir={tmp_path}/runs"]
        spec += [
            "+base.num_train_steps=100000",
            f"site.options.on_end={{{way}: {json.dumps(tells[way])}}}",
        ]
        program = [sys.executable, "-m", "orchestrator"]
        run = subprocess.Popen(
            [*program, "run", *spec, "--train-only"], stderr=subprocess.PIPE, text=True
        )
        try:
            wait_for(lambda: list(tmp_path.glob("runs/*/cells/*/attempts/*/metrics*")), run)
            cancelled = subprocess.run(
                [*program, "cancel", *spec], capture_output=True, text=True, check=False
            )
            assert "1 of 1 cells cancelled" in cancelled.stdout, cancelled.stderr
            _, said = run.communicate(timeout=120)
        finally:
            run.kill()
    got = messages if way == "webhook" else [json.loads(kept.read_text())]
    assert [(each["ended"], each["cells"]) for each in got] == [("cancelled", {"cancelled": 1})], (
        said
    )


def wait_for(happened: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Return once it has happened. Fail if the process ends before."""
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.2)
