"""Looks of series in pictures: Okabe and Ito's colours, with a mark and a dash of their own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

COLOURS = ("#0072b2", "#b87700", "#d55e00", "#b2568b", "#2f86b8", "#00835f")
RAMP = ("#14448f", "#7a2a9e", "#c2347a", "#e06a1a")
MARKS = ("o", "s", "D", "^", "P", "v")
DASHES = ("-", "--", ":", "-.")
USUAL = ("k1.reward", "k3.loss", "k1.loss", "k3.reward", "k1.both", "k3.both")
"""Configurations of the paper, so that each has one look in every picture."""
FONT: Any = {"font.size": 8, "axes.titlesize": 8.5, "axes.grid": True, "grid.alpha": 0.3,
        "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 3}  # fmt: skip


"""Type 3 fonts: type 42 would be cut down with fontTools, at three times the cost of a picture."""


class Look(NamedTuple):
    """How one series is drawn."""

    color: str
    mark: str
    dash: str


NONE = Look("#5b626b", "o", "-")


def looks(values: Sequence[str]) -> Callable[[str], Look]:
    """A look for each value of a list; what is named `none` is grey."""
    known = [v for v in dict.fromkeys(values) if v != "none"]
    order = list(dict.fromkeys([*USUAL, *known])) if set(known) & set(USUAL) else known

    def of(value: str) -> Look:
        if value == "none":
            return NONE
        i = order.index(value)
        return Look(COLOURS[i % 6], MARKS[i % 6], DASHES[i % 4])

    return of


def ramp(values: Sequence[float]) -> Callable[[float | None], Look]:
    """Looks of values with an order: one ramp of falling darkness. None is grey."""
    order = list(values)

    def of(value: Any) -> Look:
        if value is None:
            return NONE
        i = order.index(value)
        at = i / (len(order) - 1) * (len(RAMP) - 1) if len(order) > 1 else 0.0
        one, other = (_rgb(RAMP[min(int(at) + k, len(RAMP) - 1)]) for k in (0, 1))
        mixed = [round(a + (at - int(at)) * (b - a)) for a, b in zip(one, other, strict=True)]
        return Look("#" + "".join(f"{v:02x}" for v in mixed), MARKS[i % 6], DASHES[i % 4])

    return of


def _rgb(text: str) -> list[int]:
    return [int(text[i : i + 2], 16) for i in (1, 3, 5)]
