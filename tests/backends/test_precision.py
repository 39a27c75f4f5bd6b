"""Number formats of a cell: what a library is sent for them and refuses, and what its source says.

The sentences of the ledger are held to lines of the release's own source, in its environment.
"""

from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.kl.library_semantics import PLAIN, precision_of, relevant
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Precision
from tests.backends.specs import translated

PLACE = AttemptPaths(Path("plan"), Path("attempts/1"), Path("checkpoints"))
LIBRARIES = ("verl", "openrlhf", "skyrl", "prime_rl", "trl", "micro")
OWN = {
    "verl": ("bf16", "bf16", "bf16"),
    "openrlhf": ("bf16", "bf16", "bf16"),
    "skyrl": ("bf16", "bf16", "fp32"),
    "prime_rl": ("bf16", "model", "bf16"),
    "trl": ("bf16", "bf16", "fp32"),
    "micro": ("fp32", "fp32", "fp32"),
}
"""What a release does with a cell that sets no format: training, rollout, checkpoint."""
RELEASES = [(name, version) for name in LIBRARIES for version in plugins.load(name).versions]


def cell_in(library: str, version: str, **formats: str) -> Cell:
    """A cell of the shipped specs that the release trains, with some formats set."""
    for cell in translated(library):
        ref = cell.settings.backend.model_copy(update={"version": version})
        for lag in (cell.settings.max_staleness_steps, 0, 1):
            settings = cell.settings.model_copy(update={"backend": ref, "max_staleness_steps": lag})
            try:
                plugins.load(library).translate(
                    cell.model_copy(update={"settings": settings}), PLACE
                )
            except UnsupportedSetting:
                continue
            settings = settings.model_copy(update={"precision": Precision(**formats)})  # type: ignore[arg-type]  # words
            return cell.model_copy(update={"settings": settings, "id": fingerprint(settings)})
    raise AssertionError(f"{library} {version} trains no cell of the shipped specs")


def plan_of(cell: Cell) -> LaunchPlan:
    return plugins.load(cell.settings.backend.name).translate(cell, PLACE)


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_a_cell_without_formats_is_what_it_was_and_the_ledger_says_which_it_gets(
    library: str, version: str
) -> None:
    cell = cell_in(library, version)
    dialect = plugins.load(library).semantics(version).dialect
    assert dialect.precision == OWN[library] == precision_of(cell.settings, dialect)
    assert relevant(dialect, cell.settings).precision == PLAIN.precision, "no id depends on it"
    plan = plan_of(cell)
    back = plugins.load(library).parse(plan.argv, plan.files)
    assert back.precision == Precision()
    entries = {each.field: each for each in plan.ledger}
    for name, own in zip(Precision.model_fields, OWN[library], strict=True):
        said = entries[f"precision.{name}"].note
        assert ("auto" if own == "model" else own) in said, said


def test_a_format_of_the_cell_stands_before_the_dialects() -> None:
    cell = cell_in("verl", "0.9.1", training="fp32")
    dialect = plugins.load("verl").semantics(None).dialect
    assert precision_of(cell.settings, dialect) == ("fp32", "bf16", "bf16")


def test_the_embedded_trainer_refuses_a_dialect_in_another_format() -> None:
    with pytest.raises(UnsupportedSetting, match="fp32 only"):
        plugins.load("micro").semantics("1+precision=bf16/bf16/bf16")
