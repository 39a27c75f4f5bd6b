"""Secrets by reference: the site file names them, the node looks their values up.

A value stands in no file of orch's, no log and no argument: only in the environment of processes.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.node.options import SecretFile


def secrets(wanted: Mapping[str, SecretFile | None]) -> dict[str, str]:
    """Name -> value. Raises EnvironmentFault for all that are missing, without any value."""
    found, faults = {}, []
    for name, source in wanted.items():
        if source is None:
            if name in os.environ:
                found[name] = os.environ[name]
            else:
                faults.append(f"{name} is not set here; export it in the shell that submits, or "
                              f"give a file in site.options.secrets.{name}")  # fmt: skip
            continue
        path = Path(source.file).expanduser()
        try:
            found[name] = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not text"
            faults.append(f"{name} cannot be read from {path}: {why} "
                          f"(site.options.secrets.{name}.file)")  # fmt: skip
    if faults:
        raise EnvironmentFault("; ".join(faults))
    return found
