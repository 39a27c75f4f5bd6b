"""Which numbers of seeds decide a claim, before anything has run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.analysis.compare import compare
from orchestrator.analysis.power import ClaimPower, power_lines, power_of_claims
from orchestrator.analysis.stats import (
    PooledEffect,
    WeightedMean,
    level_of_look,
    variance_prior,
)
from orchestrator.runs.experiment import open_experiment
from orchestrator.spec.claims import SHARES, parse

SPECS = Path(__file__).parents[2] / "experiments"
HIGHER = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"
MORE = "unstable[kl=k1.loss] > unstable[kl=k1.reward]"


def power(synthetic: Any, claims: dict[str, str], seeds: int) -> dict[str, ClaimPower]:
    terms = dict.fromkeys(("k1.loss", "k1.reward", "k3.loss"), [0.5] * seeds)
    cells = [record.cell for record in synthetic.grid(terms).records]
    parsed = {name: parse(text) for name, text in claims.items()}
    return {one.name: one for one in power_of_claims(parsed, {}, cells)}


def test_the_shipped_seeds_decide_the_shipped_claims() -> None:
    experiment = open_experiment(SPECS / "comedy_full.yaml")
    claims = {name: parse(text) for name, text in experiment.spec.claims.items()}
    found = power_of_claims(claims, experiment.spec.families, experiment.cells)
    undecided = {one.name for one in found if "NOT DECIDED" in str(one)}
    assert undecided == {"k1_loss_does_what_none_does", "both_matches_k1_reward"}
    three = [cell for cell in experiment.cells if cell.settings.seed < 3]
    few = power_of_claims(claims, experiment.spec.families, three)
    shares = {name for name, claim in claims.items() if claim.left.metric in SHARES}
    assert shares <= {one.name for one in few if "NOT DECIDED BY 3" in str(one)}
    assert "planned: 3" in power_lines(few)[0]


@pytest.mark.parametrize("text", [HIGHER, MORE])
def test_a_larger_effect_needs_fewer_seeds_and_a_larger_family_more(
    synthetic: Any, text: str
) -> None:
    alone = power(synthetic, {"a": text}, 3)["a"].seeds
    among = power(synthetic, dict.fromkeys("abcdefgh", text), 3)["a"].seeds
    for seeds in (alone, among):
        needed = [n or 1000 for n in seeds.values()]
        assert needed == sorted(needed, reverse=True)
    assert (among["0.2"] or 1000) > (alone["0.2"] or 1000)


def test_the_seeds_of_a_share_decide_it_where_all_runs_of_one_side_fall(synthetic: Any) -> None:
    needed = power(synthetic, {"c": MORE}, 3)["c"].seeds["all"]
    assert needed == 3

    def verdict(seeds: int) -> str:
        done = synthetic.grid({"k1.reward": [0.8] * seeds})
        for seed in range(seeds):
            done += synthetic.run("k1.loss", seed=seed, outcome=synthetic.collapsed)
        return compare(synthetic.spec({"c": MORE}), done.records, done.scores).claims[0].verdict

    assert verdict(needed) == "holds"
    assert verdict(needed - 1) == "too few runs"


def test_what_no_seeds_decide_and_what_is_not_compared(synthetic: Any) -> None:
    claims = {
        "below": "unstable[kl=k1.loss] < 0.1",
        "same": f"{HIGHER.replace('>', '~')} +- 0.001",
        "kl": "eval/kl_reverse[kl=k1.loss] > eval/kl_reverse[kl=k1.reward]",
        "works": "works >= 1",
        "absent": HIGHER.replace("k3.loss", "k2.loss"),
    }
    found = power(synthetic, claims, 3)
    assert found["below"].seeds == {"0.1": 52, "0.2": None, "0.3": None}, "none of 52"
    assert found["same"].seeds == {"0": None}
    assert "its spread is not known" in str(found["kl"])
    assert "any number of seeds" in str(found["works"])
    assert "no run has kl=k2.loss" in str(found["absent"])


def test_the_seeds_of_a_mean_decide_it_about_as_often_as_it_says(synthetic: Any) -> None:
    """In grids of 61 configurations with spreads as measured, for one claim and one of fifteen."""
    rng = np.random.default_rng(5)
    for family in (1, 15):
        names = [f"c{i}" for i in range(family)]
        seeds = power(synthetic, dict.fromkeys(names, HIGHER), 3)["c0"].seeds["0.1"]
        assert seeds is not None
        held = 0
        for _ in range(60):
            deviations = 0.0325 * np.sqrt(2.6 / rng.chisquare(2.6, 61))
            drawn = rng.standard_normal((61, seeds)) * deviations.clip(max=0.4)[:, None]
            drawn[0] += 0.1
            prior = variance_prior((row.var(ddof=1), seeds) for row in drawn)
            sides = zip((1, -1), drawn, strict=False)
            means = [WeightedMean(w, x.mean(), seeds, x.var(ddof=1)) for w, x in sides]
            p = 2 * min(PooledEffect(means, prior).tails(0.0))
            held += p < level_of_look([seeds]) / family
        assert held >= 0.8 * 60 - 3 * 3.1
