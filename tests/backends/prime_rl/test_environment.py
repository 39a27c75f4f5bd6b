"""The environment that travels with a plan: its prompts and its rewards."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.prime_rl import BACKEND, environment
from backends.prime_rl.manifest import ENVIRONMENT
from orchestrator import scoring
from orchestrator.records import AttemptPaths, Cell
from tests.backends import child
from tests.backends.environments import library_python
from tests.backends.shipped import WORTH, rewards

STAND_INS = """
import json, types
from pathlib import Path
folder, right, wrong, label = sys.argv[1:]
sys.path.insert(0, folder)
Path(folder, "data").mkdir()
Path(folder, "data", "train.jsonl").write_text(json.dumps({"question": "q", "answer": label}))
sys.modules["datasets"] = types.SimpleNamespace(
    load_dataset=lambda kind, data_files, split: [json.loads(Path(data_files).read_text())])
sys.modules["verifiers"] = types.SimpleNamespace(
    SingleTurnEnv=types.SimpleNamespace, Rubric=types.SimpleNamespace)
import orch_prime_rl_environment
made = orch_prime_rl_environment.load_environment("a/b", "train", RULE, "Box it.", 1)
[reward] = made.rubric.funcs
assert made.dataset == [{"question": "q", "answer": label}]
print(json.dumps([
    reward(right, label), reward([{"role": "assistant", "content": wrong}], label)
]))
"""


@pytest.mark.parametrize("rule", WORTH)
def test_it_stands_alone(rule: str, base: Cell, tmp_path: Path) -> None:
    settings = base.settings
    data = settings.data.model_copy(update={"reward": rule})
    cell = base.model_copy(update={"settings": settings.model_copy(update={"data": data})})
    place = AttemptPaths(tmp_path / "plan", tmp_path / "attempts" / "1", tmp_path / "checkpoints")
    program = STAND_INS.replace("RULE", repr(rule))
    assert rewards(program, BACKEND.translate(cell, place), place.plan_dir, rule) == WORTH[rule]


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
