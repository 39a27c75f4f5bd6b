"""The site builds, every link leads somewhere, and the references are the product's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orch
from orchestrator.cli import COMMANDS
from orchestrator.spec.fields import FIELDS

ROOT = Path(__file__).parents[1]
REPORT = "<!doctype html><title>a report</title>\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    page = tmp_path_factory.mktemp("runs") / "smoke.micro" / "report" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(REPORT)
    environment = {**os.environ, "ORCH_RUNS_DIR": str(page.parents[2])}
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", folder]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment,
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


@pytest.mark.slow
def test_the_gallery_leads_to_the_reports_that_were_run(site: Path) -> None:
    gallery = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    assert 'href="../reports/smoke.micro/' in gallery
    assert (site / "reports" / "smoke.micro" / "index.html").read_text() == REPORT


@pytest.mark.slow
def test_the_explanation_shows_the_verdicts(site: Path) -> None:
    text = (site / "explanation" / "index.html").read_text(encoding="utf-8")
    assert "k3 in loss" in text
    assert "token-level forward KL" in text
