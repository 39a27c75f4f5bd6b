"""Curves of a run, held tightly: a number is 8 bytes, and curves over the same steps share them."""

from array import array
from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any

from orchestrator.types import MetricPoint


class Series(Mapping[int, float]):
    """Train step -> value, in the order of steps."""

    __slots__ = ("numbers", "steps")

    def __init__(self, steps: "array[int]", numbers: "array[float]"):
        """`steps` rise; `numbers` are as many."""
        self.steps, self.numbers = steps, numbers

    @classmethod
    def of(cls, points: Mapping[int, float]) -> "Series":
        """The same points."""
        steps = sorted(points)
        return cls(array("q", steps), array("d", (points[step] for step in steps)))

    def at(self, steps: Sequence[int]) -> "array[float]":
        """The values at some of its steps, given in order."""
        import numpy as np

        if len(steps) == len(self.steps):
            return self.numbers
        places = np.searchsorted(np.frombuffer(self.steps, dtype=np.int64), steps)
        return array("d", np.frombuffer(self.numbers)[places].tobytes())

    def __getitem__(self, step: int) -> float:
        at = bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            raise KeyError(step)
        return self.numbers[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Series({dict(self.items())})"

    def values(self) -> ValuesView[float]:
        """In the order of steps."""
        return _Values(self)

    def items(self) -> ItemsView[int, float]:
        """In the order of steps."""
        return _Items(self)


class _Values(ValuesView[float]):
    _mapping: Series

    def __iter__(self) -> Iterator[float]:
        return iter(self._mapping.numbers)


class _Items(ItemsView[int, float]):
    _mapping: Series

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._mapping.steps, self._mapping.numbers, strict=True)


def series_of(points: Iterable[MetricPoint]) -> dict[str, Series]:
    """Name -> its curve. `points` by rising step, as a record has them, each step once."""
    import numpy as np

    groups: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}
    for point in points:  # those with the same names are one table [points, names]
        names = tuple(point.values)
        if names not in groups:
            groups[names] = array("q"), array("d")
        steps, table = groups[names]
        steps.append(point.step)
        table.extend(point.values.values())
    parts: dict[str, list[tuple[array[int], Any]]] = {}
    for names, (steps, table) in groups.items():
        columns = np.frombuffer(table).reshape(-1, len(names)).T if names else ()
        for name, column in zip(names, columns, strict=True):
            parts.setdefault(name, []).append((steps, column))
    shared: dict[bytes, array[int]] = {}
    return {name: _joined(found, shared) for name, found in parts.items()}


def _joined(parts: Sequence[tuple["array[int]", Any]], shared: dict[bytes, "array[int]"]) -> Series:
    import numpy as np

    if len(parts) == 1:
        steps, column = parts[0]
        return Series(steps, array("d", column.tobytes()))
    every = np.concatenate([np.frombuffer(steps, dtype=np.int64) for steps, _ in parts])
    order = np.argsort(every, kind="stable")
    raw = every[order].tobytes()
    steps = shared.setdefault(raw, array("q", raw))
    return Series(steps, array("d", np.concatenate([c for _, c in parts])[order].tobytes()))
