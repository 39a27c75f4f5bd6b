"""All measurements as plain rows, for notebooks, CSV, Parquet and SQL queries.

    import orch
    finals = orch.results(orch.load("experiments/comedy_full.yaml"))
    finals[finals.metric == "eval/in_domain/mean"].groupby(["kl", "beta"]).value.mean()

There are three tables with one row per value. Their first columns identify the run: the columns of
RUN, then one column for every other axis of the spec, with the axis's name (`advantage.estimator`).
A run that orch did not launch has an `origin`, and its cell is `imported:<name>`.

    finals   metric, value                       after the last train step of runs that ended well
    curves   metric, step, value                 as far as training came
    scores   task, domain, metric, step, value, stderr, num_items, repeats, eval_seed

SQL queries (DuckDB) see these tables with the columns of RUN and all axes, and `runs`, a table with
one row per cell. DuckDB reads the curves of ended cells from their columns on disk
(runs/columns.py), and only the columns that a query names. Cells without such columns have their
logs parsed. The rows equal those of `results_of`: the same functions compute final values.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from orchestrator.analysis.imported import terms_of
from orchestrator.analysis.runs import MeasuredRun, measure
from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault, SelectionError, did_you_mean
from orchestrator.evaluate import aggregate, read_scores
from orchestrator.files import write_bytes
from orchestrator.imports.runs import ImportedRun, read_imported
from orchestrator.records import Cell, MetricPoint, Record, Score
from orchestrator.runs.collect import collect, collect_without_kept
from orchestrator.runs.columns import KeptRows, as_table
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
    "origin",
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


def axis_columns(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the axes of these cells that RUN has no column for, in order of appearance."""
    names = dict.fromkeys(name for cell in cells for name in cell.axes)
    return tuple(name for name in names if name not in _SHOWN_BY_RUN)


def columns(table: ResultTable, cells: Iterable[Cell]) -> list[str]:
    """Return the columns of a table of these cells."""
    return [*RUN, *axis_columns(cells), *VALUE[table]]


def results_of(experiment: Experiment, table: ResultTable = "finals") -> "pd.DataFrame":
    """Return a table of an opened experiment's cells. Raise SelectionError for an unknown table."""
    import pandas as pd

    if table not in TABLES:
        raise SelectionError(
            f"no table is called '{table}'{did_you_mean(table, TABLES)} "
            f"(there are: {', '.join(TABLES)})"
        )
    records = collect(experiment.cells, experiment.folder)
    scores = [s for c in experiment.cells for s in read_scores(experiment.folder.cell(c))]
    rows = table_rows(table, records, [*scores, *aggregate(scores)])
    imported = imported_rows(table, read_imported(experiment.folder), experiment.cells)
    return pd.DataFrame.from_records([*rows, *imported], columns=columns(table, experiment.cells))


def table_rows(
    table: ResultTable, records: Sequence[Record], scores: Sequence[Score]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, with values in the order of `columns`."""
    runs = measure(records, scores)
    if table == "scores":
        yield from score_rows(runs, scores)
        return
    axes = axis_columns(record.cell for record in records)
    for run in runs:
        own = _run_columns(run, axes)
        if table == "finals":
            yield from ((*own, metric, value) for metric, value in sorted(run.finals.items()))
        else:
            for metric, points in sorted(run.series.items()):
                yield from ((*own, metric, step, points[step]) for step in sorted(points))


def run_rows(runs: Sequence[MeasuredRun]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each run, with the columns that identify it."""
    axes = axis_columns(run.record.cell for run in runs)
    for run in runs:
        yield _run_columns(run, axes)


def score_rows(runs: Sequence[MeasuredRun], scores: Iterable[Score]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table `scores`, for scores of these runs."""
    named = dict(zip((run.record.cell.id for run in runs), run_rows(runs), strict=True))
    for s in scores:
        if s.cell_id in named:
            yield (
                *named[s.cell_id],
                s.task,
                s.domain,
                s.metric,
                s.step,
                s.value,
                s.stderr,
                s.num_items,
                s.repeats,
                s.eval_seed,
            )


def imported_rows(
    table: ResultTable, runs: Iterable[ImportedRun], cells: Iterable[Cell]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of runs that orch did not launch, in the columns of these cells.

    A column is None if the run's log does not determine it. Yield nothing for `scores`: orch did
    not evaluate these runs.
    """
    if table == "scores":
        return
    others = (None,) * len(axis_columns(cells))
    for run in runs:
        own = (*_imported_columns(run), *others)
        if table == "finals":
            yield from ((*own, metric, value) for metric, value in sorted(run.finals.items()))
        else:
            for point in run.points:
                yield from ((*own, m, point.step, v) for m, v in sorted(point.values.items()))


def _imported_columns(run: ImportedRun) -> tuple[Any, ...]:
    terms, beta = terms_of(run)
    terms = None if terms is None or " + " in terms else terms
    estimator, _, placement = (terms or "").partition(".")
    known = {
        "cell": f"imported:{run.name}",
        "backend": run.manifest.library,
        "kl": terms,
        "estimator": estimator or None,
        "placement": placement or None,
        "beta": beta,
        "state": run.manifest.ended,
        "origin": run.manifest.origin,
    }
    return tuple(known.get(name) for name in RUN)


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
        outcome.kind if outcome else None,
        None,
        *(cell.axes.get(axis) for axis in axes),
    )


def write_tables(
    folder: Path,
    kind: Literal["csv", "parquet"],
    records: Sequence[Record],
    scores: Sequence[Score],
    imported: Sequence[ImportedRun] = (),
) -> list[Path]:
    """Write finals, curves and scores to files in `folder`, and return their paths.

    Replace each file atomically.
    """
    import io

    import pandas as pd

    paths = []
    for table in TABLES:
        cells = [record.cell for record in records]
        rows = [*table_rows(table, records, scores), *imported_rows(table, imported, cells)]
        frame = pd.DataFrame.from_records(rows, columns=columns(table, cells))
        content = io.BytesIO()
        if kind == "csv":
            frame.to_csv(content, index=False)
        else:
            frame.to_parquet(content, index=False)
        paths.append(folder / f"{table}.{kind}")
        write_bytes(paths[-1], content.getvalue())
    return paths


_TYPES = {
    **dict.fromkeys(("beta", "value", "stderr"), "float64"),
    **dict.fromkeys(("staleness", "seed", "step", "num_items", "repeats", "eval_seed"), "int64"),
}
"""Column -> pyarrow's name of its type, for columns that are not text."""

_GLOB = re.compile(r"[*?\[\]]")
_LAST_POINTS = """
SELECT cell, metric, max(step), arg_max(value, step) FROM trained GROUP BY cell, metric
"""
_KEPT = """
SELECT kept.id AS cell, stored.* EXCLUDE (cell, filename)
FROM read_parquet([{paths}], union_by_name = true, filename = true) AS stored
JOIN kept ON stored.cell = kept.name AND stored.filename = kept.path
"""
_TRAINED = """
CREATE VIEW trained AS SELECT cell, metric, step, value
FROM (UNPIVOT points ON COLUMNS(* EXCLUDE (cell, step, time)) INTO NAME metric VALUE value)
"""
_CURVES = """
CREATE VIEW curves AS
SELECT runs.*, metric, step, value
FROM (
    SELECT cell, metric, step, value FROM trained
    ANTI JOIN evaluated USING (cell, metric, step)
    UNION ALL SELECT cell, metric, step, value FROM evaluated
) JOIN runs USING (cell)
UNION ALL SELECT * FROM imported_curves
"""


class Answer(NamedTuple):
    """The result of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def _evaluated_rows(runs: Iterable[MeasuredRun]) -> Iterator[tuple[Any, ...]]:
    """Yield the points of curves that come from evaluations, of runs without their logs."""
    for run in runs:
        for metric, points in run.series.items():
            yield from ((run.record.cell.id, metric, step, v) for step, v in points.items())


class ResultsDatabase:
    """A database of an experiment's results on disk, read when it is created."""

    def __init__(self, experiment: Experiment):
        """Read the results. Raise EnvironmentFault if DuckDB is not installed."""
        try:
            import duckdb
        except ImportError:
            raise EnvironmentFault(
                "this needs duckdb, which this installation of orch leaves out; add it with: "
                f"{install_line('query')}"
            ) from None
        self._cells = experiment.cells
        kept: dict[str, KeptRows] = {}
        if _GLOB.search(str(experiment.folder.path)):  # DuckDB reads such a path as a pattern
            self._records = collect(experiment.cells, experiment.folder)
        else:
            self._records, kept = collect_without_kept(experiment.cells, experiment.folder)
        scores = [s for c in experiment.cells for s in read_scores(experiment.folder.cell(c))]
        self._scores = [*scores, *aggregate(scores)]
        self._imported = read_imported(experiment.folder)
        self._connection = duckdb.connect(":memory:")
        runs = measure([replace(record, metrics=()) for record in self._records], self._scores)
        self._add("runs", (*RUN, *axis_columns(self._cells)), run_rows(runs))
        self._add_trained(
            [
                (record.cell.id, record.directory.name, kept[record.cell.id])
                for record in self._records
                if record.cell.id in kept
            ]
        )
        self._add("evaluated", ("cell", "metric", "step", "value"), _evaluated_rows(runs))
        self._add_table("scores", score_rows(runs, self._scores))
        imported = imported_rows("curves", self._imported, self._cells)
        self._add("imported_curves", columns("curves", self._cells), imported)
        self._connection.execute(_CURVES)
        self._has_finals = False

    def query(self, sql: str) -> Answer:
        """Return DuckDB's result. Raise SelectionError with DuckDB's message for a bad query."""
        import duckdb

        try:
            if not self._has_finals and "finals" in sql.lower():
                self._add_finals()
            if not self._connection.extract_statements(sql):
                raise SelectionError("the query is empty; for example: SELECT * FROM runs")
            answer = self._connection.execute(sql)
            names = [str(name) for name, *_ in answer.description or ()]
            return Answer(names, answer.fetchall())
        except duckdb.Error as error:
            tables = "; ".join(f"{name}: {', '.join(of)}" for name, of in self.tables().items())
            raise SelectionError(
                f"DuckDB refuses the query: {error}\nThere are {tables}. A name with a dot "
                'stands in double quotes ("advantage.estimator")'
            ) from None

    def tables(self) -> dict[str, list[str]]:
        """Return table -> its columns."""
        own: dict[str, list[str]] = {"runs": [*RUN, *axis_columns(self._cells)]}
        return own | {name: columns(name, self._cells) for name in VALUE}

    def _add_finals(self) -> None:
        """Create the table of final values from the last point of each logged curve."""
        last: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for cell, metric, step, value in self._connection.execute(_LAST_POINTS).fetchall():
            last[cell][step][metric] = value
        reduced = [
            replace(
                record,
                metrics=tuple(
                    MetricPoint(step, 0.0, values)
                    for step, values in sorted(last[record.cell.id].items())
                ),
            )
            for record in self._records
        ]
        rows = table_rows("finals", reduced, self._scores)
        self._add_table("finals", (*rows, *imported_rows("finals", self._imported, self._cells)))
        self._has_finals = True

    def _add_trained(self, kept: Sequence[tuple[str, str, Any]]) -> None:
        """Create the view of logged points: cell, metric, step, value."""
        parsed = {r.cell.id: ("", r.metrics) for r in self._records if r.metrics}
        if not kept and not parsed:
            self._add("trained", ("cell", "metric", "step", "value"), ())
            return
        parts = []
        if kept:
            rows = [(cell, name, str(rows.path)) for cell, name, rows in kept]
            self._add("kept", ("id", "name", "path"), rows)
            paths = ", ".join("'" + p.replace("'", "''") + "'" for p in {row[2] for row in rows})
            parts.append(_KEPT.format(paths=paths))
        if parsed:
            self._connection.register("parsed", as_table(parsed)[0])
            parts.append("SELECT * FROM parsed")
        self._connection.execute(f"CREATE VIEW points AS {' UNION ALL BY NAME '.join(parts)}")
        self._connection.execute(_TRAINED)

    def _add_table(self, table: ResultTable, rows: Iterable[tuple[Any, ...]]) -> None:
        self._add(table, columns(table, self._cells), rows)

    def _add(self, name: str, named: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        import pyarrow as pa

        values = list(zip(*rows, strict=True)) or [()] * len(named)
        arrays = [
            pa.array(column, pa.type_for_alias(_TYPES.get(title, "string")))
            for title, column in zip(named, values, strict=True)
        ]
        self._connection.register(name, pa.Table.from_arrays(arrays, list(named)))


def query(experiment: Experiment, sql: str) -> Answer:
    """Return the result of a query of an experiment's results."""
    return ResultsDatabase(experiment).query(sql)
