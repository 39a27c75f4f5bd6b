"""What all commands have alike: exit codes, flags, `Next:`."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from command_line import ROOT, orch

from orchestrator.cli import COMMANDS, conventions
from orchestrator.cli import orch as group
from orchestrator.files import write_text

SMOKE = str(ROOT / "experiments" / "smoke.yaml")
READ_ONLY = (
    *("plan", "status", "logs", "show", "compare", "dashboard", "audit", "explain"),
    *("diagnose", "doctor", "env list", "env check", "env lock"),
)
"""Commands that write nothing, or only what an option of theirs asks for (--fix, --out)."""
DRY_RUN = ("run", "cancel", "retry", "prune", "tune")
"""Commands that change runs: they take `--dry-run`."""
WITHOUT_DRY_RUN = {
    "init": "it writes new files, and refuses to overwrite",
    "data prepare": "what is prepared and whole is left alone; `orch doctor SPEC` says what lacks",
    "eval": "it only adds scores that are not there",
    "env create": "`orch env list` says what is made",
    "report": "it changes no run, and what it writes is made anew at any time",
}
"""Other commands that write: why they have no `--dry-run`."""
ENDLESS = {"dashboard", "init"}
"""The one ends by Ctrl-C; the other says what is next in a sentence of its own."""


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = group.get_command(None, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", each) for part, each in command.commands.items())
        else:
            yield name, command


def test_every_command_has_the_common_flags_and_says_what_is_next() -> None:
    for name, command in every_command():
        options = {text for param in command.params for text in param.opts}
        assert {"-q", "-v", "--json"} <= options, name
        if "spec" in {param.name for param in command.params}:
            assert {"--runs-dir", "-w"} <= options, name
        assert ("--dry-run" in options) == (name in DRY_RUN), name
        kinds = (DRY_RUN, READ_ONLY, WITHOUT_DRY_RUN)
        assert sum(name in kind for kind in kinds) == 1, name
        assert name in conventions.NEXT or name in ENDLESS, name
    assert {
        code for codes in conventions.NEXT.values() for code in codes
    } <= conventions.EXIT_CODES.keys()


def test_usage_faults_and_changes_have_codes_of_their_own(tmp_path: Path) -> None:
    planned = orch(tmp_path, "plan", "smoke")
    assert planned.returncode == 0
    assert planned.stderr.rstrip().endswith("Next: orch run smoke")
    assert orch(tmp_path, "plan").returncode == 2
    *table, _ = planned.stdout.partition("still to spend")[0].splitlines()
    assert all(len(line) <= 80 for line in table), "a plan fits a terminal"
    assert orch(tmp_path, "plan", "smok").returncode == 1


def test_quiet_verbose_and_runs_folder(tmp_path: Path) -> None:
    quiet = orch(tmp_path, "status", SMOKE, "-q", "--runs-dir", tmp_path / "it's elsewhere")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    elsewhere = orch(tmp_path, "plan", "smoke", "--runs-dir", "r1")
    assert "Next: orch run smoke --runs-dir r1" in elsewhere.stderr
    abroad = orch(tmp_path, "plan", "smoke", "--runs-dir", tmp_path / "ü")
    assert abroad.returncode == 0, abroad.stderr
    some = orch(tmp_path, "status", "smoke", "-w", "kl.beta>0", "-w", "kl=k3.loss").stderr
    assert "Next: orch run smoke -w 'kl.beta>0' -w kl=k3.loss" in some, "nothing is done yet"
    wrong = orch(tmp_path, "plan", "smok", "-v")
    assert "Traceback" in wrong.stderr
    assert re.search(
        r"orch explain: [\d.]+ s", orch(tmp_path, "explain", "k1", "loss", "-v").stderr
    )


CALLS: dict[str, tuple[str, ...]] = {
    "plan": (SMOKE,),
    "run": (SMOKE, "--train-only"),
    "status": (SMOKE,),
    "logs": ("CELL",),
    "cancel": (SMOKE,),
    "retry": (SMOKE,),
    "prune": (SMOKE,),
    "show": ("CELL",),
    "eval": (SMOKE,),
    "compare": (SMOKE,),
    "report": (SMOKE, "--no-figures"),
    "tune": (str(ROOT / "experiments" / "beta_sweep.yaml"), "--dry-run"),
    "audit": ("train.sh",),
    "diagnose": ("history.jsonl",),
    "explain": ("k3", "loss"),
    "env list": (),
    "doctor": (SMOKE, "--no-probe"),
    "init": ("mine",),
}
"""Command -> a call that is cheap where smoke.yaml has run."""

MORE_CALLS = (
    ("explain", "--libraries"),
    ("report", SMOKE, "--format", "mlflow"),
)
"""Calls of what was once a command of its own."""

DEAR = {
    "dashboard": "it ends by Ctrl-C (test_watch.py)",
    "env create": "it installs a library (tests/environments)",
    "env check": "it needs an installed library (tests/environments)",
    "env lock": "it asks a registry (tests/environments)",
    "data prepare": "tests/data",
}


@pytest.fixture(scope="module")
def ended(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished run, beside what some commands read."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    shutil.copytree(finished, folder)
    (folder / "train.sh").write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001\n"
    )
    (folder / "history.jsonl").write_text(
        "".join(f'{{"_step": {n}, "actor/grad_norm": 1.0}}\n' for n in range(20))
    )
    return folder


@pytest.mark.slow
def test_every_command_prints_what_it_did_as_json(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output holds one JSON document and nothing else; sentences go beside it."""
    monkeypatch.chdir(ended)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert {name for name, _ in every_command()} == CALLS.keys() | DEAR.keys()
    cell = next((ended / "runs" / "smoke.micro" / "cells").iterdir()).name
    calls = [(*name.split(), *words) for name, words in CALLS.items()]
    for call in (*calls, *MORE_CALLS):
        argv = [*(cell if word == "CELL" else word for word in call), "--json"]
        done = CliRunner().invoke(group, argv, standalone_mode=False)
        assert done.exception is None, (argv, done.exception, done.output)
        try:
            printed = json.loads(done.stdout)
        except ValueError:
            pytest.fail(f"{argv} printed {done.stdout[:300]!r}")
        assert isinstance(printed, dict | list), argv


@pytest.mark.slow
def test_a_dry_run_says_what_then_happens(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each verb that changes something foresees it, changes nothing, and then does just that."""
    monkeypatch.chdir(workspace)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cells = sorted((workspace / "runs" / "smoke.micro" / "cells").iterdir())
    for exit_file in cells[0].glob("attempts/*/exit.json"):
        ended = json.loads(exit_file.read_text()) | {"state": "failed", "failure": "error"}
        write_text(exit_file, json.dumps(ended))

    def done(*argv: str) -> tuple[int, Any]:
        call = CliRunner().invoke(group, [*argv, "--json"], standalone_mode=False)
        assert call.exception is None, (argv, call.exception)
        return call.return_value or 0, json.loads(call.stdout)

    def files() -> dict[str, int]:
        """Every file of the runs but MLflow's, which reading opens."""
        return {
            str(path): path.stat().st_mtime_ns
            for path in (workspace / "runs").rglob("*")
            if path.is_file() and not path.name.startswith("mlflow.db")
        }

    def foreseen(*argv: str) -> tuple[int, Any]:
        before = files()
        answer = done(*argv, "--dry-run")
        assert files() == before, argv
        return answer

    spec = "experiments/smoke.yaml"
    for verb in ("retry", "cancel"):
        code, rows = foreseen(verb, spec)
        assert code == 0, verb
        assert [r["done"] for r in rows].count(True) == 1, rows
        _, changed = done(verb, spec)
        assert [r["done"] for r in changed] == [r["done"] for r in rows]
        assert foreseen(verb, spec)[0] == 0, f"{verb} has nothing left to do"
    assert foreseen("run", spec)[0] == 0, "what was cancelled is left alone"
    done("retry", spec)
    assert foreseen("run", spec)[0] == 0
    assert foreseen("prune", spec, "seeds=[1]")[0] == 0
    assert foreseen("prune", spec)[0] == 0
