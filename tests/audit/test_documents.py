"""What documents show of `orch audit` is what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from audit.scripts import USE_LOSS, VERL
from orchestrator.cli.audit import command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "audit.md"


def test_the_page_shows_what_audit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Audit a launch script")[2]
    script, shown = re.findall(r"^```\w+\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    Path("grpo.sh").write_text(script, encoding="utf-8")
    said = CliRunner().invoke(command, ["grpo.sh"], standalone_mode=False).stdout.splitlines()
    for line in shown.splitlines():
        assert line in said
        said = said[said.index(line) + 1 :]


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    text = text.partition("## What it reads")[2]
    block = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "examples").mkdir()
    for name in ("train.sh", "old.sh", "examples/a.sh"):
        (tmp_path / name).write_text(f"{VERL} {USE_LOSS}=True", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/sh", "-c", block], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Usage" not in done.stderr + done.stdout
    assert "not found" not in done.stderr
    answers = done.stdout.count("k3_of_old_samples") + done.stdout.count("You wrote")
    assert answers >= block.count("orch audit ") - 1, "all but the table"
    assert (tmp_path / "train.sh.orch.diff").exists()


def test_the_page_lists_every_verdict() -> None:
    from typing import get_args

    from orchestrator.audit.verdicts import PROBLEMS
    from orchestrator.library.launches import AuditVerdict

    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \|\s*([^|]*?)\s*\|$", text, flags=re.MULTILINE)
    listed = {name: told.strip() == "yes" for name, told in rows if name in get_args(AuditVerdict)}
    assert set(listed) == set(get_args(AuditVerdict))
    assert {name for name, problem in listed.items() if problem} == PROBLEMS
