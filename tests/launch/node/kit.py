"""What is left of a run on a node: processes and folders that carry its token."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path


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
