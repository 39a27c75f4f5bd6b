"""What pictures are put together from: panels, lines with bands, dots with intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.marks import Look

WIDTH = 10.0
"""Inches."""
Data = Mapping[str, Any]


def plain(text: str) -> str:
    """Text matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")


def panels(
    count: int, columns: int = 3, height: float = 2.4, *, rows_of: int = 0, side: float = 0.45
) -> Any:
    """A figure with `count` axes. `rows_of`: the rows of a dot plot; `side`: inches left of each
    axes, for its labels. Places are fixed: finding them by drawing costs more than drawing."""
    from matplotlib.figure import Figure as Canvas

    columns = min(columns, count)
    rows = -(-count // columns)
    tall = max(height, 0.35 + 0.19 * rows_of)
    width = WIDTH if columns > 1 else 0.72 * WIDTH
    top, bottom, right, between = 0.75, 0.62, 0.1 if rows_of else 1.5, 0.72
    total = top + bottom + rows * tall + (rows - 1) * between
    made = Canvas(figsize=(width, total))
    each = (width - right - columns * side) / columns
    axes = []
    for i in range(count):
        row, column = divmod(i, columns)
        left = side + column * (each + side)
        low = bottom + (rows - 1 - row) * (tall + between)
        axes.append(made.add_axes((left / width, low / total, each / width, tall / total)))
    return made, axes


def numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def line(
    at: Any, data: Data, curve: Data, look: Look, name: str, *, band: bool = True
) -> None:  # fmt: skip
    x = data["grids"][curve["g"]]
    mean = numbers(curve.get("m") or next(iter(curve["s"].values())))
    if "l" in curve and band:
        at.fill_between(x, numbers(curve["l"]), numbers(curve["h"]), color=look.color, alpha=0.14,
                        lw=0)  # fmt: skip
    at.plot(x, mean, look.dash, color=look.color, lw=1.5, label=plain(name))


def errors(rows: Sequence[Sequence[float | None]]) -> list[list[float]]:
    below = [0.0 if r[1] is None or r[0] is None else max(0.0, r[0] - r[1]) for r in rows]
    above = [0.0 if r[2] is None or r[0] is None else max(0.0, r[2] - r[0]) for r in rows]
    return [below, above]


def dots(
    at: Any, rows: Sequence[tuple[str, Any, Look, Any]],
    before: Sequence[tuple[str, float | None]] = (),
) -> None:  # fmt: skip
    """The first row on top; models before training below them, as stars."""
    names = [*(name for name, *_ in rows), *(name for name, _ in before)]
    for i, (_, found, look, wide) in enumerate(rows):
        place = len(names) - 1 - i
        if found is None or found[0] is None:
            continue
        if wide and wide[0] is not None:
            at.plot(wide, [place, place], color=look.color, lw=6, alpha=0.25, solid_capstyle="butt")
        at.errorbar([found[0]], [place], xerr=errors([found]), fmt=look.mark, color=look.color,
                    ms=5, capsize=2, lw=1.2)  # fmt: skip
    for i, (_, value) in enumerate(before):
        if value is not None:
            at.plot([value], [len(before) - 1 - i], "*", color="#5b626b", ms=8)
            at.axvline(value, color="#5b626b", lw=0.8, ls=":")
    at.set_yticks(range(len(names)), [plain(name) for name in reversed(names)])
    at.set_ylim(-0.7, len(names) - 0.3)


def share_y(axes: Sequence[Any]) -> None:
    low, high = min(a.get_ylim()[0] for a in axes), max(a.get_ylim()[1] for a in axes)
    for at in axes:
        at.set_ylim(low, high)


def legend(made: Any, axes: Sequence[Any]) -> None:
    known: dict[str, Any] = {}
    for at in axes:
        for handle, name in zip(*at.get_legend_handles_labels(), strict=True):
            known.setdefault(name, handle)
    if known:
        made.legend(known.values(), known.keys(), loc="center right", fontsize=7, frameon=False)
