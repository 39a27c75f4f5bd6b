"""Metrics of a train step, held tightly: names are shared between steps, a number is 8 bytes."""

from array import array
from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from orchestrator.records import MetricPoint

_NAMES: dict[tuple[str, ...], dict[str, int]] = {}
"""Names in order -> each name's place; one entry for each set of names that any step has."""


class PointValues(Mapping[str, float]):
    """Name -> value, in the order given."""

    __slots__ = ("numbers", "places")

    def __init__(self, values: Mapping[str, float]):
        """Raises TypeError for what is no number."""
        names = tuple(values)
        self.places = _NAMES.setdefault(names, {name: i for i, name in enumerate(names)})
        self.numbers = array("d", values.values())

    def __getitem__(self, name: str) -> float:
        return self.numbers[self.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        return f"Values({dict(self.items())})"

    def values(self) -> ValuesView[float]:
        """In the order given."""
        return _Numbers(self)

    def items(self) -> ItemsView[str, float]:
        """In the order given."""
        return _Items(self)


class _Numbers(ValuesView[float]):
    _mapping: PointValues

    def __iter__(self) -> Iterator[float]:
        return iter(self._mapping.numbers)


class _Items(ItemsView[str, float]):
    _mapping: PointValues

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self._mapping.places, self._mapping.numbers, strict=True)


def tight(point: MetricPoint) -> MetricPoint:
    """The same point, held in a fraction of the memory; as it is where a value is no number."""
    try:
        return MetricPoint(point.step, point.time, PointValues(point.values))
    except (TypeError, OverflowError):
        return point
