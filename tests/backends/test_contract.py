"""What every backend owes. Backends are found by the registry; a new one is tested by itself."""

import time
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.library.protocol import Backend
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.spec.rehearse import rehearse
from tests.backends.specs import every


def cells_for(backend: Backend) -> list[Cell]:
    """Cells of the shipped specs that ask for this backend, as declared or rehearsed."""
    declared = every()
    own = [cell for cell in declared if cell.settings.backend.name == backend.name]
    if any(backend.rehearse(cell) is not None for cell in declared[:1]):
        own += rehearse(declared, backend.name)
    return own


@pytest.fixture(params=plugins.names(), scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return plugins.load(request.param)


@pytest.fixture(scope="module")
def cells(backend: Backend) -> list[Cell]:
    found = cells_for(backend)
    assert found, f"no shipped spec asks for {backend.name}"
    return found


def translated(backend: Backend, cell: Cell, root: Path) -> LaunchPlan | None:
    place = AttemptPaths(root / "plan", root / "attempts" / "1", root / "checkpoints")
    try:
        return backend.translate(cell, place)
    except UnsupportedSetting:
        return None


def test_every_shipped_cell_translates_or_is_refused_with_a_field(
    backend: Backend, cells: list[Cell], tmp_path: Path
) -> None:
    plans = [translated(backend, cell, tmp_path) for cell in cells]
    assert any(plans), f"{backend.name} refuses every shipped cell"


def test_the_ledger_accounts_for_every_setting(
    backend: Backend, cells: list[Cell], tmp_path: Path
) -> None:
    for cell in cells:
        plan = translated(backend, cell, tmp_path)
        if plan is None:
            continue
        leaves = {name for name, _ in flatten(cell.settings.model_dump())}
        accounted = {entry.field for entry in plan.ledger}
        missing = {
            leaf
            for leaf in leaves
            if leaf not in accounted and not any(leaf.startswith(f"{f}.") for f in accounted)
        }
        assert not missing, f"{backend.name} drops {missing} of {cell.slug}"
        for entry in plan.ledger:
            assert entry.status == "exact" or entry.note, f"{entry.field} says nothing of why"


def test_translation_is_pure(backend: Backend, cells: list[Cell], tmp_path: Path) -> None:
    for cell in cells[:20]:
        assert translated(backend, cell, tmp_path) == translated(backend, cell, tmp_path)
    assert not list(tmp_path.iterdir()), "translate wrote something"


def test_what_was_translated_reads_back_as_the_same_cell(
    backend: Backend, cells: list[Cell], tmp_path: Path
) -> None:
    for cell in cells:
        plan = translated(backend, cell, tmp_path)
        if plan is not None:
            back = backend.parse(plan.argv, plan.files)
            assert fingerprint(back) == cell.id, cell.slug


def test_translation_is_cheap(backend: Backend, cells: list[Cell], tmp_path: Path) -> None:
    """A thousand cells must plan in a second; a hundredfold slip is what this would catch."""
    started = time.process_time()
    for cell in cells:
        translated(backend, cell, tmp_path)
    assert (time.process_time() - started) / len(cells) < 0.005
