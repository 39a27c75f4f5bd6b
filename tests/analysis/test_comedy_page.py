"""docs/comedy.md tells a measured run of today's claims."""

import json
from collections import Counter
from pathlib import Path

from orchestrator.analysis.phases import STATES, PhaseField, PhaseMap
from orchestrator.spec.load import load

ROOT = Path(__file__).parents[2]
WORDS = {
    "holds": "holds",
    "contradicted": "contrary",
    "no effect": "no effect above 0.05",
    "seen": "open",
    "too few runs": "open",
}


def test_the_page_tells_the_measured_run_of_the_specs_claims() -> None:
    """docs/comedy.json has the claims of `orch compare --json`, with the numbers of each reason."""
    claims = json.loads((ROOT / "docs" / "comedy.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "comedy.md").read_text(encoding="utf-8")
    spec = load(ROOT / "experiments" / "comedy_full.yaml")
    words = {name: " ".join(claim.split()) for name, claim in spec.claims.items()}
    assert {each["name"]: each["claim"] for each in claims} == words
    says = {each.claim: each.says for each in spec.published.statements}
    decided = [each for each in claims if WORDS[each["verdict"]] != "open"]
    for each in decided:
        row = f"| {says[each['name']]} | {WORDS[each['verdict']]} | {each['result']} |"
        assert row in text
    assert all(f"`{each['name']}`" in text for each in claims if each not in decided)
    counts = Counter(WORDS[each["verdict"]] for each in claims)
    counted = ", ".join(f"{word} {n}" for word, n in counts.items())
    assert f"Of {len(claims)} claims: {counted}." in text
    assert 2 * len(decided) >= len(claims), "the shipped seeds decide half of the shipped claims"


def test_the_page_tells_up_to_which_rate_each_term_trains() -> None:
    """docs/learning_rates.json: stable, unstable, collapsed, cannot tell of each field's seeds."""
    text = (ROOT / "docs" / "comedy.md").read_text(encoding="utf-8")
    stored = json.loads((ROOT / "docs" / "learning_rates.json").read_text(encoding="utf-8"))
    assert len(stored) == 4
    for each in stored:
        rates = tuple(map(str, each["learning_rate"]))
        betas = tuple(each["beta"])
        fields = {
            (beta, rate): PhaseField(dict(zip(STATES, counts, strict=True)), sum(counts), {})
            for beta, row in zip(betas, each["counts"], strict=True)
            for rate, counts in zip(rates, row, strict=True)
        }
        one = PhaseMap("learning_rate", "", each["kl"], "rate", rates, betas, fields)
        without, *others = map(one.trains_up_to, betas)
        estimator, _, place = each["kl"].partition(".")
        assert f"| no KL | {without} | | |" in text
        assert f"| {estimator} in the {place} | {' | '.join(others)} |" in text
