"""All measurements as plain rows, for notebooks, CSV and Parquet.

    import orch
    finals = orch.results(orch.load("experiments/comedy_full.yaml"))
    finals[finals.metric == "eval/in_domain/mean"].groupby(["kl", "beta"]).value.mean()

There are three tables with one row per value. Their first columns identify the run: the columns of
RUN, then one column for every other axis of the spec, with the axis's name (`advantage.estimator`).

    finals   metric, value                       after the last train step of runs that ended well
    curves   metric, step, value                 as far as training came
    scores   task, domain, metric, step, value, stderr, num_items, repeats, eval_seed
"""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.analysis.runs import MeasuredRun, measure
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.evaluate import aggregate, read_scores
from orchestrator.files import write_bytes
from orchestrator.records import Record, Score
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

ResultTable = Literal["finals", "curves", "scores"]
TABLES: tuple[ResultTable, ...] = ("finals", "curves", "scores")
RUN = (
    "cell",
    "study",
    "scale",
    "model",
    "data",
    "backend",
    "kl",
    "estimator",
    "placement",
    "beta",
    "staleness",
    "seed",
    "state",
    "outcome",
)
_SHOWN_BY_RUN = frozenset(
    {"model", "data", "backend", "kl", "kl.estimator", "kl.placement", "beta", "kl.beta"}
    | {"async", "max_staleness_steps", "seed", "study"}
)
"""Axes that RUN has a column for."""
VALUE: dict[ResultTable, tuple[str, ...]] = {
    "finals": ("metric", "value"),
    "curves": ("metric", "step", "value"),
    "scores": (
        "task",
        "domain",
        "metric",
        "step",
        "value",
        "stderr",
        "num_items",
        "repeats",
        "eval_seed",
    ),
}
"""Columns of each table after those that identify the run."""


def table_of(
    table: ResultTable, records: Sequence[Record], scores: Sequence[Score]
) -> "pd.DataFrame":
    """Return a table of these records."""
    import pandas as pd

    names = dict.fromkeys(name for record in records for name in record.cell.axes)
    axes = [name for name in names if name not in _SHOWN_BY_RUN]
    of_cell = {
        run.record.cell.id: (run, _run_columns(run, axes)) for run in measure(records, scores)
    }
    rows: list[tuple[Any, ...]] = []
    for run, own in of_cell.values():
        if table == "finals":
            rows += ((*own, metric, value) for metric, value in sorted(run.finals.items()))
        elif table == "curves":
            for metric, points in sorted(run.series.items()):
                rows += ((*own, metric, step, points[step]) for step in points)
    for s in scores if table == "scores" else ():
        if s.cell_id in of_cell:
            rows.append((*of_cell[s.cell_id][1], *attrgetter(*VALUE["scores"])(s)))
    return pd.DataFrame.from_records(rows, columns=[*RUN, *axes, *VALUE[table]])


def results_of(experiment: Experiment, table: ResultTable) -> "pd.DataFrame":
    """Return a table of an opened experiment's cells. Raise SelectionError for an unknown table."""
    if table not in TABLES:
        raise SelectionError(
            f"no table is called '{table}'{did_you_mean(table, TABLES)} "
            f"(there are: {', '.join(TABLES)})"
        )
    scores = [s for c in experiment.cells for s in read_scores(experiment.folder.cell(c))]
    records = collect(experiment.cells, experiment.folder)
    return table_of(table, records, [*scores, *aggregate(scores)])


def _run_columns(run: MeasuredRun, axes: Sequence[str]) -> tuple[Any, ...]:
    cell, declared = run.record.cell, run.declared
    outcome = run.record.outcome
    return (
        cell.id,
        ",".join(cell.studies),
        cell.scale,
        declared.model.name,
        declared.data.name,
        run.traits.get("backend", declared.backend.name),
        declared.kl.label,
        declared.kl.estimator,
        declared.kl.placement,
        declared.kl.beta if run.has_kl else None,
        declared.max_staleness_steps,
        declared.seed,
        run.record.state,
        outcome.word if outcome else None,
        *(cell.axes.get(axis) for axis in axes),
    )


def write_tables(
    folder: Path,
    kind: Literal["csv", "parquet"],
    records: Sequence[Record],
    scores: Sequence[Score],
) -> list[Path]:
    """Write finals, curves and scores to files in `folder`, and return their paths.

    Replace each file atomically.
    """
    import io

    paths = []
    for table in TABLES:
        frame = table_of(table, records, scores)
        content = io.BytesIO()
        if kind == "csv":
            frame.to_csv(content, index=False)
        else:
            frame.to_parquet(content, index=False)
        paths.append(folder / f"{table}.{kind}")
        write_bytes(paths[-1], content.getvalue())
    return paths
