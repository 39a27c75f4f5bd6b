"""What is left of a run on a node: processes and folders that carry its token."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.node.process_group import own_address
from tests.cluster import wait_for

GONE_SECONDS = 120.0
"""A run's end takes seconds; on a machine that does much else at the same time it takes longer."""


def carriers(**wanted: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Processes of a run, with their variables; those whose variables are as wanted."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            raw = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            stat = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            variables = dict(line.partition("=")[::2] for line in raw if "=" in line)
            if (
                stat not in "ZX"
                and "ORCH_RANK_TOKEN" in variables
                and all(variables.get(name) == value for name, value in wanted.items())
            ):
                yield int(entry.name), variables


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def wait_until_gone(**wanted: str) -> None:
    """Returns when no process of such a run is left; else tells which are."""
    left: list[str] = []

    def none() -> bool:
        left[:] = [f"{pid} {command(pid)[:80]}" for pid, _ in carriers(**wanted)]
        return not left

    try:
        wait_for(none, GONE_SECONDS, "nothing to be left of the run")
    except TimeoutError:
        raise AssertionError(f"left of {wanted}: {left}") from None


def has_address(interface: str) -> bool:
    """Whether an interface has an address that other machines may reach."""
    try:
        return not own_address(interface, None).startswith("127.")
    except EnvironmentFault:
        return False
