"""The shipped policies in real engines: transformers and vLLM.

vLLM's build for CPUs is in the environment of `orch env create vllm@0.31.0 --cpu`, which is made
once and cached. Where it cannot be made, the test is skipped, and says why; in CI it fails.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends.micro import problem_sets
from backends.micro.shipped import POLICIES, manifest
from backends.micro.skills import NUM_DIGITS, Skill
from orchestrator.records import Engine, Sampling
from tests.backends.environments import cpu_python
from tests.evaluate.micro_scores import REPEATS, MicroScore, micro_scores

POLICY = POLICIES / "elder"
ASKED: tuple[Skill, ...] = ("copy", "reverse")
NUM_ITEMS = 256


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with vLLM and lm-eval."""
    return cpu_python("vllm", "0.31.0")


def answers(scores: Mapping[Skill, MicroScore]) -> dict[Skill, list[str]]:
    """Return, for each skill, the first response to each item."""
    return {
        skill: [item["responses"][0][: NUM_DIGITS + 1] for item in scored.items]
        for skill, scored in scores.items()
    }


@pytest.mark.slow
@pytest.mark.long(180)
@pytest.mark.real
def test_engines_agree_item_by_item_when_greedy_and_within_sampling_error_otherwise(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    engines = {
        "hf": Engine(name="hf"),
        "vllm": Engine(
            name="vllm",
            python=str(python),
            dtype="float32",
            max_model_len=64,
            gpu_memory_utilization=0.05,
        ),
    }
    exact = manifest("elder")
    greedy, failed = {}, []
    for name, engine in engines.items():
        certain, sampled = micro_scores(
            POLICY, ASKED, tmp_path / name, engine, Sampling(temperature=0.0), Sampling()
        )
        greedy[name] = answers(certain)
        for skill in ASKED:
            chances = exact.chances[skill]
            error = math.sqrt(sum(p * (1 - p) for p in chances) / REPEATS) / NUM_ITEMS
            gap = abs(sampled[skill].mean - exact.accuracy[skill])
            failed += [(name, skill, gap / error)] if gap > 4 * error else []
    assert not failed
    for skill in ASKED:
        assert len(greedy["hf"][skill]) == NUM_ITEMS
        assert greedy["vllm"][skill] == greedy["hf"][skill], skill


def test_the_problems_behind_the_exact_accuracy_are_those_of_the_tasks() -> None:
    assert len(problem_sets.held_out_problems(NUM_ITEMS)) == len(manifest("elder").chances["copy"])
