"""Before a launch: every cell that its backend cannot express is told, at once."""

from collections.abc import Sequence

from orchestrator import registry
from orchestrator.errors import OrchError
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.types import Cell


def expressible(cells: Sequence[Cell], folder: RunFolder) -> set[str]:
    """Modules of the cells' entries. Raises OrchError naming each cell that cannot be launched."""
    modules: set[str] = set()
    refused: dict[str, list[str]] = {}
    for cell in cells:
        cell_dir = folder.cell(cell)
        place = cell_dir.place(AttemptDir(cell_dir.path / "attempts" / "1", 1))
        try:
            plan = registry.load(cell.settings.backend.name).translate(cell, place)
        except OrchError as error:
            refused.setdefault(str(error), []).append(cell.slug)
        else:
            modules.add((plan.entry or "").partition(":")[0])
    if refused:
        count = sum(map(len, refused.values()))
        listed = "\n".join(
            f"  {told} ({len(slugs)} cells: {slugs[0]}{', ...' if slugs[1:] else ''})"
            for told, slugs in refused.items()
        )
        raise OrchError(f"{count} cells cannot be launched, so nothing was started\n{listed}")
    return modules - {""}
