"""Read runs of an MLflow store: metrics with their histories, parameters, state."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.imports.source import Ended, LoggedRow, LoggedRun, UnreadableSource, digest
from orchestrator.spec.redaction import hide_userinfo

MOST_RUNS = 200
_ENDED: dict[str, Ended] = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "failed",
    "RUNNING": "running",
    "SCHEDULED": "running",
}


def read_store(uri: str, experiment: str | None, runs: Sequence[str]) -> Iterator[LoggedRun]:
    """Yield runs of a store: those of an experiment, or those named by id or name, or all.

    Raise UnreadableSource if the store or the experiment does not exist.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient(tracking_uri=uri)
    shown = hide_userinfo(uri)
    try:
        if experiment is None:
            ids = [each.experiment_id for each in client.search_experiments()]
        else:
            one = client.get_experiment_by_name(experiment)
            if one is None:
                names = ", ".join(each.name for each in client.search_experiments())
                raise UnreadableSource(
                    f"{shown} has no experiment '{experiment}' (it has: {names})"
                )
            ids = [one.experiment_id]
        stored_runs = client.search_runs(ids, max_results=MOST_RUNS)
    except MlflowException as error:
        raise UnreadableSource(f"{shown} cannot be read by MLflow: {error.message}") from None
    chosen = [
        r for r in stored_runs if not runs or r.info.run_id in runs or r.info.run_name in runs
    ]
    if not chosen:
        names = ", ".join(str(each.info.run_name) for each in stored_runs[:20]) or "none"
        raise UnreadableSource(f"{shown} has no such run (it has: {names})")
    for run in chosen:
        yield _of(run, client, shown)


def _of(run: Any, client: Any, shown: str) -> LoggedRun:
    points: dict[int, tuple[float, dict[str, float]]] = {}
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            _, values = points.setdefault(point.step, (point.timestamp / 1000, {}))
            values[name] = point.value
    rows = [LoggedRow(step, time, values) for step, (time, values) in sorted(points.items())]
    tags = run.data.tags
    return LoggedRun(
        run.info.run_name or run.info.run_id,
        "mlflow",
        f"{shown} (run {run.info.run_id})",
        digest(json.dumps([[r.step, r.time, dict(r.values)] for r in rows]).encode()),
        rows,
        {name: _value(text) for name, text in run.data.params.items()},
        written_by=f"MLflow, by {tags.get('mlflow.source.name', 'an unknown program')}",
        ended=_ENDED.get(run.info.status, "unknown"),
        notes=[] if rows else ["no metric was logged"],
    )


def _value(text: str) -> Any:
    """Return a parameter, which MLflow keeps as Python's text."""
    plain: dict[str, Any] = {"True": True, "False": False, "None": None}
    return plain.get(text, text)
