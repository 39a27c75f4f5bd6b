"""Which runs MLflow should have: the summary, one a study, one a cell that was launched."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import RunFolderError
from orchestrator.evaluate.aggregates import TASK, aggregate
from orchestrator.fields import text_of
from orchestrator.files import read_json, read_lines
from orchestrator.fingerprint import flatten
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.state import is_ended
from orchestrator.tracking import describe
from orchestrator.tracking.content import (
    Content,
    Status,
    by_step,
    milliseconds,
    safe_params,
    safe_tags,
)
from orchestrator.tracking.dataset import dataset_of
from orchestrator.tracking.evaluated import evaluated
from orchestrator.tracking.secrets import hide
from orchestrator.tracking.views import study_tag
from orchestrator.types import MetricPoint, Record, Score, Spec, State, Study

STATUS: Mapping[State, Status] = {
    "planned": "SCHEDULED", "submitted": "SCHEDULED", "pending": "SCHEDULED",
    "running": "RUNNING", "unknown": "RUNNING", "succeeded": "FINISHED", "failed": "FAILED",
    "timed_out": "FAILED", "preempted": "KILLED", "cancelled": "KILLED",
}  # fmt: skip

SUMMARY = "summary"


def runs(
    records: Sequence[Record], scores: Iterable[Score], spec: Spec, folder: RunFolder
) -> list[Content]:
    """Every run, parents first. Empty if no cell was launched yet."""
    scores = list(scores)
    if not any(score.task in TASK.values() for score in scores):
        scores += aggregate(scores)
    of_cell: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        of_cell[score.cell_id].append(score)
    studies = {study.name: study for study in spec.studies}
    begun = [(record, started) for record in records if (started := _started(record)) is not None]
    if not begun:
        return []
    first = _first_event(folder) or min(started for _, started in begun)
    cells = [_cell(record, started, of_cell[record.cell.id], studies) for record, started in begun]
    parents = [_summary(spec, records, folder, first, cells)]
    for name in dict.fromkeys(name for record, _ in begun for name in record.cell.studies[:1]):
        own = [cell for cell in cells if cell.parent == _study_key(name)]
        parents.append(_study(name, studies.get(name), spec, records, first, own))
    return parents + cells


def _cell(
    record: Record, started: float, scores: Sequence[Score], studies: Mapping[str, Study]
) -> Content:
    cell, settings = record.cell, record.cell.settings
    plan, fault = _plan(record.directory)
    tags = {
        "model": settings.model.name,
        "data": settings.data.name,
        "seed": str(settings.seed),
        "backend": settings.backend.name,
        "advantage.estimator": settings.advantage.estimator,
        "max_staleness_steps": str(settings.max_staleness_steps),
        **cell.axes,
        "kl": settings.kl.label,
        "kl.estimator": settings.kl.estimator,
        "kl.placement": text_of(settings.kl.placement),
        "kl.beta": text_of(settings.kl.beta),
        "scale": cell.scale,
        "state": record.state,
        "outcome": record.outcome.kind if record.outcome else "",
        "collapse": record.outcome.cause if record.outcome else "",
        **_study_tags(cell.studies, studies),
        **{study_tag(name): "yes" for name in cell.studies},
        "orch.key": f"cell/{cell.id}",
        "orch.kind": "cell",
        "orch.cell_id": cell.id,
        "orch.trained_by": f"{settings.backend.name} {plan.get('version', '')}".strip(),
        "orch.directory": str(record.directory),
        "mlflow.note.content": describe.cell(record, scores, fault),
    }
    return Content(
        key=f"cell/{cell.id}",
        name=cell.slug,
        status=STATUS[record.state],
        started=milliseconds(started),
        ended=milliseconds(_ended(record, started)) if is_ended(record.state) else None,
        tags=safe_tags(tags),
        params=safe_params(
            {name: text_of(value) for name, value in flatten(settings.model_dump())}
        ),
        curves=record.metrics,
        scores=_score_points(scores, record, started),
        texts=_texts(record, scores, plan),
        files=_items(record, scores),
        parent=_study_key(cell.studies[0]) if cell.studies else "",
        dataset=dataset_of(record),
        models=evaluated(record, scores),
    )


def _study(
    name: str, study: Study | None, spec: Spec, records: Sequence[Record], first: float,
    cells: Sequence[Content],
) -> Content:  # fmt: skip
    members = [record for record in records if name in record.cell.studies]
    tags = {
        "study": name,
        "figure": study.figure if study else "",
        "scale": members[0].cell.scale,
        "orch.key": _study_key(name),
        "orch.kind": "study",
        "mlflow.note.content": describe.study(name, study, spec, members),
    }
    return Content(_study_key(name), name, _status(cells), milliseconds(first),
                   _last(cells), safe_tags(tags))  # fmt: skip


def _summary(
    spec: Spec, records: Sequence[Record], folder: RunFolder, first: float, cells: Sequence[Content]
) -> Content:
    tags = {
        "scale": records[0].cell.scale,
        "orch.key": SUMMARY,
        "orch.kind": SUMMARY,
        "orch.directory": str(folder.path),
        "mlflow.note.content": describe.summary(
            spec, records, folder, sum(len(cell.models) for cell in cells)
        ),
    }
    files = {
        f"report/{path.relative_to(folder.report).as_posix()}": path
        for path in sorted(folder.report.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    texts = {"spec.json": _json(hide(spec.model_dump(mode="json")))}
    return Content(SUMMARY, SUMMARY, _status(cells), milliseconds(first), _last(cells),
                   safe_tags(tags), texts=texts, files=files)  # fmt: skip


def _status(cells: Sequence[Content]) -> Status:
    live = any(cell.status in ("RUNNING", "SCHEDULED") for cell in cells)
    return "RUNNING" if live else "FINISHED"


def _last(cells: Sequence[Content]) -> int | None:
    ends = [cell.ended for cell in cells if cell.ended is not None]
    return max(ends) if len(ends) == len(cells) else None


def _study_key(name: str) -> str:
    return f"study/{name}"


def _study_tags(names: Sequence[str], studies: Mapping[str, Study]) -> dict[str, str]:
    figures = [studies[name].figure for name in names if name in studies and studies[name].figure]
    return {
        "study": names[0] if names else "",
        "studies": ", ".join(names),
        "figure": ", ".join(dict.fromkeys(figures)),
    }


def _score_points(
    scores: Iterable[Score], record: Record, started: float
) -> tuple[MetricPoint, ...]:
    """`eval/<task>/<metric>` at each checkpoint's step: the mean over evaluation seeds.

    A score has no time of its own that a rebuilt mirror would find again: it gets that of the
    train step its checkpoint was saved after.
    """
    steps = by_step((s.step, f"eval/{s.task}/{s.metric}", s.value) for s in scores)
    points = []
    for step, values in steps.items():
        times = [point.time for point in record.metrics if point.step <= step]
        points.append(MetricPoint(step, times[-1] if times else started, values))
    return tuple(points)


def _texts(record: Record, scores: Sequence[Score], plan: Mapping[str, Any]) -> dict[str, str]:
    texts = {"cell.json": record.cell.model_dump_json(indent=1)}
    if plan:
        ledger = plan.get("ledger", [])
        texts["ledger.json"] = _json(ledger)
        texts["plan.json"] = _json(hide({k: v for k, v in plan.items() if k != "ledger"}))
    if record.attempts:
        ends = [None if end is None else end.model_dump(mode="json") for end in record.attempts]
        texts["attempts.json"] = _json(ends)
    if scores:
        texts["scores.json"] = _json([score.model_dump(mode="json") for score in scores])
    return texts


def _items(record: Record, scores: Iterable[Score]) -> dict[str, Path]:
    """The responses kept for each item, below `eval/`."""
    found = {}
    for relative in dict.fromkeys(score.items_path for score in scores if score.items_path):
        path = record.directory / relative
        if path.is_file() and path.resolve().is_relative_to(record.directory.resolve()):
            found[f"eval/{path.name}"] = path
    return found


def _plan(directory: Path) -> tuple[dict[str, Any], str]:
    """The launch plan as written, and a sentence if it cannot be read."""
    try:
        return read_json(CellDir(directory).plan / "plan.json") or {}, ""
    except RunFolderError as error:
        return {}, str(error)


def _started(record: Record) -> float | None:
    """When the first attempt began, in Unix seconds; the same while it runs and after it ended."""
    if not record.attempts:
        return None
    attempt = AttemptDir(record.directory / "attempts" / "1", 1)
    try:
        return float((read_json(attempt.job) or {})["started"])
    except (RunFolderError, KeyError, TypeError, ValueError):
        ended = record.attempts[0]
        return ended.started if ended else _first_time(record)


def _first_time(record: Record) -> float | None:
    return record.metrics[0].time if record.metrics else None


def _ended(record: Record, started: float) -> float:
    if record.last is not None:
        return record.last.ended
    return record.metrics[-1].time if record.metrics else started


def _first_event(folder: RunFolder) -> float | None:
    """When the experiment began, by its ledger: it does not depend on which cells are mirrored."""
    try:
        return next((float(event["time"]) for event in read_lines(folder.ledger)), None)
    except (RunFolderError, KeyError, TypeError, ValueError):
        return None


def _json(plain: Any) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
