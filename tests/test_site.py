"""The site builds, every link leads somewhere, and the references are the product's."""

import subprocess
import sys
from pathlib import Path

import pytest

import orch
from orchestrator.cli import COMMANDS
from orchestrator.spec.fields import FIELDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", folder]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"),
    [("cli", COMMANDS), ("spec", FIELDS), ("api", orch.__all__)],
    ids=["commands", "fields", "functions"],
)
def test_a_reference_names_all(site: Path, page: str, words: list[str]) -> None:
    text = (site / "reference" / page / "index.html").read_text(encoding="utf-8")
    sections = {"model", "data", "advantage", "loss", "kl", "rollout", "batch", "optimizer"}
    sections |= {"backend", "precision", "resources", "cadence", "loss.clip"}
    assert not [word for word in words if word not in text and word not in sections]
