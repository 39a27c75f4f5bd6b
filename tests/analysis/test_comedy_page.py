"""docs/comedy.md tells a measured run of today's claims."""

import json

from docs.tools import comedy
from orchestrator.spec.load import load


def test_the_page_tells_the_measured_run_of_the_specs_claims() -> None:
    claims = json.loads(comedy.DATA.read_text(encoding="utf-8"))
    text = comedy.PAGE.read_text(encoding="utf-8")
    assert comedy.page(text, claims) == text
    assert comedy.counts(claims) in text
    declared = load(comedy.SPEC).claims
    words = {name: " ".join(claim.split()) for name, claim in declared.items()}
    assert {each["name"]: each["claim"] for each in claims} == words
    decided = sum(each["verdict"] in comedy.DECIDED for each in claims)
    assert 2 * decided >= len(claims), "the shipped seeds decide half of the shipped claims"
