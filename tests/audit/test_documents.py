"""What the README shows of `orch audit` is what it says."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.audit import command

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_shows_what_audit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = README.read_text(encoding="utf-8").partition("## Audit a launch script")[2]
    script, shown = re.findall(r"^```\w+\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    Path("grpo.sh").write_text(script, encoding="utf-8")
    said = CliRunner().invoke(command, ["grpo.sh"], standalone_mode=False).stdout.splitlines()
    for line in shown.splitlines():
        assert line in said
        said = said[said.index(line) + 1 :]
