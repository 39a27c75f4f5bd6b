"""The paper's statements and tables; `replay` holds what a run of its grid says of them."""

import pytest

from orchestrator.analysis.compare import compare
from orchestrator.records import Record, Spec
from orchestrator.report.printed import printed_section
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.spec.spec_files import ROOT


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load(ROOT / "experiments" / "comedy_full.yaml", ["seeds=[0,1]", "site=slurm_a100"])


def test_every_statement_is_a_claim(spec: Spec) -> None:
    assert [each.claim for each in spec.published.statements] == list(spec.claims)
    assert "v1 of 26 December 2025" in spec.published.source


def test_table_2_is_what_the_releases_make_of_it(spec: Spec) -> None:
    records = [Record(cell, "planned") for cell in expand(spec)]
    found = printed_section(compare(spec, records, []), records, spec)
    terms, settings = found.tables
    assert [row[1] for row in terms.rows] == ["unbiased", "biased", "biased", "biased"]
    asked = {(row[0], row[1] == "none", row[2]): row[3] for row in settings.rows}
    assert asked["verl", True, "0.9.1, 0.8.0"] == "no KL"
    assert asked["verl", False, "0.9.1, 0.8.0"].startswith("k1.reward")
    assert asked["OpenRLHF", True, "0.11.2, 0.10.1.post2"] == "k1.reward, β 0.01"
    assert "did you mean '--algo.kl.estimator'" in asked["OpenRLHF", False, "0.11.2"]
    assert asked["OpenRLHF", False, "0.10.1.post2"].startswith("k1.reward")
    assert asked["SkyRL", True, "0.4.0, 0.3.0, 0.2.0"] == "k3.loss, β 0.001"
    assert asked["SkyRL", False, "0.4.0, 0.3.0, 0.2.0"].startswith("refused: SkyRL refuses")
