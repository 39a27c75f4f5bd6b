"""A runs folder with cells whose checkpoints are the shipped policies, and a stand-in backend."""

import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.records import Cell, Checkpoint, EvalTask, EvaluationSpec, Record, Sampling
from orchestrator.rundir import RunFolder
from tests.settings import cell_of, plain

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "backends" / "micro" / "tasks"
POLICIES = ROOT / "backends" / "micro" / "policies"
SKILLS = ("sort", "reverse", "copy", "increment")

Train = Callable[..., Record]


def a_cell(seed: int = 0) -> Cell:
    settings = plain(
        model={"name": "elder", "path": "micro:elder"},
        data={"name": "sort", "path": "micro:sort"},
        kl={"estimator": "none"},
        num_train_steps=100,
        backend={"name": "micro"},
        seed=seed,
    )
    return cell_of(settings, slug=f"cell-s{seed}")


@pytest.fixture
def ask() -> Callable[..., EvaluationSpec]:
    """Makes an evaluation of the four skills; `sort` is the one trained on."""

    def make(repeats: int = 4, max_items: int = 16, **changes: object) -> EvaluationSpec:
        tasks = tuple(
            EvalTask(
                name=f"micro_{skill}",
                domain="in" if skill == "sort" else "out",
                repeats=repeats,
                max_items=max_items,
            )
            for skill in SKILLS
        )
        return EvaluationSpec.model_validate({"tasks": tasks, "sampling": Sampling(), **changes})

    return make


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The backend of every cell here: the micro tasks, and no tasks in place of the spec's."""
    backend = SimpleNamespace(
        tasks_dir=TASKS,
        policies_dir=TASKS.parent / "policies",
        rehearse_tasks=lambda _: (),
    )
    for name in ("load", "load_embedded"):
        monkeypatch.setattr(plugins, name, lambda _: backend)
    return backend


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A runs folder with a nasty path."""
    made = RunFolder.of(tmp_path / "ru ns'\"\n ü", "ex", "micro")
    made.open()
    return made


@pytest.fixture(scope="session")
def harness() -> ModuleType:
    """The one module that imports lm-eval, torch and transformers."""
    from orchestrator.evaluate import harness

    return harness


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done in this process from the start."""
    do_in_process(monkeypatch)


@pytest.fixture
def from_here_in_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called: jobs are done in this process from then on."""
    return lambda: do_in_process(monkeypatch)


def do_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has imported the harness: another takes seconds."""
    from orchestrator.evaluate import harness, run
    from orchestrator.evaluate.scores import ScoringJob

    def work(jobs: Sequence[ScoringJob], *_how: object) -> Generator[tuple[int, str]]:
        for place, job in enumerate(jobs):
            try:
                harness.answer(ScoringJob.model_validate_json(job.model_dump_json()))
            except OrchError as error:
                yield place, str(error)
            else:
                yield place, ""

    harness.torch.set_num_threads(1)
    monkeypatch.setattr(run, "work", work)


@pytest.fixture
def train(folder: RunFolder) -> Train:
    """Makes the record of a succeeded cell, with a checkpoint that is a shipped policy."""

    def make(seed: int = 0, policy: str = "elder", steps: tuple[int, ...] = (100,)) -> Record:
        cell = a_cell(seed)
        cell_dir = folder.cell(cell)
        cell_dir.make(cell)
        checkpoints = []
        for step in steps:
            path = cell_dir.checkpoints / f"step-{step}"
            shutil.copytree(POLICIES / policy, path)
            checkpoints.append(Checkpoint(step, path))
        return Record(
            cell, "succeeded", checkpoints=tuple(checkpoints), directory=folder.cell(cell).path
        )

    return make
