"""The environment that travels with a plan: its prompts and its rewards."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.prime_rl import environment
from backends.prime_rl.manifest import ENVIRONMENT
from orchestrator import scoring
from tests.backends import child
from tests.backends.environments import library_python


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a plan with three prepared prompts; stand-ins for the libraries."""
    (tmp_path / "data").mkdir()
    (tmp_path / environment.PROMPTS.format("train")).write_text(
        '{"question": "q", "answer": "2"}\n' * 3
    )
    monkeypatch.setattr(environment, "PLAN", tmp_path)
    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(
            load_dataset=lambda kind, data_files, split: Path(data_files).read_text().splitlines(),
        ),
    )
    monkeypatch.setitem(sys.modules, "verifiers", SimpleNamespace())
    return tmp_path


def test_prompts_that_are_not_prepared_are_a_sentence(prompts: Path) -> None:
    (prompts / environment.PROMPTS.format("train")).unlink()
    with pytest.raises(FileNotFoundError, match=r"the prompts of a/b .* orch data prepare"):
        environment.load_environment("a/b", "train", "math_boxed")


def test_another_number_of_prompts_is_refused(prompts: Path) -> None:
    with pytest.raises(ValueError, match="has 3 prompts of a/b, not 7500"):
        environment.load_environment("a/b", "train", "math_boxed", num_prompts=7500)


@pytest.mark.slow
@pytest.mark.thorough
def test_verifiers_itself_serves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version Prime-RL 0.5.0 is locked to, in an environment of its own."""
    python = library_python("verifiers", no_deps=[], needs=["verifiers==0.1.12", "math-verify"])
    rows = {
        "mathematics": [
            {"question": "1/4 + 1/4? Box it.", "answer": "0.5"},
            {"question": "2? Box it.", "answer": "2"},
        ],
        "countdown": [{"question": "Make 22.", "answer": '{"numbers": [3, 5, 7], "target": 22}'}],
    }
    for rule, made in rows.items():
        folder = tmp_path / rule
        (folder / "data").mkdir(parents=True)
        for name in ("math_boxed", "countdown"):
            for file, text in scoring.files(name).items():
                (folder / file).parent.mkdir(exist_ok=True)
                (folder / file).write_text(text)
        (folder / f"{ENVIRONMENT}.py").write_text(Path(environment.__file__).read_text())
        (folder / environment.PROMPTS.format("train")).write_text(
            "".join(json.dumps(r) + "\n" for r in made)
        )
        (folder / environment.PROMPTS.format("validation")).write_text(
            '{"question": "3? Box it.", "answer": "3"}\n'
        )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    parent = child.Imported(python, ("datasets", "verifiers"))
    served = Path(__file__).with_name("served.py")
    found: dict[str, Any] = {}
    for rule in rows:
        arguments = (served, tmp_path / rule, rule)
        done = child.forked(parent, child.RUN_AS_SCRIPT, arguments, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        found |= json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "prompts": ["1/4 + 1/4? Box it.", "2? Box it."],
        "right": 1.0,
        "wrong": 0.0,
        "met": 1.0,
        "missed": 0.05,
        "validation": ["3? Box it."],
    }
