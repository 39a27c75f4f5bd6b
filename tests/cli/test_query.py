"""orch report --query: SQL over an experiment's results gives the rows of `orch.results`."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import orch

from orchestrator.analysis.results import ResultsDatabase
from orchestrator.errors import EnvironmentFault, SelectionError
from orchestrator.runs.experiment import Experiment, open_experiment

pytestmark = pytest.mark.slow

SMOKE = "experiments/smoke.yaml"


@pytest.fixture
def smoke(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The finished run."""
    monkeypatch.chdir(workspace)
    return open_experiment(SMOKE)


def rows(frame: Any) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row)) for row in frame.itertuples(index=False))


def test_a_wrong_query_is_told_what_there_is(
    smoke: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = ResultsDatabase(smoke)
    for wrong in ("SELECT betta FROM finals", "SELEC", "FROM nowhere"):
        with pytest.raises(SelectionError, match="finals: cell, study") as refused:
            database.query(wrong)
        assert "Traceback" not in str(refused.value)
    with pytest.raises(SelectionError, match="the query is empty"):
        database.query(" -- nothing")
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(EnvironmentFault, match=r"duckdb.*query"):
        ResultsDatabase(smoke)


def test_the_command(workspace: Path) -> None:
    listed = orch(workspace, "report", SMOKE, "--tables")
    assert "advantage" in listed.stdout or "staleness" in listed.stdout
    asked = "SELECT kl, count(*) AS n FROM finals WHERE metric = 'train/reward_mean' GROUP BY kl"
    done = orch(workspace, "report", SMOKE, "--query", asked, "--json")
    assert "leaked" not in done.stderr
    answer = json.loads(done.stdout)
    assert answer
    assert all(row["n"] > 0 for row in answer)
    text = orch(workspace, "report", SMOKE, "--query", asked, "--format", "csv").stdout.splitlines()
    assert text[0] == "kl,n"
    assert len(text) == len(answer) + 1
    refused = orch(workspace, "report", SMOKE, "--query", "SELECT nothing FROM finals")
    assert refused.returncode == 1
    assert "DuckDB refuses the query" in refused.stderr
