"""Environments of the trainers' libraries. They are made from locks, and are separate from orch's.

lock    locks, in the backends' folders; the environments that exist
make    making one from a lock, checking one against it, resolving a new lock
"""

from orchestrator.environments.lock import (
    Environment,
    Flavour,
    Lock,
    environment_rows,
    find_installed,
    installed,
    lock_named,
    lock_of,
    locks,
    root,
)

__all__ = [
    "Environment",
    "Flavour",
    "Lock",
    "environment_rows",
    "find_installed",
    "installed",
    "lock_named",
    "lock_of",
    "locks",
    "root",
]
