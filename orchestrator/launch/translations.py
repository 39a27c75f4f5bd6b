"""Translate many cells to find those that cannot be launched: once for all seeds of a cell.

A launch uses the seed only as a number (`Backend.translate`). So if the smallest and the largest
seed can be translated, all seeds between them can. A launch that is started is always translated
for its own seed.
"""

from collections.abc import Iterator, Sequence

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RunFolder
from orchestrator.settings import without_seed


def translations(
    cells: Sequence[Cell], folder: RunFolder
) -> Iterator[tuple[Cell, LaunchPlan | OrchError]]:
    """Yield each cell, in order, with its launch, or with the reason why it has none.

    The launch may be that of another seed.
    """
    seeds: dict[tuple[int, ...], list[Cell]] = {}
    keys = [(*without_seed(c.settings), id(c.resources), id(c.cadence)) for c in cells]
    for key, cell in zip(keys, cells, strict=True):
        seeds.setdefault(key, []).append(cell)
    answers = {key: _common(same, folder) for key, same in seeds.items()}
    for key, cell in zip(keys, cells, strict=True):
        yield cell, answers[key] or _translated(cell, folder)


def _common(same: Sequence[Cell], folder: RunFolder) -> LaunchPlan | OrchError | None:
    """Return the result for all cells that differ only in their seed; None if each needs its
    own."""
    least = min(same, key=lambda cell: cell.settings.seed)
    most = max(same, key=lambda cell: cell.settings.seed)
    one = _translated(least, folder)
    other = one if least is most else _translated(most, folder)
    refused = [str(each) for each in (one, other) if isinstance(each, OrchError)]
    return one if not refused or refused == [refused[0]] * 2 else None


def _translated(cell: Cell, folder: RunFolder) -> LaunchPlan | OrchError:
    try:
        backend = plugins.load(cell.settings.backend.name)
        return backend.translate(cell, folder.cell(cell).first_paths())
    except OrchError as error:
        return error
