"""What a node is asked, and what it answers when it cannot look."""

import json
import subprocess
import sys
from pathlib import Path

from orchestrator.settings import Resources
from orchestrator.site.node_facts import MARK
from orchestrator.site.probe import _one_of_each
from tests.launch.kit import make_cell


def test_of_cells_that_need_the_same_the_one_with_most_gpus_is_looked_at() -> None:
    large = make_cell().but(resources=Resources(num_nodes=1, gpus_per_node=8))
    small = make_cell().but(resources=Resources(num_nodes=1, gpus_per_node=4))
    for cells in ((large, small), (small, large)):
        assert list(_one_of_each(cells)) == [large]


def test_checks_that_fail_on_a_node_are_a_finding_and_no_fault_of_the_scheduler(
    tmp_path: Path,
) -> None:
    (tmp_path / "t").write_text("t")
    request = {"folder": str(tmp_path), "token": "t", "site": {}, "cells": [{"id": 1}]}
    words = json.dumps({**request, "evaluation": None, "data_dir": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator.site.node_facts", words],
        capture_output=True,
        text=True,
        check=True,
    )
    (finding,) = json.loads(done.stdout.rpartition(MARK)[2])["findings"]
    assert finding[:2] == ["checks of a node", "broken"]
    assert finding[2].startswith("ValidationError: ")
    assert "Traceback" in done.stderr
