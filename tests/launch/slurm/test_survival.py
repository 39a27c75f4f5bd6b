"""What happens to cells when the cluster misbehaves: real jobs, real faults."""

import pytest

from orchestrator.launch.slurm import scheduler
from orchestrator.launch.slurm.submit import Sender
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import SlurmOptions
from tests.launch.kit import many, units
from tests.launch.slurm.conftest import Site

pytestmark = pytest.mark.long(140)


def test_cells_train_side_by_side_and_say_how_it_went(site: Site) -> None:
    good, bad, refused, fallen, full = (
        many(1)[0],
        many(2, "fail")[1],
        many(3, "config")[2],
        many(4, "collapse")[3],
        many(5, "memory")[4],
    )
    cells = [good, bad, refused, fallen, full]
    sent = site.start(*cells)
    assert len(sent.jobs) == 1
    seen = site.wait(*cells)
    assert seen[good.id].state == "succeeded"
    assert site.units(good) == good.settings.num_train_steps
    assert (seen[bad.id].state, len(site.attempts(bad))) == ("failed", 2), "errors go again once"
    assert (seen[refused.id].state, len(site.attempts(refused))) == ("failed", 1)
    assert seen[refused.id].exit.failure == "config"
    assert (seen[full.id].exit.failure, len(site.attempts(full))) == ("out_of_memory", 1)
    outcome = seen[fallen.id].exit
    assert (outcome.state, outcome.outcome.kind) == ("succeeded", "collapsed")
    assert site.submit(*cells).cells == (), "running again submits nothing"


def test_a_preempted_cell_is_requeued_and_goes_on(site: Site) -> None:
    cell = many(1, "slow", 100)[0]
    site.set(gres="gpu:a100:4", exclude="a100-[1-3]")
    cell = cell.model_copy(
        update={"resources": cell.resources.model_copy(update={"gpus_per_node": 4})}
    )
    site.start(cell)
    site.until_units(cell, 5)
    urgent = ["-p", "urgent", "--gres=gpu:a100:4", "-w", "a100-0", "--wrap=sleep 2"]
    site.cluster.run("sbatch", "-o", "/dev/null", *urgent)
    seen = site.wait(cell)[cell.id]
    assert seen.state == "succeeded", site.words(cell)
    first, second = site.attempts(cell)
    ends = [attempt.read_exit() for attempt in (first, second)]
    assert [end and end.state for end in ends] == ["preempted", "succeeded"]
    assert site.units(cell) == 100, "no unit of work was done twice or left out"
    orders = {a.read_order()["submission"] for a in (first, second)}
    assert len(orders) == 1, "the same job went on"
    assert ends[1].gpu_hours > 0


def test_a_node_that_fails_is_not_the_end_of_a_cell_and_its_zombie_is_fenced(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = many(1, "slow", 300)[0]
    site.start(cell)
    site.until_units(cell, 5)
    node = site.cluster.run("squeue", "-h", "-o", "%N").strip()
    site.cluster.fail(node)
    site.cluster.resume(node)

    def begun_again() -> bool:
        assert site.look(cell).state in ("running", "pending", "preempted"), site.look(cell)
        return site.begun(cell) == 2

    site.wait_for(begun_again, cell)
    assert site.wait(cell)[cell.id].state == "succeeded"
    workers = (site.folder.cell(cell).checkpoints / "units").read_text().splitlines()
    assert units(site.folder, cell) == list(range(1, 301)), "no two attempts wrote at a time"
    assert len({line.split()[1] for line in workers}) == 2


def test_a_killed_worker_is_lost_and_goes_again(site: Site) -> None:
    cell, hopeless = many(1, "die")[0], many(2, "die-always", 30)[1]
    site.set(retries={"lost": 1})
    site.start(cell, hopeless)
    seen = site.wait(cell, hopeless)
    assert seen[cell.id].state == "succeeded", site.words(cell)
    assert len(site.attempts(cell)) == 2
    ended = seen[hopeless.id].exit
    assert (seen[hopeless.id].state, ended.failure) == ("failed", "lost")
    assert len(site.attempts(hopeless)) == 2


def test_what_takes_too_long_or_too_much_is_ended(site: Site) -> None:
    """Side by side: the time limit, with one requeue; memory, which SLURM itself watches where
    there are no cgroups; and silence, of one that listens and of one that is deaf."""
    limited, greedy = many(1, "slow", 4000)[0], many(2, "greedy")[1]
    hanging, deaf = many(3, "hang")[2], many(4, "deaf")[3]
    plain = site.options
    site.set(time_limit_hours=1 / 60, signal_seconds=58, max_requeues=1)
    site.start(limited)
    site.options = plain
    site.start(greedy)
    site.set(hung_after_minutes=0.05, retries={"hung": 0})
    site.start(hanging, deaf)
    for cell, failure in ((hanging, "hung"), (deaf, "hung"), (greedy, "out_of_memory")):
        ended = site.until(cell, "failed", 120).exit
        assert ended.failure == failure, ended
    assert site.start(greedy).cells == (), "it would happen again"
    site.until(limited, "timed_out", 180)
    ends = [attempt.read_exit() for attempt in site.attempts(limited)]
    assert [end and end.state for end in ends] == ["timed_out"] * 2
    lines = (site.folder.cell(limited).checkpoints / "units").read_text().splitlines()
    steps = units(site.folder, limited)
    assert steps == list(range(1, len(steps) + 1)), "it went on where it was"
    assert len({line.split()[1] for line in lines}) == 2, "both attempts worked"
    site.set(max_requeues=1)
    assert site.start(limited).cells == (), "it was too often"


def test_scancel_by_hand_is_a_cancellation(site: Site) -> None:
    """Of a job that runs, and of one that never started: SLURM keeps no record of that."""
    running, *waiting = many(4, "slow", 400)
    site.set(max_running=1)
    site.start(running, *waiting)
    site.cluster.run("scancel", site.job(waiting[1]))
    assert site.look(waiting[1]).state == "cancelled", "at the very next look"
    site.until_units(running, 3)
    site.cluster.run("scancel", site.job(running))
    site.until(running, "cancelled", 30)
    assert site.look(waiting[1]).state == "cancelled"
    assert site.start(running, waiting[1]).cells == (), "it waits for a person"


def test_a_cell_that_is_evaluated_has_two_jobs(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "queue", lambda _: {})
    assert Sender(folder, SlurmOptions(max_submit_jobs=5), print)._queue_room(True) == 2


def test_the_queue_takes_only_so_many(site: Site) -> None:
    cells = many(5, "slow", 40)
    site.set(max_submit_jobs=2, max_array_size=1, evaluate=False)
    sent = site.start(*cells)
    assert len(sent.cells) == 2
    assert len(sent.jobs) == 2
    assert len(sent.no_room) == 3
    seen = site.wait(*cells)
    assert {s.state for s in seen.values()} == {"succeeded"}
