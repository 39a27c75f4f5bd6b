"""Cells for verl: those of the shipped specs, and any other."""

from pathlib import Path
from typing import Any

from backends.verl import BACKEND
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Cadence, Resources, Settings
from tests.backends.specs import declared

PLACE = AttemptPaths(
    Path("/runs/e/cells/c/plan"), Path("/runs/e/attempts/1"), Path("/runs/e/checkpoints")
)
NASTY = AttemptPaths(*(Path(f'/runs/it\'s "q" = [a, b]\\ ü ${{x}}/{n}') for n in ("p", "a", "c")))


def base() -> dict[str, Any]:
    """Settings of the paper's on-policy runs, as plain data."""
    cell = next(c for c in declared("comedy_full") if "onpolicy" in c.studies)
    return cell.settings.model_dump()


def cell(
    changes: dict[str, Any] | None = None, *, nodes: int = 2, gpus: int = 4, **cadence: int
) -> Cell:
    """The paper's on-policy cell with some fields (dotted) changed."""
    plain = base()
    for field, value in (changes or {}).items():
        *sections, leaf = field.split(".")
        section = plain
        for name in sections:
            section = section[name]
        section[leaf] = value
    settings = Settings.model_validate(plain)
    return Cell(
        id=fingerprint(settings),
        slug="x",
        studies=("s",),
        axes={},
        settings=settings,
        resources=Resources(num_nodes=nodes, gpus_per_node=gpus),
        cadence=Cadence(**cadence),
    )


def translated(cell: Cell, place: AttemptPaths = PLACE) -> LaunchPlan | None:
    try:
        return BACKEND.translate(cell, place)
    except UnsupportedSetting:
        return None


def overrides(plan: LaunchPlan) -> list[str]:
    assert plan.argv[:3] == ("python", "-m", "verl.trainer.main_ppo")
    return list(plan.argv[3:])
