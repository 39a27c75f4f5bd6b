"""The contents of `orch status`: states, cost and progress."""

import json
from collections import Counter
from collections.abc import Iterator

from orchestrator.runs.cost import (
    Total,
    evaluation_hours,
    total_left,
    used,
)
from orchestrator.runs.evaluation_jobs import cluster_standing, standing_sentences
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.pilot import known_rates
from orchestrator.runs.plan import Plan, PlanRow
from orchestrator.runs.watch import LISTED, LatestMetrics, latest_metrics

_LEFT = ("planned", "submitted", "pending", "running", "unknown", "preempted", "timed_out")
"""States of cells that are still to be trained, wholly or from where they are."""
COLUMNS = ("cell", "state", "step", "reward", "detail")
"""The columns of `cell_rows`."""


def status_lines(experiment: Experiment, plan: Plan) -> Iterator[str]:
    """Yield the lines that sum up an experiment: states, cost, and its work on the cluster."""
    counts = _states(plan)
    done = counts.pop("succeeded", 0)
    states = [f"{count} {named(state, experiment.where)}" for state, count in counts.items()]
    whole = f"{experiment.folder.experiment}: {done} of {len(plan.rows)} cells done"
    yield ", ".join([whole, *states])
    left = _left(experiment, plan)
    gpu_hours, cpu_seconds = used(plan.rows)
    gpu_hours += evaluation_hours(experiment.folder)
    parts = [
        f"{_number(cpu_seconds)} CPU-seconds used",
        *([f"{gpu_hours:.3g} GPU-hours used"] if gpu_hours else []),
        *([f"{left} still to spend"] if left.cells else []),
    ]
    if collapsed := sum(map(_is_collapsed, plan.rows)):
        parts.insert(0, f"{collapsed} collapsed")
    yield f"  {', '.join(parts)}"
    for sentence in standing_sentences(cluster_standing(experiment, plan)):
        yield f"  {sentence}"


def counted_faults(plan: Plan) -> list[str]:
    """Return each fault of a plan once, with the number of cells that have it."""
    return [
        sentence if count == 1 else f"{count} cells: {sentence}"
        for sentence, count in Counter(plan.faults).items()
    ]


def cell_rows(experiment: Experiment, plan: Plan, everything: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each cell that is not simply planned or done, or for every cell."""
    for row in plan.rows:
        if not (everything or row.state in LISTED):
            continue
        attempts = row.directory.attempts()
        now = latest_metrics(attempts[-1].path) if attempts else LatestMetrics()
        total = row.cell.settings.num_train_steps if row.cell else "?"
        yield (
            row.directory.path.name,
            named(row.state, experiment.where),
            f"{now.step}/{total}",
            _number(now.reward),
            row.detail.partition("\n")[0],
        )


def named(state: str, where: str) -> str:
    """Return a state in words: on this machine nobody preempts, a person interrupts."""
    return "interrupted" if state == "preempted" and where == "local" else state


def _left(experiment: Experiment, plan: Plan) -> Total:
    rows = [row for row in plan.rows if row.state in _LEFT]
    return total_left(rows, known_rates(plan.rows, experiment.folder))


def _states(plan: Plan) -> dict[str, int]:
    return dict(Counter(row.state for row in plan.rows))


def _is_collapsed(row: PlanRow) -> bool:
    return bool(row.exit and row.exit.outcome and row.exit.outcome.kind == "collapsed")


def status_data(experiment: Experiment, plan: Plan) -> dict[str, object]:
    """Return the status of an experiment as plain data, with every cell."""
    return {
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "directory": str(experiment.folder.path),
        "states": _states(plan),
        "collapsed": sum(map(_is_collapsed, plan.rows)),
        "cluster": cluster_standing(experiment, plan),
        "gpu_hours": {
            "used": used(plan.rows)[0] + evaluation_hours(experiment.folder),
            "remaining": _left(experiment, plan).gpu_hours,
        },
        "cells": [
            {
                "id": row.directory.id,
                "slug": row.directory.slug,
                "state": row.state,
                "attempts": row.attempts,
                "detail": row.detail,
                "exit": json.loads(row.exit.model_dump_json()) if row.exit else None,
            }
            for row in plan.rows
        ],
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
