"""The runs that MLflow should have, and the Markdown on the page of each.

These are one summary and one run per launched cell. The summary comes first.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import RunFolderError
from orchestrator.evaluate.scores import TASK, aggregate
from orchestrator.files import read_json, read_lines
from orchestrator.identity import flatten
from orchestrator.library.neighbour import UNVERIFIED
from orchestrator.metrics.names import in_mlflow
from orchestrator.records import ENDED, MetricPoint, Record, Score, Spec, State
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.spec.fields import text_of
from orchestrator.spec.redaction import hide
from orchestrator.spec.rehearse import verdict_on
from orchestrator.tracking.content import (
    NOTE,
    Content,
    Point,
    Points,
    add_points,
    milliseconds,
    safe,
)
from orchestrator.tracking.names import MAX_PARAM, MAX_TAG

MICRO_NOTE = (
    "**Micro scale**: trained by the embedded trainer on this machine as a rehearsal. Its numbers "
    "are those of a tiny policy, never of the model it stands for."
)

STATUS: Mapping[State, str] = {
    "planned": "SCHEDULED",
    "submitted": "SCHEDULED",
    "pending": "SCHEDULED",
    "running": "RUNNING",
    "unknown": "RUNNING",
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "timed_out": "FAILED",
    "preempted": "KILLED",
    "cancelled": "KILLED",
}

SUMMARY = "summary"


def runs(
    records: Sequence[Record],
    scores: Iterable[Score],
    spec: Spec,
    folder: RunFolder,
) -> list[Content]:
    """Return the runs of these records, the summary first. Empty if none was launched yet."""
    scores = list(scores)
    # The caller may have added the means of domains already.
    if not any(score.task in TASK.values() for score in scores):
        scores += aggregate(scores)
    of_cell: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        of_cell[score.cell_id].append(score)
    begun = [(record, started) for record in records if (started := _started(record)) is not None]
    if not begun:
        return []
    first = min(started for _, started in begun)
    with suppress(RunFolderError, KeyError, TypeError, ValueError):
        # the ledger's, which does not depend on the mirrored cells
        first = next((float(event["time"]) for event in read_lines(folder.ledger)), first)
    named_metrics = _asked_metrics(spec)
    of_cells = [
        _cell(
            record,
            started,
            of_cell[record.cell.id],
            named_metrics,
        )
        for record, started in begun
    ]
    ends = [cell.ended for cell in of_cells if cell.ended is not None]
    ended = max(ends) if len(ends) == len(begun) else None
    return [_summary(spec, records, folder, first, ended), *of_cells]


_METRIC_NAME = re.compile(r"[a-z]+/[^\s\"'\[\]{},*+<>=~]+")


def _asked_metrics(spec: Spec) -> frozenset[str] | None:
    """Return the metrics that claims and objectives of a search name; None: every metric."""
    if spec.site.tracking_metrics == "all":
        return None
    texts = [*spec.claims.values(), json.dumps(spec.tune)]
    return frozenset(name for text in texts for name in _METRIC_NAME.findall(text))


def _logged_metrics(record: Record, named_metrics: frozenset[str] | None) -> frozenset[str]:
    """Return the metrics that MLflow holds as curves."""
    settings = record.cell.settings
    off_policy = (
        record.cell.scale == "full"
        or settings.max_staleness_steps > 0
        or settings.batch.num_minibatches > 1
        or settings.precision.rollout not in (None, settings.precision.training)
    )
    recorded = {name for point in record.metrics for name in point.values}
    return frozenset(
        name
        for name in recorded
        if named_metrics is None or in_mlflow(name, off_policy=off_policy) or name in named_metrics
    )


def _cell(
    record: Record,
    started: float,
    scores: Sequence[Score],
    named_metrics: frozenset[str] | None,
) -> Content:
    cell, settings = record.cell, record.cell.settings
    # A cell whose name another one has too has a part of its id behind its seed.
    configuration, _, twin = cell.slug.rpartition(f"-s{settings.seed}")
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
        # its seeds share it, so that MLflow can group them
        "configuration": f"{configuration} {cell.studies[0]}" if twin else configuration,
        "scale": cell.scale,
        "state": record.state,
        "outcome": record.outcome.word if record.outcome else "",
        "collapse": record.outcome.cause if record.outcome else "",
        "study": cell.studies[0] if cell.studies else "",
        "studies": ", ".join(cell.studies),
        **{f"study.{name}": "yes" for name in cell.studies},
        "orch.key": f"cell/{cell.id}",
        "orch.kind": "cell",
        "orch.cell_id": cell.id,
        "orch.trained_by": _trained_by(settings.backend.name, plan),
        "orch.directory": str(record.directory),
        NOTE: _described(
            MICRO_NOTE if cell.scale == "micro" else "",
            f"**KL term** {verdict_on(settings).summary}",
            record.last.message if record.last else "",
            record.outcome.reason if record.outcome else "",
            *record.faults,
            fault,
        ),
    }
    return Content(
        key=f"cell/{cell.id}",
        name=cell.slug,
        status=STATUS[record.state],
        started=milliseconds(started),
        ended=milliseconds(_ended(record, started)) if record.state in ENDED else None,
        tags=safe(tags, MAX_TAG),
        params=safe(
            {name: text_of(value) for name, value in flatten(settings.model_dump())}, MAX_PARAM
        ),
        points=_points(
            record,
            _logged_metrics(record, named_metrics),
            _score_points(scores, record, started),
        ),
        texts=_texts(record, scores, plan),
        files=_items(record, scores),
    )


def _summary(
    spec: Spec, records: Sequence[Record], folder: RunFolder, first: float, ended: int | None
) -> Content:
    tags = {
        "scale": records[0].cell.scale,
        "orch.key": SUMMARY,
        "orch.kind": SUMMARY,
        "orch.directory": str(folder.path),
        NOTE: _described(
            MICRO_NOTE if records[0].cell.scale == "micro" else "", spec.question, spec.description
        ),
    }
    files = {
        f"report/{path.relative_to(folder.report).as_posix()}": path
        for path in sorted(folder.report.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    texts = {"spec.json": _json(hide(spec.model_dump(mode="json")))}
    return Content(
        key=SUMMARY,
        name=SUMMARY,
        status="RUNNING" if ended is None else "FINISHED",
        started=milliseconds(first),
        ended=ended,
        tags=safe(tags, MAX_TAG),
        texts=texts,
        files=files,
    )


def _points(record: Record, logged: Collection[str], scores: Iterable[MetricPoint]) -> Points:
    points: dict[str, list[Point]] = {}
    curves = (
        MetricPoint(p.step, p.time, {n: v for n, v in p.values.items() if n in logged})
        for p in record.metrics
    )
    add_points(points, curves)
    add_points(points, scores)
    return points


def _score_points(
    scores: Iterable[Score], record: Record, started: float
) -> tuple[MetricPoint, ...]:
    """Return `eval/<task>/<metric>` at each checkpoint's step: the mean over evaluation seeds.

    A score has no time of its own that a rebuilt mirror would compute again. So it gets the time of
    the train step after which its checkpoint was saved.
    """
    steps: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        steps[score.step][f"eval/{score.task}/{score.metric}"].append(score.value)
    points = []
    for step, values in sorted(steps.items()):
        times = [point.time for point in record.metrics if point.step <= step]
        means = {name: math.fsum(each) / len(each) for name, each in values.items()}
        points.append(MetricPoint(step, times[-1] if times else started, means))
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
    """Return the responses kept for each item, below `eval/`."""
    files = {}
    for relative in dict.fromkeys(score.items_path for score in scores if score.items_path):
        path = record.directory / relative
        # A link in the folder must not carry a file from outside into the mirror.
        if path.is_file() and path.resolve().is_relative_to(record.directory.resolve()):
            files[f"eval/{path.name}"] = path
    return files


def _plan(directory: Path) -> tuple[dict[str, Any], str]:
    """Return the launch plan as written, and a sentence if it cannot be read."""
    try:
        return read_json(CellDir(directory).plan / "plan.json") or {}, ""
    except RunFolderError as error:
        return {}, str(error)


def _started(record: Record) -> float | None:
    """Return the start of the first attempt, in Unix seconds. It is the same during the run and
    after it."""
    if not record.attempts:
        return None
    attempt = AttemptDir(record.directory / "attempts" / "1", 1)
    try:
        return float((read_json(attempt.job) or {})["started"])
    except (RunFolderError, KeyError, TypeError, ValueError):
        if ended := record.attempts[0]:
            return ended.started
        return record.metrics[0].time if record.metrics else None


def _ended(record: Record, started: float) -> float:
    if record.last is not None:
        return record.last.ended
    return record.metrics[-1].time if record.metrics else started


def _json(plain: Any) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def pruned_cells(folder: RunFolder) -> frozenset[str]:
    """Return the ids of cells that `orch prune` removed and that have no directory now.

    The ids come from the ledger. Empty if the ledger cannot be read.
    """
    try:
        events = folder.events()
        present = folder.directories()
    except RunFolderError:
        return frozenset()
    return frozenset(
        str(event.get("cell"))
        for event in events
        if event.get("event") == "pruned" and event.get("cell") not in present
    )


# ------------------------------------------------------------------ the page of a run


def _trained_by(library: str, plan: Mapping[str, Any]) -> str:
    """Return the library and its release, with *unverified* if the launch's ledger says so."""
    graded = any(each["status"] == UNVERIFIED for each in plan.get("ledger", ()))
    release = f"{library} {plan.get('version', '')}".strip()
    return f"{release} ({UNVERIFIED})" if graded else release


def _described(*parts: str) -> str:
    """Return the note on the page of a run or an experiment, a paragraph each."""
    return "\n\n".join(part for part in parts if part)
