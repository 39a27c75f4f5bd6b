"""Corrections of the engine's mismatch: each weight differs from all others and has a name."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.probes.protocol import Inquiry, probes_of
from lab.probes.surroundings import (
    CLOSE,
    HYPOTHESES,
    INVERSE,
    KINDS,
    LEAST,
    MOST,
    OF_A_KIND,
    RATIOS,
    AskedWeight,
    Hypothesis,
    ask_about_weights,
    measured_weights,
    rollouts,
)
from orchestrator.cli.explain import command
from orchestrator.evidence import stored
from orchestrator.evidence.cells import BETA, releases
from orchestrator.evidence.matrix import correction_rows
from orchestrator.kl.estimators import EngineWeight, slope, weights

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


def _answered(policy: Any, of_kl: Any, moved: Any) -> dict[Any, Any]:
    """Return the answers of a library whose tokens have these weights."""
    of = rollouts()
    unit = BETA * slope("k2", of.proximal - of.reference)
    gradients = {"weights": -policy, "weights, moved": -moved, "weights, KL": unit * of_kl}
    return {
        ("weights", "x", name): {"gradient": (table * of.mask / of.tokens).tolist()}
        for name, table in gradients.items()
    }


@pytest.mark.parametrize("hypothesis", HYPOTHESES[:20], ids=str)
@pytest.mark.parametrize("whose", ["proximal", "policy"])
def test_a_weight_is_recognised_from_gradients(hypothesis: Hypothesis, whose: str) -> None:
    of, bounds = rollouts(), (LEAST, MOST)
    policy = hypothesis.on(of.proximal, of.engine, of.mask, bounds)
    if whose == "policy":
        moved = hypothesis.on(of.moved, of.engine, of.mask, bounds)
    else:
        moved = policy * np.exp(of.moved - of.proximal)
    launch = AskedWeight("x", bounds, "k2", launch=0)
    (entry,) = measured_weights([launch], _answered(policy, of.mask, moved))["own"]
    assert entry["policy"]["weight"] == hypothesis.words(bounds)
    if hypothesis != Hypothesis("the token's ratio"):  # its product with the loss's ratio is one
        assert entry["policy"]["of"] == whose
    assert entry["policy"]["divisor"] == "all tokens"
    assert entry["kl"]["weight"] == "1"


def test_a_smaller_divisor_and_a_weighted_kl_are_seen_and_another_weight_is_not_named() -> None:
    of, bounds = rollouts(), (LEAST, MOST)
    gate = Hypothesis("1", gate="the response's ratio")
    table = gate.on(of.proximal, of.engine, of.mask, bounds)
    table = table * of.tokens / (table != 0).sum()
    launch = AskedWeight("x", bounds, "k2", launch=0)
    (entry,) = measured_weights([launch], _answered(table, table, table))["own"]
    assert entry["policy"]["divisor"] == "the tokens whose weight is not 0"
    assert entry["kl"]["weight"] == entry["policy"]["weight"] == gate.words(bounds)
    odd = np.sqrt(np.exp(of.proximal - of.engine))
    (entry,) = measured_weights([launch], _answered(odd, of.mask, odd))["own"]
    assert entry["policy"]["weight"] == "?"


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
    cells = {(c["kind"], c["least"]): c for c in measured["corrections"]["cells"]}
    wanted = [each for each in ask_about_weights(Inquiry(*release)) if each.cell]
    assert {kind for kind, _ in cells} == set(KINDS)
    for launch in wanted:
        assert launch.cell is not None
        cell = cells[launch.cell.kind, launch.cell.least]
        assert cell.get("refused", "") == launch.refused, launch.name
        assert bool(launch.refused) == (launch.launch is None)
        assert "refused" in cell or cell["agrees"] is True, cell


def test_a_cell_that_means_something_else_does_not_agree() -> None:
    from orchestrator.settings import EngineCorrection

    of = rollouts()
    correction = EngineCorrection(kind="mis_token", least=LEAST, most=MOST)
    launch = AskedWeight("x", (LEAST, MOST), "k2", correction, 0)
    log_ratio = of.proximal - of.engine
    closed = weights(EngineWeight("mis_token", LEAST, MOST), log_ratio, of.mask)
    ratio = np.exp(of.moved - of.proximal)
    for table, of_kl, agrees in (
        (closed, of.mask, True),
        (weights(EngineWeight("tis_token", 0.0, MOST), log_ratio, of.mask), of.mask, False),
        (closed, closed, False),
    ):
        answers = _answered(table, of_kl, table * ratio)
        (cell,) = measured_weights([launch], answers)["cells"]
        assert cell["agrees"] is agrees


def test_the_command_prints_them() -> None:
    done = CliRunner().invoke(command, ["--libraries", "--corrections", "--library", "verl@0.9.1"])
    assert done.exit_code == 0, done.output
    assert "rollout_rs=token_k1" in done.output
    assert "the inverse of the token's ratio" in done.output
    rows = correction_rows([("trl", "1.16.0")])
    (silent,) = [row for row in rows if "says nothing of it" in row[1]]
    assert silent[2] == "`mis_sequence`"
