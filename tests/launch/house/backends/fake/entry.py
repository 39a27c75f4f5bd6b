"""Counts instead of training: one line of `checkpoints/units` for each unit of work.

The instruction of a cell, words separated by spaces:
    slow            a unit takes 50 ms        fail            raises after the first unit
    memory          raises MemoryError        config          raises an OrchError
    greedy          takes 900 MB and sleeps
    die             kills its own process after the first unit, once
    die-always      kills its own process after its first unit, each time
    collapse        ends with a collapsed outcome
    fill            writes until the disk or the limit is full
    idle            works without ever ending a unit
    hang            writes nothing more after the first unit
    deaf            hangs, and does not listen to signals

FAKE_KILL=<who>:<n> kills `worker`, or `orch` and with it all, at the n-th file operation of a
worker in the runs folder: by an audit hook, so at every instant that matters.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress

from orchestrator.errors import OrchError
from orchestrator.records import AttemptPaths, Cell, Outcome

NURSERY = os.getpid()
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "fcntl.flock"}


def _arm(who: str, nth: int) -> None:
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event not in OPERATIONS or os.getpid() == NURSERY:
            return
        if event != "fcntl.flock" and "cells" not in str(arguments[0]):
            return
        seen += 1
        if seen == nth:
            victim = os.getpid() if who == "worker" else ORCH
            with suppress(ProcessLookupError):  # the other worker was there first
                os.kill(victim, signal.SIGKILL)
            time.sleep(0.2)  # until the kernel has told everybody

    sys.addaudithook(hook)


ORCH = os.getppid()
if "FAKE_KILL" in os.environ:
    _who, _, _nth = os.environ["FAKE_KILL"].partition(":")
    _arm(_who, int(_nth))


def train(cell: Cell, place: AttemptPaths) -> Outcome:
    words = cell.settings.data.instruction.split()
    place.checkpoints_dir.mkdir(parents=True, exist_ok=True)
    units = place.checkpoints_dir / "units"
    if "collapse" in words:
        return Outcome(kind="collapsed", cause="reward", step=1, reason="told to")
    if "config" in words:
        raise OrchError("no such policy")
    if "memory" in words:
        raise MemoryError("told to")
    done = len(units.read_text().splitlines()) if units.exists() else 0
    print(f"starting at unit {done}")
    for step in range(done + 1, cell.settings.num_train_steps + 1):
        time.sleep(600.0 if "idle" in words else 0.05 if "slow" in words else 0.0)
        _append(units, f"{step} {os.getpid()}\n")
        point = {"step": step, "time": time.time(), "values": {"train/reward_mean": step / 10}}
        _append(place.attempt_dir / "metrics.jsonl", json.dumps(point) + "\n")
        if "die-always" in words or ("die" in words and step == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if "fail" in words:
            print("about to fail", file=sys.stderr)
            raise ValueError("told to fail")
        if "deaf" in words:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
        if "hang" in words or "deaf" in words:
            time.sleep(600)
        if "greedy" in words:
            taken = bytearray(900 << 20)
            time.sleep(600 + len(taken))
        if "fill" in words:
            (place.checkpoints_dir / "policy.bin").write_bytes(bytes(8 << 20))
    return Outcome(kind="trained")


def _append(path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, text.encode())
    os.close(descriptor)
