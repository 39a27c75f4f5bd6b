"""Published numbers beside ours."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.compare import compare
from orchestrator.records import Published, PublishedNumber
from orchestrator.spec import load

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
METRIC = "eval/in_domain/mean"


def spec(synthetic: Any, text: str, value: float) -> Any:
    number = PublishedNumber(name="n", claim=text, relative_improvement=value, where="§4.1")
    return synthetic.spec(published=Published(source="a paper", numbers=(number,)))


CLAIM = f"{METRIC}[kl=k1.reward] > {METRIC}[kl=k3.loss] at beta=0.1"


def test_what_did_not_run_says_so(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.6, 0.61]})
    (found,) = compare(spec(synthetic, CLAIM, 0.2), done.records, done.scores).published
    assert found.ours is None
    assert found.verdict == ""
    assert "k3.loss" in found.missing


def test_the_papers_four_numbers_are_the_shipped_ones() -> None:
    found = load(EXPERIMENTS / "comedy_full.yaml").published
    assert [n.relative_improvement for n in found.numbers] == [0.0621, 0.1906, 0.1594, 0.0365]
    assert "2512.21852" in found.source


def test_a_published_claim_that_cannot_be_read_is_told_with_its_line(tmp_path: Path) -> None:
    for folder in ("recipe", "model", "data", "site", "evaluation", "sampling"):
        (tmp_path / folder).symlink_to(EXPERIMENTS / folder)
    (tmp_path / "published").mkdir()
    text = (EXPERIMENTS / "published" / "comedy.yaml").read_text().replace("> eval", "!! eval", 1)
    (tmp_path / "published" / "comedy.yaml").write_text(text)
    (tmp_path / "x.yaml").write_text((EXPERIMENTS / "comedy_full.yaml").read_text())
    from orchestrator.errors import SpecError

    with pytest.raises(SpecError, match=r"a relation .*expected|expected a relation|relation"):
        load(tmp_path / "x.yaml")
