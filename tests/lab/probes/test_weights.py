"""Corrections of the engine's mismatch: each weight differs from all others and has a name."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from lab.probes.protocol import LEAST, MOST, probes_of
from lab.probes.surroundings import (
    CLOSE,
    HYPOTHESES,
    INVERSE,
    KINDS,
    OF_A_KIND,
    RATIOS,
    corrected,
    rollouts,
)
from orchestrator.evidence import stored
from orchestrator.evidence.cells import releases
from orchestrator.kl.estimators import EngineWeight, weights
from orchestrator.settings import EngineCorrection

RELEASES = releases()
BOUNDS = ((LEAST, MOST), (None, MOST), (None, 0.2), (None, 0.05))
OF_RATIOS = (*RATIOS, "each ratio of the response")


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_no_two_weights_are_the_same_where_one_rejects(bounds: Any) -> None:
    """What keeps every token of the rollouts is weight 1, whatever it looks at."""
    of = rollouts()
    tables = {each: each.on(of.proximal, of.engine, of.mask, bounds) for each in HYPOTHESES}
    kept = {each: (table != 0).sum() for each, table in tables.items()}
    some = [each for each in HYPOTHESES if 0 < kept[each] < of.tokens or not each.gate]
    if bounds[1] != MOST:  # a bound of a divergence, and of no ratio
        some = [
            each
            for each in some
            if not each.truncated and each.gate.removeprefix(INVERSE) not in OF_RATIOS
        ]
    assert len(some) > 20
    for one, other in combinations(some, 2):
        assert np.abs(tables[one] - tables[other]).max() > 1e3 * CLOSE, (one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_a_cell_is_among_them(kind: Any) -> None:
    (hypothesis,) = [each for each, name in OF_A_KIND.items() if name == kind]
    of = rollouts()
    closed = weights(EngineWeight(kind, LEAST, MOST), of.proximal - of.engine, of.mask) * of.mask
    table = hypothesis.on(of.proximal, of.engine, of.mask, (LEAST, MOST))
    assert np.abs(table - closed).max() < 1e-12


@pytest.mark.parametrize("release", RELEASES, ids="@".join)
def test_every_release_has_its_corrections_measured(release: tuple[str, str]) -> None:
    """A cell that a backend accepts has the meaning of its settings; own words are all known."""
    measured = stored.read(*release)
    assert measured is not None
    own = probes_of(release[0]).corrections(release[1])
    assert [each["name"] for each in measured["corrections"]["own"]] == list(own)
    for each in measured["corrections"]["own"]:
        assert "error" not in each
        assert "?" not in (each["policy"]["weight"], each["policy"]["of"])
        assert each.get("kl", {}).get("weight") != "?"
    cells = measured["corrections"]["cells"]
    assert [(c["kind"], c["least"]) for c in cells] == [(k, x) for k in KINDS for x in (0.0, LEAST)]
    for cell in cells:
        correction = EngineCorrection(kind=cell["kind"], least=cell["least"], most=MOST)
        wanted = corrected(*release, correction)
        assert cell.get("refused", wanted) == wanted, cell
        assert ("refused" in cell) == isinstance(wanted, str), cell
        assert "refused" in cell or cell["agrees"] is True, cell
