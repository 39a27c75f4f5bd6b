"""Rewards of the user's own and problems of reasoning-gym: read as text, tried in a child."""

import json
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.data import prepared, source
from orchestrator.data.try_reward import try_reward
from orchestrator.errors import EnvironmentFault, SpecError
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.scoring import gym
from orchestrator.settings import Data
from orchestrator.spec import load
from orchestrator.spec.expand import expand

CODE = '''
def score(text, answer, row):
    """One point for the answer, and a tenth for each star of the row."""
    return (text == answer) + 0.1 * row["stars"]
'''
SPEC = """
name: mine
seeds: [0]
base:
  model: {name: elder, path: some/model}
  data: {name: mine, path: PATH, num_prompts: 5, reward: {file: my_reward.py, function: FUNCTION}}
  advantage: {estimator: rloo}
  loss: {aggregation: constant, constant_tokens: 1}
  rollout: {group_size: 4, max_response_tokens: 7}
  batch: {num_prompts: 4}
  optimizer: {learning_rate: 1.0e-3}
  num_train_steps: 2
  backend: {name: LIBRARY}
  kl: {estimator: none}
  resources: {num_nodes: 1, gpus_per_node: 4}
studies: {one: {axes: {data.max_prompt_tokens: [8]}}}
"""
PLACE = AttemptPaths(Path("/plan"), Path("/attempt"), Path("/checkpoints"))


def spec(folder: Path, code: str = CODE, *, function: str = "score", library: str = "trl") -> Path:
    (folder / "my_reward.py").write_text(code)
    rows = [
        {"question": f"q{n}", "answer": f"a{n}", "stars": n, "more": {"deep": [n]}}
        for n in range(5)
    ]
    for split in ("train", "validation"):
        file = folder / f"{split}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "mine.yaml"
    text = SPEC.replace("PATH", str(folder / "train.jsonl")).replace("FUNCTION", function)
    path.write_text(text.replace("LIBRARY", library))
    return path


def launched(path: Path) -> tuple[Cell, LaunchPlan]:
    (cell,) = expand(load(path))
    return cell, plugins.load(cell.settings.backend.name).translate(cell, PLACE)


def prepare(plan_of: Cell, library: str, folder: Path) -> None:
    prompts = plugins.load(library).prompts_format
    assert prompts
    prepared.prepare(plan_of.settings.data, [prompts], folder)


def test_the_code_is_part_of_the_id_and_the_files_name_is_shown(tmp_path: Path) -> None:
    first, _ = launched(spec(tmp_path))
    again, _ = launched(spec(tmp_path))
    other, _ = launched(spec(tmp_path, CODE + "\n# another\n"))
    assert first.id == again.id != other.id
    assert first.settings.data.reward.startswith("my_reward.py:score@")
    assert first.reward_code == CODE


@pytest.mark.parametrize("library", ["trl", "verl", "openrlhf", "skyrl"])
def test_every_library_takes_the_function_and_prepared_rows(library: str, tmp_path: Path) -> None:
    path = spec(tmp_path, library=library)
    if library != "trl":
        path.write_text(path.read_text().replace("constant, constant_tokens: 1", "token_mean"))
    cell, plan = launched(path)
    assert plan.files["orch_scoring/own_code.py"] == CODE
    prepare(cell, library, tmp_path / "prepared")
    trial = try_reward(plan, directory=tmp_path / "prepared")
    assert trial is not None
    assert trial.rewards == pytest.approx((1.0, 1.1, 1.2)), "answer and row reach the function"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def score(text, answer, row):\n    return row['none']\n", r"line 2.*KeyError: 'none'"),
        ("import no_such_module\ndef score(t, a, r):\n    return 1\n", "No module named"),
        ("def score(text, answer, row):\n    return 'good'\n", "must be a finite number.*'good'"),
        ("def score(t, a, r):\n    return float('nan')\n", "must be a finite number.*nan"),
        ("def score(t, a, r):\n    return [0] * 10**10 and 1\n", "MemoryError"),
    ],
)
def test_a_reward_that_fails_is_told_before_anything_trains(
    code: str, told: str, tmp_path: Path
) -> None:
    cell, plan = launched(spec(tmp_path, code))
    prepare(cell, "trl", tmp_path / "prepared")
    with pytest.raises(EnvironmentFault, match=told):
        try_reward(plan, directory=tmp_path / "prepared")


def test_the_child_sees_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    code = "import os\ndef score(t, a, r):\n    return len(os.environ.get('WANDB_API_KEY', ''))\n"
    cell, plan = launched(spec(tmp_path, code))
    prepare(cell, "trl", tmp_path / "prepared")
    trial = try_reward(plan, directory=tmp_path / "prepared")
    assert trial is not None
    assert trial.rewards == (0, 0, 0)


@pytest.mark.parametrize(
    ("code", "function", "told"),
    [
        (CODE, "scores", "defines no function 'scores' .it defines: score"),
        ("def score(:\n", "score", "is not Python: line 1"),
        (CODE, "a b", "a reward of your own is"),
    ],
)
def test_a_reward_file_that_cannot_be_one_is_told_by_the_spec(
    code: str, function: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=told):
        load(spec(tmp_path, code, function=function))


def test_any_data_set_of_reasoning_gym_has_its_own_scorer(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="the extra `data`")
    data = Data(name="gcd", path="reasoning-gym:gcd", reward="reasoning_gym", num_prompts=3)
    rows = source.rows(data, [tmp_path])
    assert len(rows.train) == 3
    assert not {row.question for row in rows.train} & {row.question for row in rows.validation[:3]}
    for row in rows.train:
        answer = json.loads(row.answer)["row"]["answer"]
        assert gym.reward(f"I think <answer>{answer}</answer>", row.answer) == 1
        assert gym.reward("<answer>no idea</answer>", row.answer) < 1
    with pytest.raises(EnvironmentFault, match="no data set 'gdc', did you mean 'gcd'"):
        source.rows(data.model_copy(update={"path": "reasoning-gym:gdc"}), [tmp_path])
    with pytest.raises(EnvironmentFault, match=r"set data\.reward to reasoning_gym"):
        source.rows(data.model_copy(update={"reward": "exact"}), [tmp_path])
