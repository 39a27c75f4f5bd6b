"""The shipped policies in real engines: transformers, vLLM, and vLLM's own server.

vLLM's build for CPUs is in the environment of `orch env create vllm@0.31.0 --cpu`, which is made
once and cached. Where it cannot be made, the test is skipped, and says why; in CI it fails.
"""

import math
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
from lifeline import held, let_go

from backends.micro import problem_sets
from backends.micro.shipped import POLICIES, manifest
from backends.micro.skills import NUM_DIGITS, Skill
from orchestrator.records import Engine, Sampling
from tests.backends.environments import cpu_python
from tests.evaluate.micro_scores import REPEATS, MicroScore, micro_scores

POLICY = POLICIES / "elder"
ASKED: tuple[Skill, ...] = ("copy", "reverse")
NUM_ITEMS = 256
START_SECONDS = 400.0
"""The first start of an environment compiles what it imports."""


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with vLLM and lm-eval."""
    return cpu_python("vllm", "0.31.0")


@pytest.fixture(scope="module")
def server(python: Path) -> Iterator[str]:
    """The address of `vllm serve` on the shipped policy."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # `vllm serve` asks for a distribution called vllm, which the build for CPUs is not
    argv = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", POLICY]
    argv += ["--port", port, "--host", "127.0.0.1"]
    argv += ["--dtype", "float32", "--enforce-eager", "--max-model-len", 64]
    quiet = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    process = held(
        [str(word) for word in argv],
        env={**os.environ, **quiet},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                break
            assert process.poll() is None, "vllm serve ended"
            assert time.monotonic() < deadline, "vllm serve did not come up"
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1/completions"
    finally:
        let_go(process)


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
    tmp_path: Path, server: str, python: Path, monkeypatch: pytest.MonkeyPatch
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
        "completions": Engine(name="completions", base_url=server, model=str(POLICY)),
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
        for name in ("vllm", "completions"):
            assert greedy[name][skill] == greedy["hf"][skill], (name, skill)


def test_the_problems_behind_the_exact_accuracy_are_those_of_the_tasks() -> None:
    assert len(problem_sets.held_out_problems(NUM_ITEMS)) == len(manifest("elder").chances["copy"])
