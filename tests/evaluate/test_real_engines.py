"""The shipped policies in real engines: transformers, vLLM, and vLLM's own server.

vLLM's build for CPUs is in the environment of `orch env create vllm@0.31.0 --cpu`, which is made
once and cached. Where it cannot be made, the test is skipped, and says why; in CI it fails.
"""

import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from backends.micro import problem_sets
from backends.micro.shipped import POLICIES, manifest
from backends.micro.skills import NUM_DIGITS, Skill
from orchestrator.evaluate import heads
from orchestrator.evaluate.run import work
from orchestrator.evaluate.scores import ItemRequest, Result, ScoreKey, ScoringJob
from orchestrator.records import Engine, EvalTask, Sampling
from tests.backends.environments import cpu_python

TASKS = POLICIES.parent / "tasks"
POLICY = POLICIES / "elder"
ASKED: tuple[Skill, ...] = ("copy", "reverse")
REPEATS = 8
NUM_ITEMS = 256
START_SECONDS = 240.0


def test_no_shipped_policy_needs_another_copy_for_vllm() -> None:
    for policy in POLICIES.iterdir():
        assert heads.missing_width(policy, cpu=True) is None
        assert heads.missing_width(policy, cpu=False) is None


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
    process = subprocess.Popen(
        [str(word) for word in argv],
        env={**os.environ, **quiet},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def scored(
    folder: Path, engine: Engine, sampling: Sampling
) -> dict[Skill, tuple[float, list[str]]]:
    """Return, for each skill asked, the mean accuracy and the first response to each item."""
    asks = []
    for skill in ASKED:
        asked = ScoreKey(
            checkpoint="elder",
            step=0,
            task=EvalTask(name=f"micro_{skill}", domain="in", repeats=REPEATS),
            task_version="v",
            sampling=sampling,
            seed=7,
            chat_template=False,
            harness="lm-eval",
        )
        results = str(folder / f"{asked.stem}.json")
        task_file = str(TASKS / f"micro_{skill}.yaml")
        asks.append(ItemRequest(asked=asked, task_file=task_file, results=results))
    job = ScoringJob(
        cell_id="cell", checkpoint=str(POLICY), files={}, asks=tuple(asks), engine=engine
    )
    assert list(work([job], 1)) == [(0, "")]
    answers = {}
    for skill, ask in zip(ASKED, asks, strict=True):
        path = Path(ask.results)
        result = Result.model_validate_json(path.read_text())
        items = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
        mean = next(score.value for score in result.scores if score.metric.startswith("mean@"))
        answers[skill] = mean, [item["responses"][0][: NUM_DIGITS + 1] for item in items]
    return answers


@pytest.mark.slow
@pytest.mark.long
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
        greedy[name] = scored(tmp_path / name, engine, Sampling(temperature=0.0))
        means = scored(tmp_path / name, engine, Sampling())
        for skill in ASKED:
            chances = exact.chances[skill]
            error = math.sqrt(sum(p * (1 - p) for p in chances) / REPEATS) / NUM_ITEMS
            gap = abs(means[skill][0] - exact.accuracy[skill])
            failed += [(name, skill, gap / error)] if gap > 4 * error else []
    assert not failed
    for skill in ASKED:
        assert len(greedy["hf"][skill][1]) == NUM_ITEMS
        for name in ("vllm", "completions"):
            assert greedy[name][skill] == greedy["hf"][skill], (name, skill)


def test_the_problems_behind_the_exact_accuracy_are_those_of_the_tasks() -> None:
    assert len(problem_sets.held_out_problems(NUM_ITEMS)) == len(manifest("elder").chances["copy"])
