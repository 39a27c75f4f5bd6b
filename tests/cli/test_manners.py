"""What all commands have alike: exit codes, flags, `Next:`, completion."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from command_line import ROOT, orch

from orchestrator.cli import COMMANDS, manners
from orchestrator.cli import orch as group

SMOKE = str(ROOT / "experiments" / "smoke.yaml")
ENDLESS = {"dashboard", "init"}
"""The one ends by Ctrl-C; the other says what is next in a sentence of its own."""


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = group.get_command(None, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", each) for part, each in command.commands.items())
        else:
            yield name, command


def test_every_command_has_the_common_flags_and_says_what_is_next() -> None:
    for name, command in every_command():
        options = {text for param in command.params for text in param.opts}
        assert {"-q", "-v"} <= options, name
        if "spec" in {param.name for param in command.params}:
            assert "--runs-dir" in options, name
        assert name in manners.NEXT or name in ENDLESS, name
    assert {code for codes in manners.NEXT.values() for code in codes} <= manners.EXIT_CODES.keys()


def test_every_exit_code_in_a_command_is_in_the_table() -> None:
    for path in (ROOT / "orchestrator" / "cli").glob("*.py"):
        for code in re.findall(r"^\s+return (\d+)$", path.read_text(encoding="utf-8"), re.M):
            assert int(code) in manners.EXIT_CODES, f"{path.name} returns {code}"


def test_usage_faults_and_changes_have_codes_of_their_own(tmp_path: Path) -> None:
    planned = orch(tmp_path, "plan", "smoke")
    assert planned.returncode == 3
    assert planned.stderr.rstrip().endswith("Next: orch run smoke")
    assert orch(tmp_path, "plan").returncode == 2
    *table, _ = planned.stdout.partition("still to spend")[0].splitlines()
    assert all(len(line) <= 80 for line in table), "a plan fits a terminal"
    assert orch(tmp_path, "plan", "smok").returncode == 1


def test_quiet_verbose_and_runs_folder(tmp_path: Path) -> None:
    quiet = orch(tmp_path, "status", SMOKE, "-q", "--runs-dir", tmp_path / "it's elsewhere")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    wrong = orch(tmp_path, "plan", "smok", "-v")
    assert "Traceback" in wrong.stderr
    assert re.search(
        r"orch explain: [\d.]+ s", orch(tmp_path, "explain", "k1", "loss", "-v").stderr
    )


def test_data_is_followed_by_nothing(tmp_path: Path) -> None:
    assert "Next" not in orch(tmp_path, "plan", "smoke", "--json").stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("orch plan bet", "beta_sweep"),
        ("orch plan smoke samp", "sampling="),
        ("orch plan smoke sampling=", "sampling=paper_literal"),
        ("orch plan smoke base.kl.place", "base.kl.placement="),
        ("orch plan smoke base.kl.placement=", "base.kl.placement=reward"),
        ("orch plan smoke -w kl.est", "kl.estimator="),
        ("orch plan smoke -w kl.estimator=", "kl.estimator=k3"),
        ("orch plan smoke -w state=", "state=failed"),
        ("orch show smoke qwen", "qwen2.5-7b-math-none-verl-s0"),
        ("orch explain k", "k3"),
    ],
)
def test_words_are_completed(
    tmp_path: Path, words: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMP_WORDS", words)
    *before, last = words.split()[1:]
    offered = ShellComplete(group, {}, "orch", "_ORCH_COMPLETE").get_completions(before, last)
    assert wanted in [item.value for item in offered]


def test_bash_completes_behind_an_equals_sign(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    words = ("orch", "plan", "smoke", "-w", "kl.estimator=k")
    script = f"""
        source <(orch completion bash 2>/dev/null)
        COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
        _orch_completion orch; printf '%s\\n' "$COMP_WORDBREAKS" "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "kl.estimator=k3" in done.stdout.splitlines(), done.stdout + done.stderr
    assert "=" not in done.stdout.partition("kl.")[0]
