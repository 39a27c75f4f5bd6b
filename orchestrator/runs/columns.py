"""The metrics of ended cells as columns, so that no log is parsed twice.

runs/<experiment>/columns/*.parquet have one row per train step and one column per metric. Each
process writes complete files of its own. Several small files are merged into one. The schema's
metadata lists, for each cell, its rows and the state of its `attempts/`: path, size and time of
change of every file, and a digest of the code that parsed them.

This is a cache. Rows are valid only while that state is the same. After a new attempt, an edited
log or a change of the backend's parser, the logs are parsed again. Cells with a fault are never
cached, so that each reading reports the fault.
"""

import hashlib
import inspect
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator import plugins
from orchestrator.errors import RunFolderError
from orchestrator.files import write_bytes
from orchestrator.metrics import points as points_code
from orchestrator.metrics.points import PointValues, places_of, stretches
from orchestrator.records import MetricPoint
from orchestrator.rundir import CellDir, RunFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
WORTH_KEEPING = 100_000
"""Number of values below which a cache is useless: parsing them takes no longer than the import of
pyarrow."""
VALUES_A_FILE = 10_000_000
MAX_SMALL_FILES = 16
"""Number of files smaller than half of that, above which they are merged."""
SETTLED_NS = 5_000_000_000
"""Nanoseconds after a change in which a second one may have the same time."""
_KEY = b"orch"
_OF_A_ROW = ("cell", "step", "time")
"""Columns that are not metrics. Names of metrics contain a slash, so they never collide."""


class KeptRows(NamedTuple):
    """The rows of one cell in a file of columns."""

    path: Path
    state: str
    """Digest of the files from which they were parsed."""
    start: int
    stop: int


class Columns:
    """The columns of one folder, as this process knows them."""

    def __init__(self, folder: RunFolder):
        self._path = folder.path / "columns"
        self._rows: dict[str, KeptRows] = {}
        self._tables: dict[Path, _Table] = {}
        self._new: dict[str, tuple[str, Sequence[MetricPoint]]] = {}
        self._num_new = 0
        for path in self._files():
            self._note(path)

    def state_of(self, cell_dir: CellDir, backend: str) -> str | None:
        """Return a digest of all files from which the metrics are parsed; None if one just
        changed."""
        entries, latest = _entries(f"{cell_dir.path}/attempts")
        if not entries or time.time_ns() - latest < SETTLED_NS:
            return None
        text = json.dumps([FORMAT, parsing_code(backend), sorted(entries)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def rows(self, cell_dir: CellDir, state: str | None) -> KeptRows | None:
        """Return the cached rows of a cell, or None if its logs must be parsed."""
        rows = self._rows.get(cell_dir.path.name)
        return None if rows is None or state is None or rows.state != state else rows

    def points(self, cell_dir: CellDir, state: str | None) -> tuple[MetricPoint, ...] | None:
        """Return the metrics of a cell, or None if its logs must be parsed."""
        rows = self.rows(cell_dir, state)
        table = None if rows is None else self._table(rows.path)
        return None if rows is None or table is None else table.points(rows.start, rows.stop)

    def keep(self, cell_dir: CellDir, state: str | None, points: Sequence[MetricPoint]) -> None:
        """Keep the metrics of an ended cell that were parsed without a fault."""
        if state is None or cell_dir.path.name in self._new:
            return
        self._new[cell_dir.path.name] = state, points
        self._num_new += sum(len(point.values) for point in points)
        if self._num_new >= VALUES_A_FILE:
            self.flush()

    def flush(self) -> None:
        """Write the new rows if there are many. If the folder is not writable, a later run parses
        the logs again."""
        self._tables.clear()
        if self._num_new < WORTH_KEEPING:
            return
        new, self._new, self._num_new = self._new, {}, 0
        table, rows = as_table(new)
        if len(set(table.column_names)) < table.num_columns:
            return  # a metric has the name of one of ours
        try:
            self._path.mkdir(exist_ok=True)
            self._note(self._write(table, rows))
            self._merge()
        except (OSError, RunFolderError):
            return

    def _write(self, table: Any, rows: Mapping[str, tuple[str, int, int]]) -> Path:
        """Write one complete file. Its name is unique to this process and moment."""
        import io

        import pyarrow.parquet as pq

        content = io.BytesIO()
        pq.write_table(
            table.replace_schema_metadata({_KEY: json.dumps(rows).encode()}),
            content,
            compression="zstd",
            use_dictionary=["cell"],
        )
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.parquet"
        write_bytes(self._path / name, content.getvalue())
        return self._path / name

    def _note(self, path: Path) -> None:
        """Read which rows a file has. Ignore a file that cannot be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):
            for name, (state, start, stop) in json.loads(
                pq.read_schema(path).metadata[_KEY]
            ).items():
                self._rows[name] = KeptRows(path, state, start, stop)

    def _table(self, path: Path) -> "_Table | None":
        import pyarrow as pa

        if path not in self._tables:
            try:
                self._tables[path] = _Table(path)
            except (OSError, pa.ArrowException):
                return None
        return self._tables[path]

    def _merge(self) -> None:
        """Write one file in place of many small ones, without rows that no longer count. A file
        that another process has since removed costs no more than parsing some cells again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        small: list[Path] = []
        for path in self._files():
            try:
                known = pq.read_metadata(path)
            except (OSError, pa.ArrowException):
                path.unlink(missing_ok=True)  # nothing in it counts
                continue
            if known.num_rows * known.num_columns < VALUES_A_FILE // 2:
                small.append(path)
        if len(small) <= MAX_SMALL_FILES:
            return
        parts, rows, start = [], {}, 0
        tables = {path: pq.ParquetFile(path).read() for path in small}
        for name, at in self._rows.items():
            if at.path in tables:
                parts.append(tables[at.path].slice(at.start, at.stop - at.start))
                rows[name] = (at.state, start, start + at.stop - at.start)
                start += at.stop - at.start
        merged = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
        self._note(self._write(merged, rows))
        # Only after the merged file is complete: a kill in between leaves rows twice, which does no
        # harm.
        for path in small:
            path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        with suppress(OSError):
            yield from sorted(self._path.glob("*.parquet"), key=lambda p: p.stat().st_mtime_ns)


class _Table:
    """One file in memory."""

    def __init__(self, path: Path):
        import numpy as np
        import pyarrow.parquet as pq

        table = pq.ParquetFile(path).read()  # `read_table` would import pandas
        self._names = [name for name in table.column_names if name not in _OF_A_ROW]
        self._steps: list[int] = table.column("step").to_pylist()
        self._times: list[float] = table.column("time").to_pylist()
        self._values = np.empty((len(table), len(self._names)))
        self._is_there = np.ones(self._values.shape, dtype=bool)
        for place, name in enumerate(self._names):
            row = 0
            for chunk in table.column(name).chunks:
                own = slice(row, row + len(chunk))
                # Arrow keeps a column as two buffers: a bit for each value (1: present), and the
                # values. The offset of a chunk counts values.
                present, numbers = chunk.buffers()
                if chunk.null_count:
                    bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")
                    self._is_there[own, place] = bits[chunk.offset : chunk.offset + len(chunk)]
                self._values[own, place] = np.frombuffer(
                    numbers, count=len(chunk), offset=8 * chunk.offset
                )
                row = own.stop

    def points(self, start: int, stop: int) -> tuple[MetricPoint, ...]:
        """Return the points of some rows. Rows with the same metric names share one tuple of
        names."""
        import numpy as np

        is_there = self._is_there[start:stop]
        patterns, kinds = np.unique(np.packbits(is_there, axis=1), axis=0, return_inverse=True)
        packed: list[PointValues | None] = [None] * (stop - start)
        for kind in range(len(patterns)):
            indices = np.flatnonzero(kinds.ravel() == kind)
            has = is_there[indices[0]]
            places = places_of(tuple(itertools.compress(self._names, has)))
            raw = self._values[start + indices][:, has].tobytes()
            width = 8 * len(places)
            for number, index in enumerate(indices.tolist()):
                part = raw[number * width : (number + 1) * width]
                packed[index] = PointValues.packed(places, part)
        return tuple(
            MetricPoint(step, when, values)
            for step, when, values in zip(
                self._steps[start:stop], self._times[start:stop], packed, strict=True
            )
            if values is not None
        )


def as_table(
    new: Mapping[str, tuple[str, Sequence[MetricPoint]]],
) -> tuple[Any, dict[str, tuple[str, int, int]]]:
    """Return a table of the metrics of cells, and cell -> state, first and last row."""
    import numpy as np
    import pyarrow as pa

    sets = dict.fromkeys(tuple(p.values) for _, points in new.values() for p in points)
    names = list(dict.fromkeys(itertools.chain.from_iterable(sets)))
    places = {name: place for place, name in enumerate(names)}
    num_rows = sum(len(points) for _, points in new.values())
    values, is_there = np.zeros((num_rows, len(names))), np.zeros((num_rows, len(names)), bool)
    rows: dict[str, tuple[str, int, int]] = {}
    cells = np.empty(num_rows, dtype=np.int32)
    steps, times, row = np.empty(num_rows, dtype=np.int64), np.empty(num_rows), 0
    for number, (name, (state, points)) in enumerate(new.items()):
        rows[name] = state, row, row + len(points)
        cells[row : row + len(points)] = number
        for stretch in stretches(points):
            columns = [places[metric] for metric in stretch.names]
            own = slice(row, row + len(stretch.points))
            values[own, columns] = stretch.values
            is_there[own, columns] = True
            steps[own] = [point.step for point in stretch.points]
            times[own] = [point.time for point in stretch.points]
            row = own.stop
    arrays = [
        pa.DictionaryArray.from_arrays(_arrow(cells), _arrow_texts(list(new))),
        _arrow(steps),
        _arrow(times),
        *(_arrow(values[:, place], is_there[:, place]) for place in places.values()),
    ]
    return pa.Table.from_arrays(arrays, [*_OF_A_ROW, *places]), rows


def _arrow(column: "NDArray[Any]", is_there: "NDArray[Any] | None" = None) -> Any:
    """Return an array of Arrow, with nulls where nothing is there.

    `pyarrow.array` would import pandas, which takes longer than writing a file.
    """
    import numpy as np
    import pyarrow as pa

    present = None
    if is_there is not None and not is_there.all():
        present = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    numbers = pa.py_buffer(np.ascontiguousarray(column))
    kind = pa.from_numpy_dtype(column.dtype)
    return pa.Array.from_buffers(kind, len(column), [present, numbers])


def _arrow_texts(texts: Sequence[str]) -> Any:
    """Return an array of Arrow of these texts, without pandas."""
    import numpy as np
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    # Arrow's form of texts: where each one ends in one run of bytes.
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )


def _entries(folder: str) -> tuple[list[tuple[str, int, int]], int]:
    """Return path, size and time of change (ns) of every file below a folder; the latest time."""
    entries: list[tuple[str, int, int]] = []
    latest = 0
    waiting = [folder]
    with suppress(OSError):
        while waiting:
            with os.scandir(waiting.pop()) as inside:
                for entry in inside:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    stat = entry.stat()
                    relative = entry.path[len(folder) :]
                    entries.append((relative, stat.st_size, stat.st_mtime_ns))
                    latest = max(latest, stat.st_mtime_ns)
        return entries, latest
    return [], 0


@lru_cache(maxsize=64)
def parsing_code(backend: str) -> str:
    """Return a digest of the code that parses a backend's logs."""
    hashed = hashlib.sha256()
    package = Path(inspect.getfile(type(plugins.load(backend)))).parent
    for path in (*sorted(package.glob("*.py")), Path(points_code.__file__)):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]


@lru_cache(maxsize=4)
def columns_in(folder: Path) -> Columns:
    """Return the columns of a folder, whose files are listed once by this process."""
    return Columns(RunFolder(folder))
