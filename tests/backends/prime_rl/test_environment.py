"""Rewards of the environment that travels with a plan, and how it reads a data set."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.prime_rl import environment
from tests.backends.environments import library_python

PROBLEM = json.dumps({"numbers": [3, 5, 7], "target": 22})


@pytest.mark.parametrize(("text", "answer", "score"), [
    (r"so \boxed{4}", "4", 1.0), (r"\boxed{3} no, \boxed{4}", r"It is \boxed{4}.", 1.0),
    (r"\boxed{\frac{1}{2}}", "0.5", 1.0), (r"\boxed{5}", "4", 0.0), ("4", "4", 0.0),
    (r"\boxed{4", "4", 0.0), (r"\boxed{\text{a{b}c}}", r"\text{a{b}c}", 1.0),
])  # fmt: skip
def test_math_boxed(text: str, answer: str, score: float) -> None:
    assert environment.math_boxed(text, answer) == score


@pytest.mark.parametrize(("text", "score"), [
    ("<answer>3*5+7</answer>", 1.0), ("<answer>1</answer> <answer> 7 + 5*3 </answer>", 1.0),
    ("3*5+7", 1.0), ("<answer>22</answer>", 0.05), ("<answer>3*7+5</answer>", 0.05),
    ("<answer>3*5+7=22</answer>", 0.01), ("<answer>7/0</answer>", 0.01), ("", 0.01),
    ("<answer>__import__('os')</answer>", 0.01), ("<answer>9**9**9</answer>", 0.01),
    ("<answer>" + "(" * 5000 + "</answer>", 0.01),
])  # fmt: skip
def test_countdown(text: str, score: float) -> None:
    assert environment.countdown(text, PROBLEM) == score


class Rows(list[dict[str, Any]]):
    """As much of a datasets.Dataset as is used."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def map(self, function: Any, remove_columns: list[str]) -> "Rows":
        return Rows(
            {k: v for k, v in row.items() if k not in remove_columns} | function(row)
            for row in self
        )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for verifiers and datasets; what they were asked."""
    seen: dict[str, Any] = {"rows": Rows([{"problem": "1+1?", "solution": r"\boxed{2}"}] * 3)}

    def load_dataset(*args: Any, **kwargs: Any) -> Rows:
        seen["load"] = (args, kwargs)
        rows: Rows = seen["rows"]
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setitem(sys.modules, "verifiers", SimpleNamespace(
        SingleTurnEnv=lambda **kwargs: SimpleNamespace(**kwargs),
        Rubric=lambda **kwargs: SimpleNamespace(**kwargs),
    ))  # fmt: skip
    return seen


def test_a_data_set_of_the_hub(asked: dict[str, Any]) -> None:
    made = environment.load_environment("a/b", "train", "math_boxed", "Box it.", 3)
    assert asked["load"] == (("a/b",), {"split": "train"})
    assert made.dataset[0] == {"question": "1+1? Box it.", "answer": r"\boxed{2}"}
    [reward] = made.rubric.funcs
    assert reward([{"role": "assistant", "content": r"\boxed{2}"}], r"\boxed{2}") == 1.0
    assert reward(r"\boxed{3}", r"\boxed{2}") == 0.0


def test_a_file_is_taken_from_the_data_directory(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_DATA_DIR", "/data dir")
    asked["rows"] = Rows([{"question": "q", "metadata": {"numbers": [1], "target": 1}}])
    made = environment.load_environment("countdown/train.jsonl", "train", "countdown")
    assert asked["load"][0] == ("json",)
    assert asked["load"][1]["data_files"] == "/data dir/countdown/train.jsonl"
    assert json.loads(made.dataset[0]["answer"])["target"] == 1


def test_a_data_set_that_changed_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has 3 prompts in split train, not 7500"):
        environment.load_environment("a/b", "train", "math_boxed", num_prompts=7500)
    asked["rows"] = Rows([{"text": "x"}])
    with pytest.raises(ValueError, match="no column question or problem or prompt; it has text"):
        environment.load_environment("a/b", "train", "math_boxed")


@pytest.mark.slow
def test_verifiers_itself_serves_it(tmp_path: Path) -> None:
    """The version Prime-RL 0.5.0 is locked to, in an environment of its own."""
    python = library_python("verifiers", no_deps=[], needs=["verifiers==0.1.12", "math-verify"])
    shutil.copy(environment.__file__, tmp_path / "orch_prime_rl_environment.py")
    rows = [{"question": "1/4 + 1/4?", "answer": "0.5"}, {"question": "2?", "answer": "2"}]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problem = {"question": "Make 22.", "metadata": {"numbers": [3, 5, 7], "target": 22}}
    (tmp_path / "countdown.jsonl").write_text(json.dumps(problem) + "\n")
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name("served.py")), str(tmp_path)],
        capture_output=True, text=True, check=False,
        env=os.environ | {"ORCH_DATA_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1",
                          "HF_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "prompts": ["1/4 + 1/4? Box it.", "2? Box it."], "right": 1.0, "wrong": 0.0, "met": 1.0,
        "missed": 0.05,
    }  # fmt: skip
