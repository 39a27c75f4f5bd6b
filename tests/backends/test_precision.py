"""Number formats of a cell: what a library is sent for them, and what its ledger says."""

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.kl.library_semantics import PLAIN, precision_of, relevant
from orchestrator.settings import Precision
from tests import golden

OWN = {
    "verl": ("bf16", "bf16", "bf16"),
    "openrlhf": ("bf16", "bf16", "bf16"),
    "skyrl": ("bf16", "bf16", "fp32"),
    "prime_rl": ("bf16", "model", "bf16"),
    "trl": ("bf16", "bf16", "fp32"),
}
"""What a release does with a cell that sets no format: training, rollout, checkpoint."""
RELEASES = [(name, version) for name in OWN for version in plugins.load(name).versions]


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_a_cell_without_formats_is_what_it_was_and_the_ledger_says_which_it_gets(
    library: str, version: str
) -> None:
    lag = {"max_staleness_steps": 1} if library == "prime_rl" else {}
    changes = {"kl": {"estimator": "none"}, "precision": {}, **lag}
    cell, backend = golden.cell_of(library, version, changes), plugins.load(library)
    dialect = backend.semantics(version).dialect
    assert dialect.precision == OWN[library] == precision_of(cell.settings, dialect)
    assert relevant(dialect, cell.settings).precision == PLAIN.precision, "no id depends on it"
    plan = backend.translate(cell, golden.PLACE)
    assert backend.parse(plan.argv, plan.files).precision == Precision()
    entries = {each.field: each for each in plan.ledger}
    for name, own in zip(Precision.model_fields, OWN[library], strict=True):
        said = entries[f"precision.{name}"].note
        assert ("auto" if own == "model" else own) in said, said


def test_a_format_of_the_cell_stands_before_the_dialects() -> None:
    cell = golden.cell_of("verl", "0.9.1", {"precision": {"training": "fp32"}})
    dialect = plugins.load("verl").semantics(None).dialect
    assert precision_of(cell.settings, dialect) == ("fp32", "bf16", "bf16")


def test_the_embedded_trainer_has_one_format_and_refuses_a_dialect_in_another() -> None:
    assert plugins.load("micro").semantics(None).dialect.precision == ("fp32", "fp32", "fp32")
    with pytest.raises(UnsupportedSetting, match="fp32 only"):
        plugins.load("micro").semantics("1+precision=bf16/bf16/bf16")
