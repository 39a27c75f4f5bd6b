"""Half finished states of a replay: what a folder holds at any moment, or after an accident."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from orchestrator.rundir import CellDir, RunFolder

ACCIDENTS: dict[str, Callable[[CellDir, random.Random], None]] = {}


def cut(folder: RunFolder, seed: int) -> list[str]:
    """Leave a folder half finished, at random. Return a sentence for each thing that was done."""
    draw, told = random.Random(seed), list[str]()  # noqa: S311  # no secret
    libraries = sorted({one.read_cell().settings.backend.name for one in folder.cells()})
    missing = draw.choice([None, *libraries]) if len(libraries) > 1 else None
    without_scores = draw.random() < 0.2
    whole = draw.choice([0.1, 0.5, 0.9])
    if missing:
        told.append(f"nothing of {missing} was launched")
    if without_scores:
        told.append("nothing is scored")
    for cell_dir in folder.cells():
        if cell_dir.read_cell().settings.backend.name == missing:
            shutil.rmtree(cell_dir.path)
            continue
        if without_scores:
            shutil.rmtree(cell_dir.evaluations, ignore_errors=True)
        if draw.random() >= whole:
            name = draw.choice(sorted(ACCIDENTS))
            told.append(f"{cell_dir.path.name}: {name.replace('_', ' ')}")
            ACCIDENTS[name](cell_dir, draw)
    shutil.rmtree(folder.path / "index", ignore_errors=True)
    return told


def _accident(act: Callable[[CellDir, random.Random], None]) -> None:
    ACCIDENTS[act.__name__] = act


def logs(cell_dir: CellDir) -> list[Path]:
    """Return the files of the last attempt in which its library logs, and any other large one."""
    last = cell_dir.attempts()[-1].path
    return sorted(path for path in last.rglob("*") if path.is_file() and path.stat().st_size > 4000)


def _torn(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(max(1, len(content) - 2))])


@_accident
def not_launched(cell_dir: CellDir, _: random.Random) -> None:
    shutil.rmtree(cell_dir.path)


@_accident
def submitted(cell_dir: CellDir, _: random.Random) -> None:
    order = cell_dir.attempts()[0].order.read_text()
    for name in ("attempts", "plan", "checkpoints", "eval"):
        shutil.rmtree(cell_dir.path / name, ignore_errors=True)
    cell_dir.reserve(order)


@_accident
def lost_while_it_trained(cell_dir: CellDir, draw: random.Random) -> None:
    cell_dir.attempts()[-1].exit.unlink()
    shutil.rmtree(cell_dir.evaluations, ignore_errors=True)
    for path in logs(cell_dir):
        _torn(path, draw)


@_accident
def log_torn(cell_dir: CellDir, draw: random.Random) -> None:
    for path in logs(cell_dir):
        _torn(path, draw)


@_accident
def log_gone(cell_dir: CellDir, _: random.Random) -> None:
    for path in logs(cell_dir):
        path.unlink()


@_accident
def log_of_another_release(cell_dir: CellDir, _: random.Random) -> None:
    for path in logs(cell_dir):
        path.write_bytes(path.read_bytes().replace(b"eward", b"ewarD").replace(b"score", b"scorE"))


@_accident
def failed(cell_dir: CellDir, _: random.Random) -> None:
    attempt = cell_dir.attempts()[-1]
    ended = attempt.read_exit()
    changed = {"state": "failed", "code": 1, "failure": "error", "message": "boom", "outcome": None}
    attempt.write_exit(ended.model_copy(update=changed))


@_accident
def exit_record_torn(cell_dir: CellDir, draw: random.Random) -> None:
    _torn(cell_dir.attempts()[-1].exit, draw)


@_accident
def not_scored(cell_dir: CellDir, _: random.Random) -> None:
    shutil.rmtree(cell_dir.evaluations, ignore_errors=True)


@_accident
def scored_in_part(cell_dir: CellDir, draw: random.Random) -> None:
    for path in sorted(cell_dir.evaluations.glob("*.json")):
        if draw.random() < 0.5:
            path.unlink()


@_accident
def score_torn(cell_dir: CellDir, draw: random.Random) -> None:
    for path in sorted(cell_dir.evaluations.glob("*.json"))[:2]:
        _torn(path, draw)


@_accident
def without_checkpoints(cell_dir: CellDir, _: random.Random) -> None:
    shutil.rmtree(cell_dir.checkpoints, ignore_errors=True)
