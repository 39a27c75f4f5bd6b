"""What SLURM says, or does not say, is checked before it is believed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cluster.waiting import wait_for

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.slurm import poll, scheduler, submissions, submit
from orchestrator.records import Cell, EvaluationSpec, ExitRecord, Spec
from orchestrator.rundir import CellDir, CellState, RunFolder
from orchestrator.runs.operations import cancel
from orchestrator.runs.state import one_look
from tests.launch.slurm.conftest import Site

Many = Callable[..., list[Cell]]


def arrays(site: Site) -> Counter[str]:
    """Return name -> number of arrays of this folder in SLURM, ended ones included."""
    names = {sent.name for sent in submissions.read(site.folder).values()}
    listed = site.cluster.run("squeue", "-h", "-t", "all", "-o", "%F|%j").splitlines()
    jobs = {tuple(line.split("|", 1)) for line in listed}
    return Counter(name for _, name in jobs if name in names)


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, text: str) -> None:
    """Put a script before one of SLURM's programs. $REAL is the program."""
    place = tmp_path / "bin"
    place.mkdir(exist_ok=True)
    real = shutil.which(program)
    (place / program).write_text(f"#!/bin/bash\nREAL={real}\n{text}\n")
    (place / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")


def test_a_controller_that_stalls_gets_each_array_once(
    site: Site, many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that timed out is in its socket still, and is worked off after it answers."""
    conf = site.cluster.conf.read_text().replace("MessageTimeout=10", "MessageTimeout=2")
    (tmp_path / "slurm.conf").write_text(conf)  # of the client alone: it gives up after 2 s
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr(scheduler, "SETTLE_MARGIN_SECONDS", -5.0, raising=False)
    site.set(extra=["--hold"], max_array_size=2)
    controller = int((site.cluster.base / "run" / "slurmctld").read_text())
    real = scheduler.sbatch
    stalls = iter((False, True, False, False))

    def stalling(*arguments: Any, **more: Any) -> str:
        if next(stalls, False):
            os.kill(controller, signal.SIGSTOP)
            threading.Timer(5, os.kill, (controller, signal.SIGCONT)).start()
        return real(*arguments, **more)

    monkeypatch.setattr(scheduler, "sbatch", stalling)
    sent = site.submit(*many(4))
    assert len(sent.jobs) == 2
    assert any("asking again" in sentence for sentence in site.told)
    names = [s.name for s in submissions.read(site.folder).values()]
    assert arrays(site) == dict.fromkeys(names, 1)


def test_a_request_that_lands_after_the_first_answers_is_waited_for(
    site: Site, many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It timed out, the controller answers again and has no such job, and then it has."""
    monkeypatch.setattr(scheduler, "SETTLE_MARGIN_SECONDS", -3.0, raising=False)
    late = f"""\
if mkdir {tmp_path}/first 2> /dev/null; then
    (sleep 3; $REAL "$@"; mkdir {tmp_path}/landed) > /dev/null 2>&1 &
    echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2
    exit 1
fi
exec $REAL "$@\""""
    stand_in(tmp_path, monkeypatch, "sbatch", late)
    site.set(extra=["--hold"])
    (job,) = site.submit(*many(3)).jobs
    deadline = time.monotonic() + 30
    while not (tmp_path / "landed").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (sent,) = submissions.read(site.folder).values()
    assert sent.job == job
    assert arrays(site) == {sent.name: 1}


def test_a_second_copy_of_a_job_starts_nothing_and_is_cancelled(site: Site, many: Many) -> None:
    """A script that somebody sends again: it would end the training at work."""
    cells = many(2, "slow", 60)
    site.start(*cells)
    site.until_units(cells[0], 3)
    (sent,) = submissions.read(site.folder).values()
    place = site.folder.submission(sent.id)
    again = ("sbatch", "--parsable", f"--chdir={place}", place / "job.sh")
    twin = site.cluster.run(*again).strip()
    log = place / f"{twin}_0.log"
    deadline = time.monotonic() + 30
    while not log.exists() or "starts nothing" not in log.read_text():
        assert time.monotonic() < deadline, site.words(cells[0])
        time.sleep(0.2)
    waiting = site.cluster.run(*again[:2], "--hold", *again[2:]).strip()
    poll.forget()
    told = submit.end_twins(site.folder)
    copy = f"job {waiting} is a second copy of submission {sent.id}, which job {sent.job} runs"
    assert f"{copy}; it is cancelled, and had started nothing" in told
    seen = site.wait(*cells)
    assert {s.state for s in seen.values()} == {"succeeded"}
    assert [len(site.attempts(cell)) for cell in cells] == [1, 1], "nothing was begun twice"
    assert [site.units(cell) for cell in cells] == [60, 60]
    assert waiting not in site.cluster.run("squeue", "-h", "-o", "%F")


def test_a_submission_that_was_given_up_never_starts(site: Site, many: Many) -> None:
    """Its request was in the network for longer than anybody waited."""
    (cell,) = many(1)
    site.set(extra=["--hold"])
    site.submit(cell)
    (sent,) = submissions.read(site.folder).values()
    place = site.folder.submission(sent.id)
    shutil.rmtree(place / "array")
    site.folder.ledger.write_text(site.folder.ledger.read_text().partition("\n")[0] + "\n")
    site.cluster.run("scancel", sent.job)
    late = "sbatch", "--parsable", f"--chdir={place}", place / "job.sh"
    assert submissions.claim_array(place, submissions.NO_ARRAY) == submissions.NO_ARRAY
    job = site.cluster.run(*late).strip()
    site.cluster.run("scontrol", "release", job)
    deadline = time.monotonic() + 30
    while not (log := place / f"{job}_0.log").exists() or "was given up" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert not site.attempts(cell)[0].job.exists()


@pytest.mark.parametrize("said", ["notice", "nothing"])
def test_what_sbatch_prints_is_an_id_or_is_not_believed(
    site: Site, many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(scheduler, "SETTLE_MARGIN_SECONDS", -9.0, raising=False)
    text = {
        "notice": 'echo "NOTICE: the cluster is down for maintenance on Monday"; exec $REAL "$@"',
        "nothing": '$REAL "$@" > /dev/null',
    }[said]
    stand_in(tmp_path, monkeypatch, "sbatch", text)
    site.set(extra=["--hold"])
    sent = submit.submit(many(2), site.folder, site.options, evaluate=True)
    (job,) = sent.jobs
    assert job.isdigit()
    train, evaluate = submissions.read(site.folder).values()
    assert (train.job, train.cells, evaluate.follows) == (job, 2, train.id)
    shown = site.cluster.run("scontrol", "show", "job", f"{evaluate.job}_0")
    assert f"Dependency=aftercorr:{job}" in shown
    assert arrays(site) == {train.name: 1, evaluate.name: 1}


def test_an_sbatch_that_says_well_and_submits_nothing_is_refused(
    site: Site, many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SETTLE_MARGIN_SECONDS", -9.0, raising=False)
    stand_in(tmp_path, monkeypatch, "sbatch", "echo 'come back on Monday'")
    (cell,) = many(1)
    with pytest.raises(EnvironmentFault, match="printed 'come back on Monday', which is no job id"):
        site.submit(cell)
    assert site.look(cell).state == "planned"


def test_a_scheduler_that_is_away_is_asked_once_a_look(
    site: Site, many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = many(12)
    site.set(extra=["--hold"])
    site.submit(*cells)
    calls = tmp_path / "calls"
    away = f"echo $0 >> {calls}; echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1"
    for program in ("squeue", "sacct", "scontrol"):
        stand_in(tmp_path, monkeypatch, program, away)
    poll.forget()
    from orchestrator.runs.state import read_state

    with poll.one_look(site.folder):
        seen = [read_state(site.folder.cell(cell)) for cell in cells]
    assert {state.state for state in seen} == {"unknown"}
    assert len({state.fault for state in seen}) == 1, "one sentence, not one a cell"
    counted = Counter(Path(line).name for line in calls.read_text().split())
    assert counted == {"squeue": 1, "sacct": 1}


def test_a_look_at_waiting_jobs_is_one_call(
    site: Site, many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = many(12)
    site.set(extra=["--hold"], max_array_size=5)
    site.submit(*cells)
    calls = tmp_path / "calls"
    for program in ("squeue", "sacct", "scontrol"):
        stand_in(tmp_path, monkeypatch, program, f'echo $0 >> {calls}; exec $REAL "$@"')
    poll.forget()
    from orchestrator.runs.state import survey

    assert {state.state for _, state in survey(site.folder)} == {"pending"}
    told = poll.stuck_jobs(site.folder, site.options.model_dump())
    assert poll.twins(site.folder) == []
    assert [Path(line).name for line in calls.read_text().split()] == ["squeue"]
    (sentence,) = told
    job = submissions.read(site.folder)
    ids = [str(s.job) for s in job.values()]
    assert sentence.startswith("12 jobs wait: held by its user: `scontrol release ")
    assert all(f"{id_}_[0-" in sentence for id_ in ids)


def test_waiting_cells_are_told_without_being_opened_until_something_came_to_them(
    site: Site, many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = many(7)
    site.set(extra=["--hold"])
    site.submit(*cells)
    cell_dirs = [site.folder.cell(cell) for cell in cells]
    for cell_dir in cell_dirs:  # the clock of files stands still for some milliseconds
        for path in (cell_dir.path / "attempts", cell_dir.path / "attempts" / "1"):
            os.utime(path, (time.time() - 10, time.time() - 10))
    opened: list[str] = []
    real = CellDir.state

    def counted(self: CellDir, **more: Any) -> CellState:
        opened.append(self.path.name)
        return real(self, **more)

    monkeypatch.setattr(CellDir, "state", counted)

    def told() -> list[CellState]:
        poll.forget()
        opened.clear()
        with one_look(site.folder) as look:
            return [look.state_of(cell_dir) for cell_dir in cell_dirs]

    assert told() == [CellState("pending", None, 1)] * 7
    assert opened == []
    ended, begun, again, foreign, refused, removed, _ = cell_dirs
    now = time.time()
    ended.attempts()[0].write_exit(ExitRecord(state="cancelled", started=now, ended=now))
    begun.attempts()[0].job.write_text("{}")
    again.new_attempt()
    foreign.reserve('{"submission": "0123", "index": 0, "cell": {}}')
    (refused.path / "attempts" / "1" / "exit.json").write_text("torn")
    shutil.rmtree(removed.path / "attempts")
    states = told()
    assert opened == [each.path.name for each in cell_dirs[:6]]
    assert states == [real(each, poll=poll.polled_state) for each in cell_dirs]
    words = ["cancelled", "pending", "planned", "unknown", "unknown", "planned", "pending"]
    assert [state.state for state in states] == words


LOOK_AS = """
import os, sys
from pathlib import Path
from orchestrator.launch.slurm import poll
from orchestrator.rundir import RunFolder
from orchestrator.runs.state import survey
os.setgroups([]); os.setgid(65534); os.setuid(65534)
poll._YOUNG_SECONDS = 0.0
for cell_dir, seen in survey(RunFolder(Path(sys.argv[1]))):
    print(seen.state, seen.fault, sep="|")
"""


def test_jobs_of_another_user_are_not_called_lost(site: Site, many: Many) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs the right to become another user")
    # Not below pytest's own folder: each session that starts on the machine closes it to others.
    with TemporaryDirectory() as home:
        site.folder = RunFolder(Path(home) / "runs" / "test")
        _look_as_another_user(site, many)


def _look_as_another_user(site: Site, many: Many) -> None:
    site.set(extra=["--hold"])
    site.submit(*many(3))
    sent = next(iter(submissions.read(site.folder).values()))
    assert (sent.user, sent.uid, sent.cluster) == (submissions.user_name(), 0, "orch")
    job = str(sent.job)
    _open(site.folder.path)
    # Accounting hears of a held job some seconds after its submission, and tells everybody of it.
    wait_for(lambda: _accounted(site, job), 60, "accounting to know the job")
    with _private_jobs(site):
        wait_for(lambda: not _listed_to_nobody(site, job), 60, "the job to be hidden")
        hidden = _as_nobody(site)
    assert [line.partition("|")[0] for line in hidden] == ["unknown"] * 3
    assert "not visible to you" in hidden[0]
    wait_for(lambda: _listed_to_nobody(site, job), 60, "the job to be shown again")
    shown = _as_nobody(site)
    assert [line.partition("|")[0] for line in shown] == ["pending"] * 3, "nothing is hidden now"


@contextmanager
def _private_jobs(site: Site) -> Iterator[None]:
    """Hide jobs from other users, inside the context. The controller and accounting both have to:
    each shows what it knows, whatever the other hides."""
    files = site.cluster.conf, site.cluster.base / "slurmdbd.conf"
    before = [path.read_text() for path in files]
    try:
        _configure(
            site,
            [(path, f"{text}PrivateData=jobs\n") for path, text in zip(files, before, strict=True)],
        )
        yield
    finally:
        _configure(site, zip(files, before, strict=True))


def _configure(site: Site, texts: Iterable[tuple[Path, str]]) -> None:
    for path, text in texts:
        path.write_text(text)
    site.cluster.run("sacctmgr", "--immediate", "reconfigure")
    site.cluster.run("scontrol", "reconfigure")


def _accounted(site: Site, job: str) -> bool:
    return bool(site.cluster.run(*_SACCT, f"--jobs={job}").strip())


_SACCT = ("sacct", "-X", "--noheader", "--allusers", "--format=JobID")


def _listed_to_nobody(site: Site, job: str) -> bool:
    """Return True if squeue or sacct lists a job to another user."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    squeue = site.cluster.run(*nobody, "squeue", "--noheader", "--states=all", "--format=%F")
    sacct = site.cluster.run(*nobody, *_SACCT, f"--jobs={job}")
    return job in squeue.split() or bool(sacct.strip())


def _open(path: Path) -> None:
    """Let everybody read a folder, and reach it."""
    for parent in path.parents:
        if parent.stat().st_mode & 0o005 != 0o005 and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o005)
    for each in (path, *path.rglob("*")):
        each.chmod(each.stat().st_mode | (0o007 if each.is_dir() else 0o006))


def _as_nobody(site: Site) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK_AS, str(site.folder.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_max_running_holds_over_all_arrays_and_later_submissions(site: Site, many: Many) -> None:
    cells = many(7, "slow", 400)
    site.set(max_running=2, max_array_size=2)
    site.start(*cells[:5])
    site.until_units(cells[0], 2)
    site.start(*cells[5:])
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        running = site.cluster.run("squeue", "-h", "-r", "-t", "running", "-o", "%i").split()
        assert len(running) <= 2, running
        time.sleep(0.5)
    assert len(running) == 2
    assert len(site.cluster.run("squeue", "-h", "-r").splitlines()) == 7
    cancel(cells, site.folder)


def test_a_full_queue_says_what_went_in_and_the_rest_goes_later(site: Site, many: Many) -> None:
    user = submissions.user_name()
    limit = ("sacctmgr", "-i", "-Q", "modify", "user", user, "set")
    site.cluster.run(*limit, "maxsubmitjobs=3")
    try:
        cells = many(4)
        site.set(extra=["--hold"], max_array_size=2)
        deadline = time.monotonic() + 20  # the controller hears of it from slurmdbd
        while "MaxJobs=3" not in _limit(site, user):
            assert time.monotonic() < deadline, _limit(site, user)
            time.sleep(0.5)
        sent = site.submit(*cells)
        assert len(sent.cells) == 3, site.told
        assert len(sent.no_room) == 1
        told = next(sentence for sentence in site.told if "cells are in the queue now" in sentence)
        assert told.startswith("the cluster refuses the job: you may have no more jobs")
        assert "change site.options.max_submit_jobs" in told
        assert site.submit(*cells).no_room == sent.no_room
        cancel(cells[:2], site.folder)
        assert site.submit(*cells).cells == sent.no_room
        cancel(cells, site.folder)
        site.set(extra=[])
        others = many(8)[4:]
        assert len(site.start(*others).no_room) == 1
        states = site.wait(*others).values()
        assert {state.state for state in states} == {"succeeded"}, "it goes when there is room"
    finally:
        site.cluster.run(*limit, "maxsubmitjobs=-1")
        submit._learned_limit.clear()


def _limit(site: Site, user: str) -> str:
    shown = site.cluster.run("scontrol", "show", "assoc_mgr", f"users={user}", "flags=assoc")
    return shown.replace("MaxSubmitJobs=3", "MaxJobs=3")


def test_a_cancelled_element_takes_its_evaluation_along(site: Site, many: Many) -> None:
    from orchestrator.files import write_text

    spec = Spec(name="x", studies=(), evaluation=EvaluationSpec())
    site.folder.open()
    write_text(site.folder.spec, spec.model_dump_json())
    cells = many(3)
    site.set(extra=["--hold"])
    submit.submit(cells, site.folder, site.options, evaluate=True)
    train, evaluate = submissions.read(site.folder).values()
    site.cluster.run("scancel", f"{train.job}_1")
    deadline = time.monotonic() + 30
    while site.look(cells[1]).state != "cancelled":
        assert time.monotonic() < deadline
    name = site.folder.cell(cells[1]).path.name
    assert poll.waiting_evaluations(site.folder, [name]) == [f"{evaluate.job}_1"]
    assert submit.end_waiting_evaluations(site.folder, [name]) == 1
    poll.forget()
    assert poll.waiting_evaluations(site.folder, [name]) == []
    left = json.dumps(site.cluster.run("squeue", "-h", "-r", "-o", "%i").split())
    assert f"{evaluate.job}_0" in left
    assert f"{evaluate.job}_1" not in left
