"""The task files of MATH, MMLU and Countdown, and tasks of lm-evaluation-harness by name and by
path, through the real lm-eval, offline."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backends.micro import problem_sets, skills
from orchestrator import harness_tasks
from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import aggregate, evaluate, task_data, task_files
from orchestrator.evaluate.scores import ScoringJob
from orchestrator.evaluate.shards import Shards
from orchestrator.harness_tasks import TaskLoader
from orchestrator.records import EvalTask, EvaluationSpec, Record, Sampling, Score
from orchestrator.rundir import RunFolder
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


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: ModuleType) -> Iterator[Path]:
    root = tmp_path / "da ta'\" ü"
    root.mkdir()
    monkeypatch.setenv(task_data.VARIABLE, str(stand_ins(root)))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(harness, "declared_items", lambda _task: None)
    harness.load_task.cache_clear()
    yield root
    harness.load_task.cache_clear()


def path_of(task: str) -> Path:
    return task_files.find_task(task, (task_files.OWN_TASKS,))


def parrot(answers: Any) -> Any:
    """A model that gives the k-th response to a prompt what `answers` says, and remembers what it
    was asked."""
    from lm_eval.api.model import LM

    class Parrot(LM):  # type: ignore[misc]  # lm-eval is untyped: LM is Any
        tokenizer_name = "parrot"

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[tuple[str, dict[str, Any]]] = []
            self.count: Counter[str] = Counter()

        def generate_until(self, requests: Any) -> list[str]:
            responses = []
            for prompt, kwargs in (each.args for each in requests):
                self.asked.append((prompt, kwargs))
                responses.append(answers(prompt, self.count[prompt]))
                self.count[prompt] += 1
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

    return Parrot()


def scored(
    harness: ModuleType,
    folder: Path,
    task: str,
    answers: Any,
    repeats: int = 4,
) -> tuple[Any, dict[str, float], list[dict[str, Any]]]:
    model = parrot(answers)
    ask = request(folder, path_of(task), task=EvalTask(name=task, domain="in", repeats=repeats))
    job = ScoringJob(cell_id="cell", checkpoint="", files={}, asks=(ask,))
    harness._answer(model, Shards(job, ask, harness.VERSIONS))
    result, items = answers_of(ask)
    return model, {score.metric: score.value for score in result.scores}, items


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

    model, told, items = scored(harness, tmp_path, task, answers)
    assert told["mean@4"] == 0.5
    assert told["pass@4"] == 1
    assert told["pass@2"] == pytest.approx(1 - 1 / 6)
    assert told["maj@4"] == 0.5  # two say the fraction, two say 7: a tie counts its share
    assert told["distinct@4"] == 2
    assert (told["boxed@4"], told["unboxed@4"]) == (0.25, 0.25)
    assert len(items) == 6
    assert {len(item["responses"]) for item in items} == {4}
    prompt, kwargs = model.asked[0]
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

    model, told, items = scored(harness, tmp_path, f"mmlu_college_{subject}", answers, repeats=2)
    order = [re.findall(r" (\w+) \d\?", item["prompt"])[0] for item in items]
    assert order == ["test"] * 3 + ["validation"] * 2 + ["dev"]
    assert [item["target"] for item in items] == ["A", "B", "C", "A", "B", "A"]
    assert told["mean@2"] == 0.5
    assert told["pass@2"] == 1
    assert "\nA. one\nB. two\nC. three\nD. four\n" in model.asked[0][0]


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
    ],
)
def test_spoiled_data_are_a_sentence(
    harness: ModuleType, local: Path, tmp_path: Path, spoil: Any, sentence: str
) -> None:
    spoil(local)
    with pytest.raises(EnvironmentFault, match=sentence):
        scored(harness, tmp_path, "math500", lambda *_: "")


def test_a_solution_without_a_box_is_no_gold(
    harness: ModuleType, local: Path, tmp_path: Path
) -> None:
    for file in local.glob("math2.*"):
        file.unlink()
    write_lines(local / "math2.jsonl", [{"question": "?", "solution": "It is 7."}])
    with pytest.raises(EnvironmentFault, match="row 0 has no final answer"):
        scored(harness, tmp_path, "math2", lambda *_: "")


Train = Callable[..., Record]
NUM_ITEMS = 40


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: a task that generates, one of choices, and the data."""
    home = tmp_path_factory.mktemp("my tasks")
    problems = problem_sets.held_out_problems(NUM_ITEMS).tolist()
    rows = []
    for digits in problems:
        right = "".join(map(str, skills.answer("copy", digits)))
        wrong = right[::-1] if right != right[::-1] else "00000"
        rows.append({"q": skills.text("copy", digits), "a": right, "choices": [wrong, right]})
    write_lines(home / "rows.jsonl", rows)
    common = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {json.dumps(str(home / "rows.jsonl"))}}}}}
test_split: test
doc_to_text: "{{{{q}}}}"
target_delimiter: ""
metadata: {{version: 1}}
"""
    (home / "copy_it.yaml").write_text(
        f"""task: copy_it
output_type: generate_until
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["<eos>"], max_gen_toks: 7}}
filter_list:
  - name: digits
    filter: [{{function: regex, regex_pattern: "^([0-9]+)"}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
{common}"""
    )
    (home / "choose_it.yaml").write_text(
        f"""task: choose_it
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: 1
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
{common}"""
    )
    return home


def asked(*tasks: EvalTask, **changes: object) -> EvaluationSpec:
    return EvaluationSpec.model_validate({"tasks": tasks, **changes})


def by_metric(scores: list[Score]) -> dict[str, Score]:
    return {score.metric: score for score in scores}


@pytest.mark.usefixtures("in_process")
def test_a_task_that_generates_has_its_own_metric_and_mean_at_k(
    tasks: Path, train: Train, folder: RunFolder
) -> None:
    record = train()
    task = EvalTask(name=str(tasks / "copy_it.yaml"), domain="in", repeats=4)
    scores = evaluate([record], asked(task), folder)
    found = by_metric(scores)
    assert set(found) == {"exact_match.digits", "mean@4", "pass@4"}
    assert {score.task for score in scores} == {"copy_it"}
    assert found["mean@4"].num_items == NUM_ITEMS
    assert found["mean@4"].value == pytest.approx(found["exact_match.digits"].value)
    # The policy was pretrained to copy three times of four; four tries do better than one.
    assert 0.4 < found["mean@4"].value < found["pass@4"].value <= 1
    items = [
        json.loads(line)
        for line in (folder.cell(record.cell).path / found["mean@4"].items_path)
        .read_text()
        .splitlines()
    ]
    assert all(len(item["responses"]) == 4 for item in items)
    assert any(len(set(item["responses"])) > 1 for item in items), "passes have seeds of their own"
    assert aggregate(scores)[0].task == "in_domain"
    again = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*.jsonl")}
    assert evaluate([record], asked(task), folder) == scores
    assert again == {path: path.stat().st_mtime_ns for path in folder.path.rglob("*.jsonl")}


@pytest.mark.usefixtures("in_process")
def test_choices_have_the_harness_metrics_and_no_domain(
    tasks: Path, train: Train, folder: RunFolder
) -> None:
    task, greedy = EvalTask(name=str(tasks / "choose_it.yaml")), Sampling(temperature=0)
    scores = evaluate([train()], asked(task, sampling=greedy), folder)
    choice = by_metric(scores)
    assert set(choice) == {"acc", "mean@1", "pass@1"}
    assert choice["acc"].value > 0.7, "a right copy is likelier than a reversed one"
    assert choice["acc"].stderr is not None
    assert not aggregate(scores), "a task without a domain is in no mean"


@pytest.mark.usefixtures("in_process")
def test_a_task_of_the_harness_is_scored_by_its_name(
    train: Train, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """arc_easy: prompts, choices and metrics are the harness's, the rows are ours."""
    import datasets

    rows = [
        {
            "id": str(n),
            "question": "S12345",
            "choices": {"text": ["1", "2", "3"], "label": ["A", "B", "C"]},
            "answerKey": "ABC"[n],
        }
        for n in range(3)
    ]
    split = datasets.Dataset.from_list(rows)
    every = datasets.DatasetDict(dict.fromkeys(("train", "validation", "test"), split))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: every)
    (acc, *_) = evaluate([train()], asked(EvalTask(name="arc_easy")), folder)
    assert (acc.task, acc.metric, acc.num_items) == ("arc_easy", "acc", 3)
    assert acc.value == pytest.approx(1 / 3), "equal questions have equal answers"
    assert acc.task_version == f"lm-eval-{harness_tasks.VERSION}"


def test_the_stored_list_is_that_of_the_pinned_harness() -> None:
    from importlib.metadata import version

    assert version("lm_eval") == harness_tasks.VERSION
    assert harness_tasks.list_path(harness_tasks.VERSION).is_file()
    assert len(harness_tasks.find("mmlu_pro").leaves) == 14
    assert harness_tasks.find("mmlu").only_likelihoods
    assert not harness_tasks.find("aime25").only_likelihoods
    assert "langdetect" in harness_tasks.find("ifeval").needs
    assert "antlr4-python3-runtime==4.11" in harness_tasks.find("minerva_math500").needs
    assert harness_tasks.find("gpqa_diamond_cot_zeroshot").gated == ("Idavidrein/gpqa",)
