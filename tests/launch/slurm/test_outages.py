"""A scheduler or an accounting that is away or crashes: cells go on, and states are reported."""

import signal
import threading
import time

import pytest

from orchestrator.launch.slurm import lease, poll
from tests.launch.kit import many
from tests.launch.slurm.conftest import Site


def test_a_controller_that_restarts_is_waited_for(site: Site) -> None:
    """And with a node drained, which finishes what it has."""
    first, second = many(2, "slow", 100)
    site.start(first)
    site.until_units(first, 3)
    node = site.cluster.run("squeue", "-h", "-o", "%N").strip()
    site.cluster.drain(node)
    site.cluster.stop_daemon("slurmctld")
    back = threading.Timer(3, site.cluster.start_daemon, ["slurmctld"])
    back.start()
    assert site.submit(second).cells == (second,)
    back.join()
    seen = site.wait(first, second)
    assert {s.state for s in seen.values()} == {"succeeded"}
    assert [len(site.attempts(c)) for c in (first, second)] == [1, 1]
    hosts = [found.host for c in (first, second) if (found := seen[c.id].exit)]
    assert hosts[0] == node
    assert hosts[1] != node, "a drained node takes nothing more"


def test_without_accounting_the_queue_tells_the_state(site: Site) -> None:
    """And without a controller it is unknown; what is cancelled ends by itself all the same."""
    from orchestrator.runs.operations import cancel

    cell, quick = many(1, "slow", 2400)[0], many(2)[1]
    site.cluster.stop_daemon("slurmdbd")
    site.start(cell, quick)
    site.until(cell, "running", 60)
    site.until(quick, "succeeded", 60)
    site.cluster.stop_daemon("slurmctld")
    before = sorted(p for p in site.folder.path.rglob("*") if "attempts" not in p.parts)
    seen = site.look(cell)
    assert seen.state == "unknown"
    assert "does not answer" in seen.fault
    after = sorted(p for p in site.folder.path.rglob("*") if "attempts" not in p.parts)
    assert before == after, "looking writes nothing"
    (done,) = cancel([cell], site.folder)
    assert "did not take the cancellation" in done.note
    deadline, count = time.monotonic() + 60, -1
    while site.units(cell) != count:  # it works on until it sees that it is cancelled
        assert time.monotonic() < deadline
        count = site.units(cell)
        time.sleep(lease.HEARTBEAT_SECONDS)
    assert site.look(cell).state == "cancelled"
    assert count < 2400


@pytest.mark.parametrize("accounted", [False, True])
def test_a_controller_that_crashes_loses_nothing(
    accounted: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what it had not saved when it was killed: a job submitted a moment before.

    accounted: accounting has heard of its start, and lists it as RUNNING for ever.
    """
    # The new job may have the lost one's number: the node must have forgotten that by then.
    monkeypatch.setattr(poll, "_YOUNG_SECONDS", 40.0)
    first, second = many(2, "slow", 120)
    site.start(first)
    site.until_units(first, 3)
    saved = site.cluster.base / "state" / "job_state"
    before = saved.read_bytes()
    site.submit(second)
    if accounted:
        listed = ("sacct", "-X", "-n", "-o", "State", "-j", site.job(second))
        site.wait_for(lambda: "RUNNING" in site.cluster.run(*listed), second, 120)
    site.cluster.stop_daemon("slurmctld", signal.SIGKILL)
    for path in saved.parent.glob("job_state*"):
        path.write_bytes(before)
    site.cluster.start_daemon("slurmctld")
    seen = site.wait(first, second)
    assert {s.state for s in seen.values()} == {"succeeded"}, seen
    assert [site.units(c) for c in (first, second)] == [120, 120], "nothing was done twice"
