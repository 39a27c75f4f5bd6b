"""orch explain --libraries: rows from translation and evidence; as a table and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SelectionError
from orchestrator.evidence.cells import releases, term, terms
from orchestrator.evidence.matrix import row, short
from orchestrator.evidence.stored import objective_text
from tests.command_line import ROOT, orch
from tests.lab.commands import lab


def test_releases_can_be_named() -> None:
    assert releases(["verl@0.8.0", "verl"]) == [("verl", "0.8.0"), ("verl", "0.9.1")]
    assert {library for library, _ in releases()} == {
        "openrlhf",
        "prime_rl",
        "skyrl",
        "trl",
        "verl",
    }
    with pytest.raises(SelectionError, match="no library 'micro' to measure"):
        releases(["micro"])


@pytest.mark.parametrize(
    ("release", "estimator", "placement", "status", "objective"),
    [
        (("verl", "0.9.1"), "k1", "reward", "exact", "sequence-level reverse KL"),
        (("verl", "0.9.1"), "k3", "loss", "approximated", "token-level forward KL"),
        (("verl", "0.9.1"), "rho_k3", "loss", "extension", "token-level reverse KL"),
        (("openrlhf", "0.11.2"), "abs", "loss", "refused", "refused"),
    ],
)
def test_a_row_is_what_the_backend_makes_and_what_was_measured(
    release: tuple[str, str], estimator: Any, placement: Any, status: str, objective: str
) -> None:
    found = row(*release, term(estimator, placement))
    assert found.status == status
    assert objective_text(found.on_policy) == objective
    if status == "refused":
        assert "openrlhf cannot run kl.estimator=abs" in found.reason
        assert short(found, off_policy=False) == "-"
    else:
        assert found.notes
        assert found.on_policy is not None
        assert found.on_policy["agrees"] is True


def test_json_has_the_reason_or_the_evidence_of_each_entry() -> None:
    done = orch(ROOT, "explain", "--libraries", "--json", "--library", "skyrl@0.4.0")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["rows"]) == len(list(terms()))
    for each in told["rows"]:
        assert bool(each["reason"]) == (each["status"] == "refused")
        assert each["status"] == "refused" or each["on_policy"]["gradient"]
    evidence = told["evidence"]["skyrl@0.4.0"]
    assert "backends/skyrl_train/utils/ppo_utils.py:compute_approx_kl" in evidence["sources"]


def test_the_table_marks_what_is_not_plain() -> None:
    done = orch(
        ROOT, "explain", "--libraries", "--library", "verl@0.9.1", "--library", "openrlhf@0.11.2"
    )
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert rows["rho_k3.loss"].endswith("token reverse KL ~")
    assert "token reverse KL +" in rows["rho_k3.loss"]
    assert rows["k1.both"].rstrip().endswith("-")
    assert "!" not in done.stdout.partition("\n\n")[0]
    off = orch(ROOT, "explain", "--libraries", "--library", "verl@0.9.1", "--off-policy")
    assert "surrogate" in off.stdout.splitlines()[1]


def test_measuring_says_what_it_lacks(tmp_path: Path) -> None:
    """And leaves the evidence alone."""
    none = tmp_path / "none"
    for library, sentence in (
        ("verl@0.9.1", "orch env create verl@0.9.1 --contract"),
        ("prime_rl@0.5.0", "point ORCH_PRIME_RL_CHECKOUT to a git repository"),
    ):
        done = lab(ROOT, "measure", library, "--environments", none)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
    both = lab(ROOT, "measure", "verl", "--source", tmp_path)
    assert both.returncode == 2
    assert "--source is the source of one release" in both.stderr
    empty = lab(ROOT, "measure", "verl@0.9.1", "--source", tmp_path)
    assert empty.returncode == 1
    assert "cannot be asked" in empty.stderr
