"""Synthetic experiments: records and scores as training and evaluation would leave them."""

import fcntl
import gc
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest

from orchestrator.records import (
    Cell,
    Checkpoint,
    ExitRecord,
    MetricPoint,
    Outcome,
    Record,
    Score,
    Spec,
    Study,
)
from orchestrator.rundir import RunFolder
from orchestrator.settings import BackendRef, Settings
from tests.cluster.fixture import cluster as cluster
from tests.cluster.fixture import slurm as slurm
from tests.settings import cell_of, plain

hypothesis.settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared machine")
"""A busy machine is no fault of the code: speed is measured in benchmarks/, not by tests."""

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
"""As a rehearsal sets it for its process: commands of later tests then need no imports of their
own (tests/command_line.py)."""

TASKS = (("micro_sort", "in"), ("micro_reverse", "out"), ("micro_copy", "out"))

gc.disable()
"""Until the tests are collected (`pytest_collection_finish`): what is imported stays."""


def pytest_collection_finish() -> None:
    """Freeze what is imported: each later garbage collection would read half a million objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _frozen_modules() -> Iterator[None]:
    """Leave what a file's tests imported to no garbage collection of the next file's tests, and no
    interpreter that they started."""
    yield
    if "tests.backends.child" in sys.modules:
        sys.modules["tests.backends.child"].end_all()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the longest of them at the very start: what is left for the end is short.

    A cluster's tests mostly wait, so that they begin early, beside what computes. Files of the same
    length come by name, in whatever order they were collected.
    """
    seconds: dict[Path, float] = {}
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
        daemons = item.get_closest_marker("slurm") is not None
        beyond = daemons and item.get_closest_marker("smoke") is None
        if beyond or any(map(item.get_closest_marker, ("real", "ray"))):
            item.add_marker(pytest.mark.thorough)
        mark = item.get_closest_marker("long")
        expected = float(mark.args[0] if mark.args else 60) if mark else 30.0 * daemons
        slow = item.get_closest_marker("slow") is not None
        seconds[item.path] = max(seconds.get(item.path, 0), expected, slow)
    items.sort(key=lambda item: (-seconds[item.path], item.path))
    for item in items:
        if item.get_closest_marker("real"):
            # the first of a library's tests installs its environment
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(autouse=True)
def _subnormals() -> Iterator[None]:
    """The trainer flushes subnormal numbers in its process; other tests of it need them."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


class Done(NamedTuple):
    """What is left of one or several runs."""

    records: list[Record]
    scores: list[Score]

    def __add__(self, other: object) -> "Done":
        assert isinstance(other, Done)
        return Done(self.records + other.records, self.scores + other.scores)


def settings(
    kl: str,
    beta: float,
    seed: int,
    *,
    model: str = "qwen2.5-7b",
    steps: int = 100,
    staleness: int = 0,
    backend: str = "verl",
) -> Settings:
    estimator, _, placement = kl.partition(".")
    term = {"placement": placement.replace("both", "reward_and_loss"), "beta": beta}
    return plain(
        model={"name": model, "path": f"org/{model}"},
        data={"name": "math", "path": "org/math"},
        kl={"estimator": estimator, **({} if kl == "none" else term)},
        rollout={"group_size": 5, "max_response_tokens": 1024},
        batch={"num_prompts": 256},
        optimizer={"learning_rate": 1e-6},
        num_train_steps=steps,
        backend={"name": backend},
        max_staleness_steps=staleness,
        seed=seed,
    )


def run(
    kl: str = "k1.reward",
    beta: float = 0.1,
    seed: int = 0,
    *,
    accuracy: float = 0.8,
    study: str | tuple[str, ...] = "onpolicy",
    state: str = "succeeded",
    outcome: Outcome | None = None,
    micro: bool = True,
    scored: bool = True,
    progress: float = 1.0,
    axes: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
    repeats: int = 4,
    **more: Any,
) -> Done:
    """One cell. `metrics` replaces final values; `progress` is the share of steps it reached."""
    asked = settings(kl, beta, seed, **more)
    beta = asked.kl.beta
    real = asked.model_copy(update={"backend": BackendRef(name="micro")}) if micro else asked
    cell = cell_of(
        real,
        slug=f"{asked.model.name}-{kl}-b{beta:g}-s{seed}",
        studies=(study,) if isinstance(study, str) else study,
        axes={
            "model": asked.model.name,
            "data": "math",
            "kl": kl,
            "beta": f"{beta:g}",
            "backend": asked.backend.name,
            "async": str(asked.max_staleness_steps),
            "seed": str(seed),
            **(axes or {}),
        },
        declared=asked if micro else None,
    )
    ended = state in ("succeeded", "failed", "timed_out")
    if outcome is None and state == "succeeded":
        outcome = Outcome(kind="trained")
    last = int(asked.num_train_steps * progress)
    points = () if state == "planned" else tuple(_points(last, accuracy, asked, metrics or {}))
    exits = (
        ExitRecord(
            state=state,
            started=1e9,
            ended=1e9 + 60,
            cpu_seconds=5,
            host="node1",
            outcome=outcome,
            failure="error" if state == "failed" else "",
            message="ValueError: boom" if state == "failed" else "",
        )
        if ended
        else None
    )
    folder = Path("/runs/x.micro/cells") / cell.directory
    record = Record(
        cell,
        state,
        () if state == "planned" else (exits,),
        outcome,
        points,
        (Checkpoint(last, folder / f"checkpoints/{last}"),) if state == "succeeded" else (),
        folder,
    )
    scores = _scores(cell, last, accuracy, repeats) if scored and state == "succeeded" else []
    return Done([record], scores)


def _points(
    last: int, accuracy: float, asked: Settings, final: Mapping[str, float]
) -> Iterable[MetricPoint]:
    for step in range(0, last + 1, 5):
        grown = 0.3 + (accuracy - 0.3) * (1 - math.exp(-5 * step / asked.num_train_steps))
        values = {
            "train/reward_mean": grown - 0.01,
            "train/kl_reference": 0.02 * step,
            "rollout/staleness_mean": 0.9 * asked.max_staleness_steps,
            "rollout/staleness_max": float(asked.max_staleness_steps),
        }
        if step % 20 == 0 or step == last:
            values |= {
                "eval/accuracy_in_domain": grown,
                "eval/accuracy_out_of_domain": 0.7 - 0.3 * step / asked.num_train_steps,
                "eval/kl_forward": 0.01 * step,
                "eval/kl_reverse": 0.012 * step,
                "eval/entropy": 1.5 - 0.01 * step,
            }
        if step == last:
            values |= final
        yield MetricPoint(step, 1e9 + step, values)


def _scores(cell: Cell, step: int, accuracy: float, repeats: int) -> list[Score]:
    return [
        Score(
            cell_id=cell.id,
            step=step,
            task=task,
            domain=domain,
            metric=f"{kind}@{repeats}",
            value=min(1.0, (accuracy if domain == "in" else 0.4) + bonus),
            stderr=0.01,
            num_items=128,
            repeats=repeats,
            task_version="1",
            harness="lm-eval 0.4.13",
        )
        for task, domain in TASKS
        for kind, bonus in (("mean", 0.0), ("pass", 0.05))
    ]


def grid(accuracies: Mapping[str, Iterable[float]], **more: Any) -> Done:
    """`{"k1.reward": [seed 0's accuracy, seed 1's, ...], ...}`."""
    done = Done([], [])
    for kl, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            done += run(kl, seed=seed, accuracy=accuracy, **more)
    return done


def spec(claims: Mapping[str, str] | None = None, **more: Any) -> Spec:
    return Spec(
        name="test",
        question=more.pop("question", "Do unbiased gradients train more stably?"),
        studies=tuple(
            Study(name=name, title=title, figure="Fig. 2", base={}, axes={}, seeds=(0,))
            for name, title in (("onpolicy", "On-policy"), ("async10", "Asynchronous"))
        ),
        claims=dict(claims or {}),
        source="test.yaml",
        **more,
    )


class Synthetic(NamedTuple):
    """The makers, for tests that cannot import this file."""

    run: Callable[..., Done]
    grid: Callable[..., Done]
    spec: Callable[..., Spec]
    none: Done
    collapsed: Outcome


COLLAPSED = Outcome(kind="collapsed", cause="reward", step=60, reason="reward fell to 0")
SYNTHETIC = Synthetic(run, grid, spec, Done([], []), COLLAPSED)


@pytest.fixture(scope="session")
def synthetic() -> Synthetic:
    return SYNTHETIC


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Spaces, quotes, a newline, a dollar and Greek: a path is never pasted into a shell."""
    return RunFolder(tmp_path / "a 'b\" $c\nβ" / "runs" / "test")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder with the experiments, and nothing run."""
    home = tmp_path / 'it\'s a "site" ü'
    shutil.copytree(Path(__file__).parents[1] / "experiments", home / "experiments")
    return home


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which smoke.yaml has run to its end. Tests must leave it as it is."""
    from command_line import ROOT, orch

    parallel = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if parallel else base
    folder = shared / 'it\'s a "run" ü'
    with (shared / "finished.lock").open("a") as lock:  # once for all workers of a test run
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lock.tell():
            shutil.copytree(ROOT / "experiments", folder / "experiments", dirs_exist_ok=True)
            done = orch(folder, "run", "experiments/smoke.yaml")
            assert done.returncode == 0, done.stderr
            lock.write("done")
    return folder
