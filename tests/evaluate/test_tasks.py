"""The task files of MATH, MMLU and Countdown, through the real lm-eval, offline."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import task_data, task_files
from orchestrator.evaluate.scores import ScoringJob
from orchestrator.harness_tasks import TaskLoader
from orchestrator.records import EvalTask
from tests.evaluate.data import MMLU, answers_of, request, stand_ins, write_lines

pytestmark = pytest.mark.slow

SIZES = {
    "math500": 500,
    "math2": 210,
    "math_test": 5000,
    "mmlu_college_physics": 118,
    "mmlu_college_chemistry": 113,
    "mmlu_college_biology": 165,
    "countdown": 500,
}
"""Items of each task: §4.1 of the paper; Countdown's are ours."""


@pytest.fixture(scope="module")
def harness() -> ModuleType:
    from orchestrator.evaluate import harness

    return harness


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: ModuleType) -> Iterator[Path]:
    root = tmp_path / "da ta'\" ü"
    root.mkdir()
    monkeypatch.setenv(task_data.VARIABLE, str(stand_ins(root)))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    task_data._stand_ins.cache_clear()
    harness.load_task.cache_clear()
    yield root
    harness.load_task.cache_clear()


def path_of(task: str) -> Path:
    return task_files.find_task(task, (task_files.OWN_TASKS,))


class Parrot:
    """Gives the k-th response to a prompt what `answers` says, and remembers what it was asked."""

    def __init__(self, answers: Any):
        from lm_eval.api.model import LM

        class Model(LM):  # type: ignore[misc]  # lm-eval is untyped: LM is Any
            tokenizer_name = "parrot"

            def __init__(self) -> None:
                super().__init__()
                self.asked: list[tuple[str, dict[str, Any]]] = []
                self.count: dict[str, int] = {}

            def generate_until(self, requests: Any) -> list[str]:
                responses = []
                for each in requests:
                    prompt, kwargs = each.args
                    repeat = self.count.get(prompt, 0)
                    self.count[prompt] = repeat + 1
                    self.asked.append((prompt, kwargs))
                    responses.append(answers(prompt, repeat))
                return responses

            def has_template(self) -> bool:
                return True

            def apply_chat_template(self, history: Any, add_generation_prompt: bool = True) -> str:
                return f"<|im_start|>user\n{history[0]['content']}<|im_end|>\n"

            def seeded(self, seed: int) -> None:
                pass

            def loglikelihood(self, requests: Any) -> Any:
                raise AssertionError("a generative task asked for a likelihood")

            loglikelihood_rolling = loglikelihood

        self.model = Model()


def scored(
    harness: ModuleType,
    folder: Path,
    task: str,
    answers: Any,
    repeats: int = 4,
) -> tuple[Any, dict[str, float], list[dict[str, Any]]]:
    parrot = Parrot(answers).model
    ask = request(folder, path_of(task), task=EvalTask(name=task, domain="in", repeats=repeats))
    harness._answer(parrot, ScoringJob(cell_id="cell", checkpoint="", files={}, asks=(ask,)), ask)
    result, items = answers_of(ask)
    return parrot, {score.metric: score.value for score in result.scores}, items


def test_every_task_of_the_paper_has_its_size() -> None:
    import yaml

    for task, size in SIZES.items():
        plain = yaml.load(path_of(task).read_text(), TaskLoader)  # noqa: S506  (lm-eval's own loader)
        assert plain["metadata"]["num_items"] == size
    comedy = Path(__file__).parents[2] / "experiments" / "evaluation" / "comedy.yaml"
    named = {task["name"] for task in yaml.safe_load(comedy.read_text())["tasks"]}
    assert named <= set(SIZES)
    shared = yaml.safe_load((comedy.parents[1] / "data" / "math.yaml").read_text())
    assert shared["instruction"] in (
        path_of("math500").parent / "math_task.py"
    ).read_text().replace("\\\\", "\\")


@pytest.mark.parametrize("task", ["math500", "math_test", "math2"])
def test_math_is_read_and_scored(
    harness: ModuleType, local: Path, tmp_path: Path, task: str
) -> None:
    """Of four responses to a/b: the fraction, its decimal, a wrong one twice."""

    def answers(prompt: str, repeat: int) -> str:
        a, b = map(int, re.findall(r"\d+", prompt)[:2])
        return [
            f"So \\boxed{{\\dfrac{{{a}}}{{{b}}}}}",
            f"Thus the answer is {a / b}.",
            "I think \\boxed{7}",
            "Hm. \\boxed{7}",
        ][repeat]

    parrot, told, items = scored(harness, tmp_path, task, answers)
    assert told["mean@4"] == 0.5
    assert told["pass@4"] == 1
    assert told["pass@2"] == pytest.approx(1 - 1 / 6)
    assert told["maj@4"] == 0.5  # two say the fraction, two say 7: a tie counts its share
    assert told["distinct@4"] == 2
    assert (told["boxed@4"], told["unboxed@4"]) == (0.25, 0.25)
    assert len(items) == 6
    assert {len(item["responses"]) for item in items} == {4}
    prompt, kwargs = parrot.asked[0]
    assert prompt.startswith("What is 1 over 4?")
    assert prompt.endswith("within \\boxed{}.")
    assert kwargs["max_gen_toks"] == 1024
    assert "<|im_end|>" in kwargs["until"]
    assert kwargs["do_sample"] is True
    assert "seed" not in kwargs


@pytest.mark.parametrize("subject", MMLU)
def test_mmlu_joins_its_splits_and_reads_the_letter(
    harness: ModuleType, local: Path, tmp_path: Path, subject: str
) -> None:
    """The right letter of the i-th question of a split is the i-th."""

    def answers(prompt: str, repeat: int) -> str:
        right = "ABCD"[int(re.findall(r"(\d)\?", prompt)[0]) % 4]
        return f"Because.\n\\boxed{{{right}}}" if repeat else "The answer is (D)."

    parrot, told, items = scored(harness, tmp_path, f"mmlu_college_{subject}", answers, repeats=2)
    order = [re.findall(r" (\w+) \d\?", item["prompt"])[0] for item in items]
    assert order == ["test"] * 3 + ["validation"] * 2 + ["dev"]
    assert [item["target"] for item in items] == ["A", "B", "C", "A", "B", "A"]
    assert told["mean@2"] == 0.5
    assert told["pass@2"] == 1
    assert "\nA. one\nB. two\nC. three\nD. four\n" in parrot.asked[0][0]


def test_countdown_is_scored_as_in_training(harness: ModuleType, tmp_path: Path) -> None:
    problems = [
        json.loads(line) for line in (path_of("countdown").parent / "held_out.jsonl").open()
    ]

    def answers(prompt: str, repeat: int) -> str:
        target, *numbers = map(int, re.findall(r"\d+", prompt))
        one = next(p for p in problems if p["numbers"] == numbers and p["target"] == target)
        return f"<answer>{one['solution']}</answer>" if repeat else "<answer>1 + 1</answer>"

    _, told, items = scored(harness, tmp_path, "countdown", answers, repeats=2)
    assert len(items) == 500
    assert told["mean@2"] == 0.5
    assert told["reward@2"] == pytest.approx((1 + 0.05) / 2)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda root: (root / "math500.parquet").unlink(), "has no data for task math500"),
        (lambda root: (root / "math500.parquet").write_bytes(b"PAR1 cut"), "cannot be read"),
        (
            lambda root: (
                (root / "math500.parquet").unlink(),
                write_lines(root / "math500.jsonl", [{"q": "?", "answer": "1"}]),
            ),
            "needs a column problem; the data have q, answer",
        ),
        (
            lambda root: (
                (root / "math500.parquet").unlink(),
                write_lines(root / "math500.jsonl", [{"problem": "?", "answer": ""}]),
            ),
            "row 0 has no final answer",
        ),
        (lambda root: (root / "stand_in.json").write_text("[1]"), "must map task names"),
    ],
)
def test_spoiled_data_are_a_sentence(
    harness: ModuleType, local: Path, tmp_path: Path, spoil: Any, sentence: str
) -> None:
    spoil(local)
    task_data._stand_ins.cache_clear()
    with pytest.raises(EnvironmentFault, match=sentence):
        scored(harness, tmp_path, "math500", lambda *_: "")


def test_a_solution_without_a_box_is_no_gold(
    harness: ModuleType, local: Path, tmp_path: Path
) -> None:
    for file in local.glob("math2.*"):
        file.unlink()
    write_lines(local / "math2.jsonl", [{"question": "?", "solution": "It is 7."}])
    task_data._stand_ins.cache_clear()
    with pytest.raises(EnvironmentFault, match="row 0 has no final answer"):
        scored(harness, tmp_path, "math2", lambda *_: "")
