"""A full disk, two people at once, jobs that never start, budgets: nothing lost, nothing twice."""

from pathlib import Path

import pytest

from orchestrator import records
from orchestrator.launch.slurm import poll
from orchestrator.rundir import RunFolder
from orchestrator.runs.operations import cancel, retry
from orchestrator.site.probe import probe_node
from tests.cluster import wait_for
from tests.launch.kit import many
from tests.launch.slurm.conftest import Site
from tests.launch.test_disk import remount
from tests.launch.test_disk import small as small


def test_a_full_disk_is_a_class_of_its_own_and_loses_nothing(site: Site, small: Path) -> None:
    site.folder = RunFolder(small / "runs" / "test")
    cell = many(1, "fill")[0]
    site.start(cell)
    seen = site.wait(cell)[cell.id]
    assert seen.state == "failed", seen
    assert seen.exit.failure == "disk", seen.exit
    assert "no room left to write to" in seen.exit.message
    assert "orch retry" in seen.exit.message
    assert len(site.attempts(cell)) == 1, "it waits for a person"
    remount(small, "size=60m")
    assert all(done.done for done in retry([cell], site.folder))
    site.start(cell)
    assert site.wait(cell)[cell.id].state == "succeeded", site.words(cell)
    assert site.units(cell) == cell.settings.num_train_steps


def test_a_node_that_does_not_see_the_runs_folder_is_told_and_avoided(site: Site) -> None:
    """Also where it sees it on every look of the login node: only a job can find out."""
    (cell,) = many(1)
    site.folder.open()
    if not site.cluster.hide("a100-0", site.folder.path):
        pytest.skip("mounting needs root")
    site.set(retries={"node": 1})
    site.start(cell)
    seen = site.until(cell, "failed", 60)
    assert (seen.exit.failure, seen.exit.host) == ("node", "a100-0"), seen
    assert "a100-0 does not see the runs folder (site.runs_dir)" in seen.exit.message
    node, shared = probe_node(records.Site(runs_dir=str(site.folder.path)))
    assert node.found.startswith("a100-0: ")
    assert shared.found == "this node does not see it: it lies on the login node's own disk"
    assert site.wait(cell)[cell.id].state == "succeeded", "another node sees it"
    assert len(site.attempts(cell)) == 2
    first = site.attempts(cell)[0].read_exit()
    assert first.host == "a100-0", "a try that never began counts"


def test_jobs_that_would_wait_for_ever_say_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "PATIENCE_SECONDS", -1.0)
    cells = many(3)
    site.set(partition="short", time_limit_hours=2)
    site.submit(*cells)
    site.until(cells[0], "pending", 30)

    def told() -> list[str]:  # SLURM first names the partition alone
        site.look(cells[0])
        said = poll.stuck_jobs(site.folder, site.options.model_dump())
        return said if "time limit" in str(said) else []

    (sentence,) = wait_for(told, 30)
    assert sentence.startswith("3 jobs wait: the time limit '2.0' is longer than the partition")
    assert "change site.options.time_limit_hours" in sentence
    cancel(cells, site.folder)
    assert poll.stuck_jobs(site.folder, {}) == []


@pytest.mark.parametrize("name", ["exit.json", "order.json"])
def test_a_broken_file_costs_its_own_cell_only(site: Site, name: str) -> None:
    """Its cell is named and waits for a person; the others train. `retry` lets it run again."""
    broken, failed, other = many(3)
    site.start(broken, failed)
    site.wait(broken, failed)
    for cell in (broken, failed):
        (site.attempts(cell)[-1].path / "exit.json").unlink(missing_ok=name != "exit.json")
    file = site.attempts(broken)[-1].path / name
    file.write_text('{"state": "succ', encoding="utf-8")
    ended = site.wait(broken, other)
    assert ended[other.id].state == "succeeded", site.words(other)
    assert ended[broken.id].state == "unknown"
    assert str(file) in ended[broken.id].fault
    (done,) = retry([broken], site.folder)
    assert done.done, done
    assert site.wait(broken)[broken.id].state == "succeeded", site.words(broken)


@pytest.mark.smoke
def test_a_persons_variables_do_not_replace_what_the_site_sets(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch takes SBATCH_PARTITION over a line of the script."""
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    site.set(partition="gpu")
    (cell,) = many(1)
    (job,) = site.start(cell).jobs
    shown = site.cluster.run("scontrol", "show", "job", job)
    assert "Partition=gpu" in shown
    assert "TimeLimit=00:12:00" in shown
    assert site.wait(cell)[cell.id].state == "succeeded", site.words(cell)
