"""The embedded trainer as SLURM jobs: preempted and resumed, it gives what a quiet run gives."""

import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.local import launch
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import open_experiment
from orchestrator.settings import Cadence
from orchestrator.tracking import mirror
from orchestrator.tracking.store import connected, store_of
from tests.launch.slurm.conftest import ROOT, Site
from tests.launch.test_micro import numbers


def runs_of(client: Any, name: str) -> list[Any]:
    """Runs of cells, as MLflow has them."""
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id])
    return [run for run in runs if run.data.metrics.get("train/reward_mean") is not None]


@pytest.mark.slow
def test_preempted_and_resumed_it_is_bit_for_bit_the_undisturbed_run(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SLURM_CONF", site.cluster.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", site.cluster.env["PATH"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    asked = ["backend=micro", "site.kind=slurm", "+base.num_train_steps=1000"]
    spec = open_experiment(ROOT / "experiments" / "smoke.yaml", asked)
    # Evaluated after each train step, it trains long enough to be preempted.
    often = {"cadence": Cadence(checkpoint_every_steps=50, evaluate_every_steps=1)}
    cells = [cell.model_copy(update=often) for cell in spec.cells[:1]]
    undisturbed = RunFolder(tmp_path / "undisturbed")
    assert launch(cells, undisturbed).count("succeeded") == len(cells)

    site.set(memory_gib=1.0, exclude="a100-[1-3]")
    site.start(*cells)

    def steps() -> int:
        """Of the cell with the fewest; a cell that has not begun has no file."""
        files = list(site.folder.path.glob("cells/*/attempts/1/metrics.jsonl"))
        counts = [len(file.read_text().splitlines()) for file in files]
        return min(counts) if len(counts) == len(cells) else 0

    deadline = time.monotonic() + 90
    while steps() < 12:
        assert time.monotonic() < deadline, site.words(cells[0])
        time.sleep(0.05)
    site.cluster.run(
        "sbatch", "-o", "/dev/null", "-p", "urgent", "-w", "a100-0", "--exclusive", "--wrap=sleep 1"
    )
    while not all(site.attempts(cell)[0].exit.exists() for cell in cells):
        assert time.monotonic() < deadline, site.words(cells[0])
        time.sleep(0.1)
    mirror(collect(cells, site.folder), (), spec.spec, site.folder)
    seen = site.wait(*cells)
    assert {s.state for s in seen.values()} == {"succeeded"}, site.words(cells[0])
    ends = [[a.read_exit() for a in site.attempts(cell)] for cell in cells]
    assert any(len(e) == 2 and e[0] and e[0].state == "preempted" for e in ends), ends
    assert numbers(cells, site.folder) == numbers(cells, undisturbed)
    done = mirror(collect(cells, site.folder), (), spec.spec, site.folder)
    with connected(store_of(site.folder, None)) as client:
        of_cells = runs_of(client, done.experiment)
        assert len(of_cells) == len(cells), "a requeued cell has one run"
        wanted = list(range(1, cells[0].settings.num_train_steps + 1))
        for run in of_cells:
            history = client.get_metric_history(run.info.run_id, "train/reward_mean")
            assert sorted(point.step for point in history) == wanted
