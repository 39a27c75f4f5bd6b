"""The page in docs/ and the findings on it: made from the evidence, and able to change with it."""

import copy
from pathlib import Path
from typing import Any

import pytest

from docs.tools.kl_in_libraries import findings, page
from orchestrator.evidence import stored
from orchestrator.evidence.cells import releases
from orchestrator.lab.probes import read_only_releases

DOCS = Path(__file__).parents[2] / "docs" / "kl_in_libraries.md"
VERL = [("verl", "0.9.1")]


def test_the_page_is_up_to_date() -> None:
    made = page(releases(), read_only_releases.chosen(()))
    again = "python -m docs.tools.kl_in_libraries > docs/kl_in_libraries.md"
    assert DOCS.read_text(encoding="utf-8") == made, again


def test_every_release_is_on_the_page() -> None:
    text = DOCS.read_text(encoding="utf-8")
    summary = text[text.index("## In one table") : text.index("## What was found")]
    for library, version in releases():
        (row,) = [
            line
            for line in summary.splitlines()
            if line.startswith(f"| **{library}**") and version in line.split("|")[1]
        ]
        assert row.count("|") == summary.splitlines()[2].count("|")


def test_tables_have_as_many_cells_in_every_row() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    tables: list[list[int]] = []
    for line in rows:
        width = line.replace("\\|", "").count("|")
        if "---" not in line and tables and tables[-1][0] == width:
            tables[-1].append(width)
        elif "---" in line:
            assert tables[-1][-1] == width, line
        else:
            tables.append([width])
    assert all(len(set(widths)) == 1 for widths in tables)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The evidence on verl 0.9.1, to be changed; the repository's stays."""
    found = copy.deepcopy(stored.read("verl", "0.9.1"))
    monkeypatch.setattr(stored, "read", lambda *_: found)
    return found


def test_findings_follow_the_evidence(changed: Any) -> None:
    before = findings(VERL)
    changed["loss"]["token_mean"]["kl"] = "sequence_mean"
    changed["silent"]["loss"] = {"estimator": "k3", "beta": 0.5}
    added = [line for line in findings(VERL) if line not in before]
    assert len(added) == 2
    assert "says nothing about KL trains with k3 in the loss, β = 0.5" in added[0]
    assert "asked for `token_mean`" in added[1]


def test_a_disagreement_is_told_on_the_page(changed: Any) -> None:
    cell = next(c for c in changed["cells"] if "objective" in c and c["on_policy"])
    assert " !" not in page(VERL).partition("## ...")[0].partition("refused (`orch")[0]
    cell |= {"agrees": False, "objective": "zero", "terms": []}
    assert "nothing: zero-mean noise !" in page(VERL)
    assert any(
        "measured otherwise than `orch explain` says: `k1.reward`" in f for f in findings(VERL)
    )
