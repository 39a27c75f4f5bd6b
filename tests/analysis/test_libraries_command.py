"""`orch compare --by backend`, as a person uses it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, orch

from orchestrator.rundir import RunFolder
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.launch.kit import ended, leave

SMALL = """\
defaults: [recipe: onpolicy_math, site: local, _self_]
name: small
question: Do two libraries agree?
seeds: [0, 1]
model: qwen2.5-7b
studies:
  libraries:
    base: {num_train_steps: 10, batch.num_prompts: 8}
    axes:
      backend: [verl@0.9.1, verl@0.8.0, openrlhf@0.11.2]
      kl: [k1.reward]
      kl.beta: [0.3]
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries") / "a 'b' é"
    folder.mkdir()
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    (folder / "experiments" / "small.yaml").write_text(SMALL)
    done = orch(folder, "run", "experiments/small.yaml", "--train-only")
    assert done.returncode == 0, done.stderr
    return folder


def compare(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return orch(folder, "compare", "experiments/small.yaml", "--by", "backend", *more)


def page(folder: Path, *more: str) -> Any:
    done = compare(folder, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_has_every_part(folder: Path) -> None:
    found = page(folder)
    assert found["base"] == "verl@0.9.1"
    told = found["ledgers"]
    assert {each["field"] for each in told["verl@0.8.0"]} == {"seed"}
    assert "kl.placement" in {each["field"] for each in told["openrlhf@0.11.2"]}
    predicted = found["predicted"]
    verdicts = {d["right"]: d["verdict"] for d in predicted["differences"]}
    assert verdicts["verl@0.8.0"] == "same mathematics"
    assert verdicts["openrlhf@0.11.2"].startswith(("open", "indistinguishable", "differs"))
    assert {s["library"] for s in predicted["scores"]} == {found["base"], *told}
    assert predicted["missing"] == []
    assert "observed" not in found


def test_predicted_and_observed_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    """Records of the libraries themselves, in their own logs, beside the rehearsals."""
    home = tmp_path / "home"
    shutil.copytree(folder, home)
    spec = load(home / "experiments" / "small.yaml")
    runs = RunFolder.of(home / "runs", spec.name, "full")
    for cell in expand(spec):
        settings = cell.settings
        if settings.backend.name != "verl":
            continue
        (attempt,) = leave(runs, cell, ended()).attempts()
        last = 0.9 if settings.backend.version == "0.9.1" else 0.4 + settings.seed / 1000
        attempt.stdout.write_text(
            "".join(
                f"step:{step} - critic/score/mean:{last * step / 10}\n" for step in range(1, 11)
            )
        )
    found = page(home)
    assert found["predicted"]["metric"] == "eval/accuracy_in_domain"
    assert found["observed"]["metric"] == "train/reward_mean"
    observed = {d["right"]: d for d in found["observed"]["differences"]}
    assert observed["verl@0.8.0"]["verdict"] == "differs"
    assert observed["verl@0.8.0"]["difference"]["mean"] == pytest.approx(-0.4995)
    predicted = {d["right"]: d["verdict"] for d in found["predicted"]["differences"]}
    assert predicted["verl@0.8.0"] == "same mathematics"
    assert any(
        "openrlhf@0.11.2 has no result for seed 0 and 1" in x for x in found["observed"]["missing"]
    )


def test_mistakes_are_sentences(folder: Path) -> None:
    refusals = [
        (("--by", "backend", "-w", "backend.version=0.9.1"), "name two libraries"),
        (("--by", "backend", "--metric", "eval/nothing"), "no run measured eval/nothing"),
        (("--by", "backend", "-w", "state=failed"), "not by state"),
    ]
    for arguments, words in refusals:
        done = orch(folder, "compare", "experiments/small.yaml", *arguments)
        assert done.returncode == 1, arguments
        assert words in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
    unknown = SMALL.replace("verl@0.8.0", "verl@0.8.x").replace("name: small", "name: unknown")
    (folder / "experiments" / "unknown.yaml").write_text(unknown)
    done = orch(folder, "compare", "experiments/unknown.yaml", "--by", "backend")
    assert done.returncode == 1
    assert "verl has no release '0.8.x' here, did you mean '0.8.0'?" in done.stderr
