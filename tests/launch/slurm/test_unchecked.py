"""What SLURM says, or does not say, is checked before it is believed."""

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

from orchestrator.launch.slurm import poll, scheduler, submissions, submit
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.operations import cancel
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
