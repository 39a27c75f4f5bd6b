"""Translate a cell to a launch of the embedded trainer, and read such a launch back."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from backends.micro.manifest import MANIFEST
from backends.micro.version import VERSION
from orchestrator.errors import Fault, SpecError
from orchestrator.library.needs import faults_of
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Settings

ENTRY = "backends.micro.train:run"
CELL = "cell.json"


def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a field that cannot be trained."""
    carried = MANIFEST.carry(cell.settings)
    version = cell.settings.backend.version or VERSION
    return LaunchPlan(
        cell_id=cell.id,
        backend="micro",
        version=version,
        argv=(
            sys.executable,
            "-m",
            "backends.micro",
            str(paths.plan_dir / CELL),
            "--plan-dir",
            str(paths.plan_dir),
            "--attempt-dir",
            str(paths.attempt_dir),
            "--checkpoints-dir",
            str(paths.checkpoints_dir),
        ),
        files={CELL: cell.model_dump_json() + "\n"},
        ledger=MANIFEST.ledger(
            cell.settings, MANIFEST.assignments(cell.settings, carried), carried
        ),
        entry=ENTRY,
    )


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. `files`: name -> text. Raise SpecError with every fault."""
    name = next((Path(arg).name for arg in argv if arg.endswith(".json")), CELL)
    if name not in files:
        raise SpecError(name, [Fault(f"the launch names {name}, which is not among its files")])
    return parse_cell(name, files[name]).settings


def parse_cell(name: str, text: str) -> Cell:
    """Return the cell in the text of file `name`. Raise SpecError with every fault."""
    try:
        return Cell.model_validate_json(text)
    except ValidationError as error:
        raise SpecError(name, faults_of(error)) from error
