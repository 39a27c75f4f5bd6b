"""The environment that travels with a plan: its prompts and its rewards."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends.prime_rl import environment


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
