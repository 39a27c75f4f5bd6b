"""What is said of one seed of a cell holds for all, and what does not is said of each."""

from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.launch.check import translations
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.spec import load
from orchestrator.spec.expand import expand

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("seeds", ["[0,1,2]", "[0,1,3000000000,5000000000]"])
def test_cells_are_refused_as_each_by_itself(tmp_path: Path, seeds: str) -> None:
    """verl takes seeds below 2^31, the embedded trainer any."""
    cells = expand(load(EXPERIMENTS / "cross_library.yaml", [f"seeds={seeds}"]))
    folder = RunFolder(tmp_path)
    together = {
        cell.id: str(answer) if isinstance(answer, UnsupportedSetting) else ""
        for cell, answer in translations(cells, folder)
    }
    assert list(together) == [cell.id for cell in cells]
    assert together == {cell.id: refusal(cell, folder) for cell in cells}
    by_verl = {cell.settings.seed for cell in cells if "verl" in together[cell.id]}
    assert bool(by_verl) == ("5" in seeds)


def refusal(cell: Cell, folder: RunFolder) -> str:
    backend = plugins.load(cell.settings.backend.name)
    try:
        backend.translate(cell, folder.cell(cell).first_paths())
    except UnsupportedSetting as error:
        return str(error)
    return ""
