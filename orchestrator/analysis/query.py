"""SQL queries over an experiment's results with DuckDB: the tables of results.py, and `runs`.

    runs      one row per cell: the columns that identify the run, with every axis of the spec
    finals    runs and metric, value          after the last train step of runs that ended well
    curves    runs and metric, step, value    as far as training came
    scores    runs and task, domain, metric, step, value, stderr, num_items, repeats, eval_seed

DuckDB reads the curves of ended cells from their columns on disk (runs/columns.py), and only the
columns that a query names. Cells without such columns have their logs parsed. The rows equal those
of `load_results`, because the same functions compute final values.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from orchestrator.analysis.results import (
    RUN,
    VALUE,
    ResultTable,
    axis_columns,
    columns,
    imported_rows,
    run_rows,
    table_rows,
)
from orchestrator.analysis.runs import measure
from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault, SelectionError
from orchestrator.evaluate import aggregate, read_scores
from orchestrator.imports.runs import read_imported
from orchestrator.records import MetricPoint, Record
from orchestrator.runs.collect import collect, collect_without_kept
from orchestrator.runs.columns import KeptRows, as_table
from orchestrator.runs.experiment import Experiment

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
        self._add("runs", (*RUN, *axis_columns(self._cells)), run_rows(self._records))
        self._add_trained(
            [
                (record.cell.id, record.directory.name, kept[record.cell.id])
                for record in self._records
                if record.cell.id in kept
            ]
        )
        self._add("evaluated", ("cell", "metric", "step", "value"), self._evaluated())
        self._add_table("scores", table_rows("scores", self._bare(), self._scores))
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

    def _bare(self) -> list[Record]:
        return [replace(record, metrics=()) for record in self._records]

    def _evaluated(self) -> Iterable[tuple[Any, ...]]:
        """Yield the points of curves that come from evaluations and not from logs."""
        for run in measure(self._bare(), self._scores):
            for metric, points in run.series.items():
                yield from ((run.record.cell.id, metric, step, v) for step, v in points.items())

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
