"""Whether an environment is what its lock says."""

import json
import subprocess
from collections.abc import Mapping

from orchestrator.environments.lock import Lock, plain_name
from orchestrator.environments.place import Environment

_ASK = """
import importlib, importlib.metadata, json, sys
faults = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        faults[name] = f"{type(error).__name__}: {error}"
held = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
print("\\nHELD", json.dumps({"faults": faults, "held": held, "python": list(sys.version_info[:2])}))
"""
_DEADLINE_SECONDS = 600
"""A first import of a trainer from a cluster's file system takes minutes."""


def check(environment: Environment, lock: Lock) -> list[str]:
    """What is wrong with it, in sentences; empty where it is as its lock says."""
    modules = lock.words("import")
    try:
        done = subprocess.run(
            [environment.python, "-I", "-c", _ASK, *modules], capture_output=True, text=True,
            check=False, timeout=_DEADLINE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"importing {', '.join(modules)} did not end within {_DEADLINE_SECONDS} s"]
    except OSError as error:
        return [f"its Python cannot be run: {environment.python}: {error.strerror}"]
    _, marked, answer = done.stdout.rpartition("\nHELD ")
    if done.returncode or not marked:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [f"its Python ends when it is asked what it holds: {last}"]
    told = json.loads(answer)
    return [*_python(told["python"], lock), *differences(told["held"], lock),
            *(f"import {name} fails: {why}" for name, why in told["faults"].items()),
            *_digest(environment, lock)]  # fmt: skip


def differences(held: Mapping[str, str], lock: Lock) -> list[str]:
    """What is installed against what is locked. A lock without a local part (`+cu130`) accepts
    any."""
    plain = {plain_name(name): version for name, version in held.items()}
    found = []
    for name, version in lock.pins.items():
        there = plain.get(name)
        if there is None:
            found.append(f"{name} {version} is missing")
        elif there != version and (there.partition("+")[0] != version or "+" in version):
            found.append(f"{name} must be {version}, it is {there}")
    others = sorted(plain.keys() - lock.pins.keys() - {"pip", "setuptools", "wheel"})
    if others and lock.pins:
        listed = ", ".join(f"{name} {plain[name]}" for name in others[:5])
        found.append(f"{len(others)} packages are in no lock: {listed}" + (
            ", ..." if len(others) > 5 else ""))  # fmt: skip
    return found


def _python(found: list[int], lock: Lock) -> list[str]:
    release = ".".join(map(str, found))
    wanted = lock.words("python")
    if release in wanted:
        return []
    return [f"its Python is {release}, the lock is for {' or '.join(wanted)}"]


def _digest(environment: Environment, lock: Lock) -> list[str]:
    if environment.lock == lock.digest:
        return []
    told = (
        f"it was made from another lock ({environment.lock}, this orch's is {lock.digest}); "
        f"`orch env create {environment.name} --again` makes it anew"
    )
    return [told]
