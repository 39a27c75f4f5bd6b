"""orch data prepare, on small stand-ins in the true schema of each data set."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from backends.openrlhf import BACKEND as OPENRLHF
from backends.skyrl import BACKEND as SKYRL
from backends.verl import BACKEND as VERL
from orchestrator.data import generate, prepared, source
from orchestrator.errors import EnvironmentFault, SpecError
from orchestrator.identity import fingerprint
from orchestrator.library import prompt_recipe
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Data
from tests.backends.shipped import write
from tests.backends.verl.cells import cell

pytestmark = pytest.mark.skipif(not find_spec("datasets"), reason="no `datasets` here")

PROBLEMS = [
    {"problem": problem, "level": "Level 1", "type": "Algebra", "solution": solution}
    for problem, solution in (
        ("What is $1+1$?", "Adding, we get $1 + 1 = \\boxed{2}$."),
        (
            "What is half of \u00bd?\nExplain.",
            "It is $\\boxed{\\frac{1}{2}}$, no: $\\boxed{\\frac{1}{4}}$.",
        ),
        ("What is 3?", "It is $\\boxed 3$."),
    )
]
"""In the columns of MATH-lighteval."""
BOX = "Put it in \\boxed{}."


def rows_of(path: Path) -> list[dict[str, Any]]:
    import datasets

    kind = "parquet" if path.suffix == ".parquet" else "json"
    found: list[dict[str, Any]] = datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(path.parent / ".cache")
    ).to_list()
    return found


def local(folder: Path, copies: int = 1, **changes: Any) -> Data:
    """Prompts in two files, train and validation."""
    folder.mkdir(exist_ok=True)
    for name, part in (("train", PROBLEMS * copies), ("validation", PROBLEMS[:1])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    plain = {
        "name": "math",
        "path": str(folder / "train.jsonl"),
        "num_prompts": 3 * copies,
        "instruction": BOX,
    } | changes
    return Data.model_validate(plain)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The Hub, as far as `datasets` asks it: splits of MATH-lighteval, cut to three and one."""
    import datasets

    splits: dict[str, Any] = {
        "train": datasets.Dataset.from_list(PROBLEMS),
        "test": datasets.Dataset.from_list(PROBLEMS[:1]),
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda path, split: splits[split])
    facts = {name: dict(told) for name, told in source.known().items()}
    facts["DigitalLearningGmbH/MATH-lighteval"]["splits"] = {"train": 3, "test": 1}
    monkeypatch.setattr(source, "known", lambda: facts)
    return splits


def math(**changes: Any) -> Data:
    plain = {
        "name": "math",
        "path": "DigitalLearningGmbH/MATH-lighteval",
        "num_prompts": 3,
        "instruction": BOX,
    } | changes
    return Data.model_validate(plain)


def test_every_format_holds_the_same_prompts(tmp_path: Path) -> None:
    made = prepared.prepare(
        local(tmp_path / "it's"), tuple(prompt_recipe.FORMATS), tmp_path / "data"
    )
    assert (made.num_prompts, made.num_validation, made.fresh) == (3, 1, True)
    prompts = [
        f"What is $1+1$? {BOX}",
        f"What is half of \u00bd?\nExplain. {BOX}",
        f"What is 3? {BOX}",
    ]
    answers = ["2", "\\frac{1}{4}", "3"]
    labelled = rows_of(made.folder / "labelled" / "train.jsonl")
    assert labelled == [{"prompt": p, "label": a} for p, a in zip(prompts, answers, strict=True)]
    questions = rows_of(made.folder / "questions" / "train.jsonl")
    assert [(row["question"], row["answer"]) for row in questions] == [
        *zip(prompts, answers, strict=True)
    ]
    chat = rows_of(made.folder / "chat" / "train.parquet")
    assert [row["prompt"] for row in chat] == [[{"role": "user", "content": p}] for p in prompts]
    assert chat[1] | {"prompt": None} == {
        "data_source": "math",
        "prompt": None,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "\\frac{1}{4}"},
        "reward_spec": {"ground_truth": "\\frac{1}{4}"},
        "extra_info": {"split": "train", "index": 1},
    }
    [held_out] = rows_of(made.folder / "chat" / "validation.parquet")
    assert held_out["extra_info"] == {"split": "validation", "index": 0}


def test_again_nothing_is_written_and_a_spoilt_file_is_mended(tmp_path: Path) -> None:
    data, directory = local(tmp_path / "raw"), tmp_path / "data"
    first = prepared.prepare(data, ("chat",), directory)
    train = first.folder / "chat" / "train.parquet"
    stamp = train.stat().st_mtime_ns
    assert not prepared.prepare(data, ("chat",), directory).fresh
    assert train.stat().st_mtime_ns == stamp
    assert prepared.prepare(data, ("chat", "labelled"), directory).fresh
    train.write_bytes(train.read_bytes()[:-1])
    assert prepared.prepare(data, ("chat",), directory).fresh
    assert len(rows_of(train)) == 3


def test_content_that_changed_is_refused(tmp_path: Path) -> None:
    data, directory = local(tmp_path / "raw"), tmp_path / "data"
    prepared.prepare(data, ("chat",), directory)
    file = tmp_path / "raw" / "train.jsonl"
    file.write_text(file.read_text().replace("What is 3?", "What is 4?"))
    with pytest.raises(EnvironmentFault, match=r"is not what .* was prepared from"):
        prepared.prepare(data, ("labelled",), directory)


def test_the_hub(hub: dict[str, Any], tmp_path: Path) -> None:
    made = prepared.prepare(math(), ("labelled",), tmp_path)
    assert [
        json.loads(line)["label"]
        for line in (made.folder / "labelled" / "train.jsonl").read_text().splitlines()
    ] == ["2", "\\frac{1}{4}", "3"]


def test_a_data_set_that_changed_on_the_hub(hub: dict[str, Any], tmp_path: Path) -> None:
    hub["train"] = hub["train"].select(range(2))
    hub["test"] = hub["test"].rename_column("solution", "explanation")
    with pytest.raises(SpecError) as told:
        prepared.prepare(math(), ("labelled",), tmp_path)
    assert "has 2 rows, not the 3 that its dataset card, revision 0530c78 names" in str(told.value)
    assert "has the columns problem, level, type, explanation" in str(told.value)
    assert not list(tmp_path.iterdir())


def test_without_a_network_it_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` itself, offline and with an empty cache."""
    import datasets
    import huggingface_hub.constants as hub_constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(EnvironmentFault, match=r"cannot be had from the Hub: .*HF_HOME, or name"):
        prepared.prepare(math(), ("chat",), tmp_path / "data")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"text": "x"}], "has no column question or problem or prompt; it has text"),
        ([{"problem": "x", "solution": ""}], "row 0 has no answer that reward math_boxed can use"),
        ([{"problem": " ", "solution": "1"}], "row 0 has no question"),
        ([{"problem": "x", "solution": "so \\boxed{}"}], "row 0 has no answer"),
        (None, "cannot be read as json"),
    ],
)
def test_rows_that_cannot_be_used(rows: Any, told: str, tmp_path: Path) -> None:
    data = local(tmp_path / "raw")
    text = "".join(json.dumps(row) + "\n" for row in rows) if rows else "{not json"
    (tmp_path / "raw" / "train.jsonl").write_text(text)
    with pytest.raises(SpecError, match=told):
        prepared.prepare(data, ("chat",), tmp_path / "data")


def test_countdown_from_a_file(tmp_path: Path) -> None:
    problem = {"question": "Make 6.", "metadata": {"numbers": [2, 3], "target": 6}}
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(problem) + "\n")
    data = Data(name="countdown", path=str(tmp_path / "train.jsonl"), reward="countdown")
    made = prepared.prepare(data, ("labelled",), tmp_path / "data")
    [row] = rows_of(made.folder / "labelled" / "train.jsonl")
    assert row == {"prompt": "Make 6.", "label": '{"numbers": [2, 3], "target": 6}'}
    bad = problem | {"metadata": {"numbers": [2, 3.5], "target": 6}}
    (tmp_path / "train.jsonl").write_text(json.dumps(bad) + "\n")
    with pytest.raises(SpecError, match="row 0 has no answer that reward countdown can use"):
        prepared.prepare(data, ("labelled",), tmp_path / "other")


def test_countdown_is_made_and_held_out() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra `data`")
    train = generate.problems(12, generate.TRAIN_SEED)
    assert train == generate.problems(12, generate.TRAIN_SEED), "fixed seeds"
    assert train[3:] == generate.problems(9, 3), "seeds this near share problems"
    for problem in train:
        assert 4 <= len(problem.numbers) <= 6
        assert 100 <= problem.target <= 999
        assert str(problem.target) in problem.question
    again = generate.problems(3, generate.TRAIN_SEED, without=train[:2])
    assert not set(again) & set(train[:2])
    held_out = generate.problems(12, generate.VALIDATION_SEED, without=train)
    assert not set(held_out) & set(train)


# ---------------------------------------------------------------- from a plan to its prompts


def planned(backend: Any, folder: Path, data: Data) -> tuple[LaunchPlan, Cell]:
    asked = cell({f"data.{name}": value for name, value in data.model_dump().items()})
    ref = asked.settings.backend.model_copy(update={"name": backend.name, "version": None})
    settings = asked.settings.model_copy(update={"backend": ref})
    asked = asked.model_copy(update={"settings": settings, "id": fingerprint(settings)})
    place = AttemptPaths(folder / "plan", folder / "attempts" / "1", folder / "checkpoints")
    plan = backend.translate(asked, place)
    write(plan, place.plan_dir)
    return plan, asked


@pytest.mark.parametrize("backend", [VERL, SKYRL, OPENRLHF], ids=lambda b: str(b.name))
def test_a_launch_finds_its_prompts(backend: Any, tmp_path: Path) -> None:
    data, directory = local(tmp_path / "raw", copies=100), tmp_path / "data"
    plan, asked = planned(backend, tmp_path / "cell", data)
    told = prepared.missing(plan, directory)
    assert told is not None
    assert "'math' are not prepared" in told
    assert "orch data prepare SPEC" in told
    plan_dir = tmp_path / "cell" / "plan"
    with pytest.raises(EnvironmentFault, match="are not prepared"):
        prepared.link(plan_dir, directory)
    made = prepared.prepare(asked.settings.data, (backend.prompts_format,), directory)
    assert prepared.missing(plan, directory) is None
    assert prepared.link(plan_dir, directory) == made.folder / backend.prompts_format
    assert prepared.link(plan_dir, directory) == made.folder / backend.prompts_format
    named = [part for word in plan.argv for part in word.replace("[", "").split("=")[-1:]]
    files = {p for word in named for p in word.strip("]'\"").split(",") if "/data/" in p}
    assert files
    assert all(Path(file.strip("'\"")).is_file() for file in files), files
    train = next(file for file in files if "train" in file)
    assert len(rows_of(Path(train.strip("'\"")).resolve())) == 300


def test_a_changed_file_is_not_trained_on(tmp_path: Path) -> None:
    data, directory = local(tmp_path / "raw", copies=100), tmp_path / "data"
    plan, _ = planned(VERL, tmp_path / "cell", data)
    made = prepared.prepare(data, ("chat",), directory)
    train = made.folder / "chat" / "train.parquet"
    content = bytearray(train.read_bytes())
    content[len(content) // 2] ^= 1
    train.write_bytes(bytes(content))
    assert prepared.missing(plan, directory) is None, "looks at sizes"
    with pytest.raises(EnvironmentFault, match="is not the file that was prepared"):
        prepared.link(tmp_path / "cell" / "plan", directory)
