"""Records and answers of many ended cells from their columns, beside parsing their logs.

250 steps x 12 metrics a cell. The peer parses every log, and makes pandas' table of the curves; the
answers are compared.
    python benchmarks/results.py [cells]
"""

import contextlib
import gc
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mirror import NAMES, STEPS, cpu, experiment

from orchestrator.analysis.results import ResultsDatabase, results_of
from orchestrator.runs import columns
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment, open_experiment

ASKED = f"""
SELECT kl, beta, avg(value) FROM curves WHERE metric = '{NAMES[0]}' AND step = {STEPS - 1}
GROUP BY ALL ORDER BY ALL
"""  # noqa: S608


class Costs(NamedTuple):
    """CPU seconds."""

    parse: float
    keep: float
    """Parsing and writing the columns."""
    read: float
    query: float
    frame: float | None
    """The same answer by pandas, from logs."""


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    costs = measured(cells, frame=cells <= 1000)
    print(f"{cells} cells x {STEPS} steps x {len(NAMES)} metrics, CPU s")
    print(f"records, logs parsed            {costs.parse:8.2f}")
    print(f"  and columns written           {costs.keep:8.2f}")
    print(
        f"records, from columns           {costs.read:8.2f}   {costs.read / costs.parse:.2f} of it"
    )
    print(f"one query of curves by DuckDB   {costs.query:8.2f}   its start and the states included")
    if costs.frame is not None:
        print(f"the same by orch.results        {costs.frame:8.2f}   logs parsed")


def measured(cells: int, *, frame: bool) -> Costs:
    with tempfile.TemporaryDirectory() as name, settled():
        spec, folder, all_cells = experiment(Path(name), cells)
        opened = open_experiment(spec.source)
        shown = replace(opened, folder=folder, cells=tuple(all_cells))
        columns.WORTH_KEEPING = 10**18
        parse, parsed = anew(lambda: collect(all_cells, folder))
        by_pandas, answer = anew(lambda: averages(shown)) if frame else (None, None)
        columns.WORTH_KEEPING = 1
        last = [record.metrics[-1] for record in parsed]
        del parsed
        keep, _ = anew(lambda: collect(all_cells, folder))
        read, records = anew(lambda: collect(all_cells, folder))
        assert [record.metrics[-1] for record in records] == last
        del records
        asked, rows = anew(lambda: ResultsDatabase(shown).query(ASKED).rows)
        pairs = () if answer is None else zip(rows, answer, strict=True)
        assert all(math.isclose(row[2], one) for row, one in pairs), "sums of another order"
    return Costs(parse, keep, read, asked, by_pandas)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Let what was just written count as settled."""
    before = columns.SETTLED_NS, columns.WORTH_KEEPING
    columns.SETTLED_NS = 0
    try:
        yield
    finally:
        columns.SETTLED_NS, columns.WORTH_KEEPING = before


def anew(action: Any) -> tuple[float, Any]:
    """CPU seconds of an action in a process that has not listed the columns yet, and its result."""
    columns.columns_in.cache_clear()
    gc.collect()
    return cpu(action)


def averages(shown: Experiment) -> list[float]:
    curves = results_of(shown, "curves")
    rows = curves[(curves.metric == NAMES[0]) & (curves.step == STEPS - 1)]
    return list(rows.groupby(["kl", "beta"]).value.mean())


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s by the clock in all")
