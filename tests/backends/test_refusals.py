"""The advice of a refusal, over all backends, estimators, placements and regimes.

The table of verdicts says what a term does. No refusal may lead to noise, nor to a push away from
the reference policy. And the number formats of a cell: what a library is sent, and refuses.
"""

import re
from collections.abc import Iterator

import pytest

from orchestrator import estimators, plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.estimators import names
from orchestrator.kl.library_semantics import PLAIN, precision_of, relevant
from orchestrator.kl.table import Case, best, judged
from orchestrator.records import Cell
from orchestrator.settings import Placement, Precision
from tests import golden

PLACEMENTS: tuple[Placement, ...] = ("reward", "loss", "reward_and_loss")
NEW = "k4"


@pytest.fixture
def new_estimator() -> Iterator[str]:
    """An estimator of another package that no library has."""
    k3 = estimators.entry("k3")
    estimators.register(
        estimators.EstimatorEntry(
            name=NEW, formula="", value=k3.value, slope=k3.slope, is_reverse_kl=False, source=""
        )
    )
    yield NEW
    estimators.unregister(NEW)


def cells_of(library: str) -> list[Cell]:
    """One cell of each release, regime and advantage."""
    kinds = {
        (
            each.settings.backend.version,
            each.settings.advantage.estimator,
            each.settings.batch.num_minibatches > 1,
            each.settings.max_staleness_steps > 0,
        ): each
        for each in golden.cells(library)
    }
    return list(kinds.values())


def advised(text: str, estimator: str, placement: Placement) -> Iterator[tuple[str, Placement]]:
    """Yield the terms to which an advice leads, where `estimator` in `placement` was refused."""
    for match in re.finditer(r"kl\.estimator=([\w+]+)", text):
        yield match[1], placement
    for match in re.finditer(r"kl\.placement=(reward|loss)(?: with ([\w+]+)| has ([\w+]+))?", text):
        place: Placement = "reward" if match[1] == "reward" else "loss"
        yield match[2] or match[3] or estimator, place


@pytest.mark.parametrize("library", golden.RELEASES)
def test_no_refusal_advises_noise_or_a_push_away(library: str, new_estimator: str) -> None:
    backend, refusals, wrong = plugins.load(library), 0, set()
    for cell in cells_of(library):
        batch, lag = cell.settings.batch, cell.settings.max_staleness_steps
        case = Case(on_policy=batch.num_minibatches == 1 and lag == 0)
        for placement in PLACEMENTS:
            for estimator in names():
                term = {"placement": placement, "estimator": estimator, "beta": 0.1}
                kl = cell.settings.kl.model_copy(update=term)
                settings = cell.settings.model_copy(update={"kl": kl})
                try:
                    backend.translate(cell.model_copy(update={"settings": settings}), golden.PLACE)
                except UnsupportedSetting as refused:
                    refusals += refused.field.startswith("kl.")
                    for name, where in advised(refused.advice, estimator, placement):
                        row = None if name == "none" else judged(name, where, case).row
                        if row is None or max(row.near.bias, row.far.bias) >= 1:
                            asked = f"{estimator} in {placement}"
                            wrong.add(f"{asked} -> {name} in {where}: {refused.advice}")
    assert refusals
    assert not wrong, "\n".join(sorted(wrong))


def test_what_pushes_away_far_from_the_reference_alone_is_no_advice() -> None:
    """k2 in the reward is 0.99 from the true gradient near the reference policy, and 1.26 far."""
    assert best([("k2", "reward")], Case()) is None


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
