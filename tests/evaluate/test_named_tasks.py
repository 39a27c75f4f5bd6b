"""Tasks of lm-evaluation-harness by name and by path, with the harness itself, on the CPU."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.micro import problem_sets, skills
from orchestrator import harness_tasks
from orchestrator.evaluate import aggregate, evaluate
from orchestrator.records import EvalTask, EvaluationSpec, Record, Sampling, Score
from orchestrator.rundir import RunFolder
from tests.evaluate.data import write_lines

pytestmark = pytest.mark.slow
Train = Callable[..., Record]
NUM_ITEMS = 40


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: a task that generates, one of choices, a group, and the data."""
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
    (home / "both.yaml").write_text(
        """group: both
task: [copy_it, choose_it]
aggregate_metric_list:
  - {metric: acc, aggregation: mean, weight_by_size: true, filter_list: none}
"""
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
def test_choices_and_a_group_have_the_harness_metrics_and_no_domain(
    tasks: Path, train: Train, folder: RunFolder
) -> None:
    names = [EvalTask(name=str(tasks / f"{name}.yaml")) for name in ("choose_it", "both")]
    greedy = Sampling(temperature=0)
    scores = evaluate([train()], asked(*names, sampling=greedy), folder)
    choice = by_metric([score for score in scores if score.task == "choose_it"])
    group = by_metric([score for score in scores if score.task == "both"])
    assert set(choice) == {"acc", "mean@1", "pass@1"}
    assert choice["acc"].value > 0.7, "a right copy is likelier than a reversed one"
    assert choice["acc"].stderr is not None
    assert set(group) == {"acc", "acc.choose_it", "exact_match.digits.copy_it"}
    assert group["acc.choose_it"].value == choice["acc"].value == group["acc"].value
    assert group["acc"].num_items == 2 * NUM_ITEMS
    assert not aggregate(scores), "a task without a domain is in no mean"


@pytest.mark.usefixtures("in_process")
def test_a_task_of_the_harness_is_scored_on_local_data(
    train: Train, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """arc_easy by its name: prompts, choices and metrics are the harness's, the rows are ours."""
    (tmp_path / "arc_easy").mkdir()
    for split in ("train", "validation", "test"):
        rows = [
            {
                "id": f"{split}{n}",
                "question": "S12345",
                "choices": {"text": ["1", "2", "3"], "label": ["A", "B", "C"]},
                "answerKey": "ABC"[n],
            }
            for n in range(3)
        ]
        write_lines(tmp_path / "arc_easy" / f"{split}.jsonl", rows)
    monkeypatch.setenv("ORCH_EVAL_DATA", str(tmp_path))
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
