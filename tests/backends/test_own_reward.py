"""A reward of the user's own trains in the libraries themselves: it is called with the response,
the answer and the row. One run a library, without a GPU."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.backends.environments import cpu_python
from tests.lab import real

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.long(100)]

CODE = '''
"""Half a point for the answer's first digit, and half for the row's `wanted` length."""

import os


def score(text, answer, row):
    assert row["answer"] == answer and row["question"].startswith("C")
    seen = os.environ.get("MY_REWARD_SEEN")
    if seen:
        with open(seen, "a") as file:
            file.write(repr((text, answer, row["wanted"])) + "\\n")
    return 0.5 * (text[:1] == answer[:1]) + 0.5 * (len(text.strip()) == row["wanted"])
'''
RULE = f"my_reward.py:score@{hashlib.sha256(CODE.encode()).hexdigest()[:16]}"


@pytest.mark.parametrize(("library", "version"), [("trl", "1.16.0"), ("verl", "0.9.1")])
def test_a_function_of_ones_own_rewards(
    library: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = cpu_python(library, version)
    seen = tmp_path / "seen"
    monkeypatch.setenv("MY_REWARD_SEEN", str(seen))
    data = tmp_path / "mine"
    data.mkdir()
    for name, numbers in (("train", range(16)), ("validation", range(16, 20))):
        rows = [
            {"question": f"C{real.word(n)}=", "answer": real.word(n), "wanted": 5} for n in numbers
        ]
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {
        "data": {
            "name": "mine",
            "path": str(data / "train.jsonl"),
            "reward": RULE,
            "max_prompt_tokens": 10,
        },
        "num_train_steps": 2,
        "kl": {"estimator": "none"},
    }
    if library == "trl":  # RLOO without a KL is GRPOTrainer's; elsewhere as real.py has it
        changes |= {"loss": {"aggregation": "constant", "constant_tokens": 1}}
    trained = real.train(library, version, python, tmp_path / "run", changes, reward_code=CODE)
    called = [eval(line) for line in seen.read_text().splitlines()]  # noqa: S307  (our own lines)
    assert len(called) >= 2 * real.PROMPTS * real.GROUP
    reward = "train/reward_mean"
    means = [point.values[reward] for point in trained.points if point.step > 0]
    assert len(means) == 2
    assert {wanted for _, _, wanted in called} == {5}
    if library == "trl":  # its train steps are calls in a row, between those of validations
        batch = real.PROMPTS * real.GROUP
        paid = [0.5 * (t[:1] == a[:1]) + 0.5 * (len(t.strip()) == w) for t, a, w in called]
        in_a_row = {sum(paid[i : i + batch]) / batch for i in range(len(paid))}
        assert in_a_row >= {*means}
    assert any(0 < mean <= 1 for mean in means)
