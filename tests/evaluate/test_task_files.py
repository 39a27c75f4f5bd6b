"""Finding task files, and what makes their version."""

import shutil
from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import task_files

TASKS = Path(__file__).parents[2] / "backends" / "micro" / "tasks"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the micro tasks that may be changed, with the sources they name."""
    shutil.copytree(TASKS, tmp_path / "micro" / "tasks")
    for source in ("skills.py", "problem_sets.py"):
        shutil.copy(TASKS.parent / source, tmp_path / "micro" / source)
    return tmp_path / "micro" / "tasks"


def version(path: Path) -> str:
    task_files.version.cache_clear()
    return task_files.version(path)


def test_a_task_without_a_file_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        task_files.find_task("micro_sorts", (TASKS, tmp_path / "none"))
    assert "'micro_sorts' has no task file, did you mean 'micro_sort'?" in str(caught.value)
    assert str(tmp_path / "none") in str(caught.value)


@pytest.mark.parametrize(
    "part",
    ["micro_sort.yaml", "_skill", "skill_task.py", "../skills.py", "../problem_sets.py"],
)
def test_the_version_follows_every_part_of_a_task(copy: Path, part: str) -> None:
    task = copy / "micro_sort.yaml"
    before = version(task)
    assert version(task) == before
    (copy / part).write_text((copy / part).read_text() + "\n# changed\n")
    assert version(task) != before


def test_the_version_ignores_what_running_leaves_behind(copy: Path) -> None:
    before = version(copy / "micro_sort.yaml")
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__" / "skill_task.cpython-311.pyc").write_bytes(b"\0")
    (copy.parent / "trainer.py").write_text("# not a part of the task\n")
    assert version(copy / "micro_sort.yaml") == before
