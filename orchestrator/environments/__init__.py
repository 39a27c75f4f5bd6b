"""Environments of the trainers' libraries: made from locks, found by launchers, never orch's own.

lock      what an environment holds: exact versions, as a file in the backend's folder
place     where environments lie, and which are there
make      makes one, whole or not at all
check     what is in one that its lock does not say, or the reverse
resolve   writes a lock for a release (needs uv)
"""

from orchestrator.environments.lock import (
    Environment,
    Flavour,
    Lock,
    find_installed,
    folder_name,
    installed,
    lock_of,
    locks,
    root,
)

__all__ = [
    "Environment",
    "Flavour",
    "Lock",
    "find_installed",
    "folder_name",
    "installed",
    "lock_of",
    "locks",
    "root",
]
