"""The class of a failure."""

import errno

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.launch.endings import ending_of


def test_a_full_disk_is_of_class_disk_though_orch_says_it_in_a_sentence() -> None:
    full = RunFolderError("runs/x: the disk is full")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert ending_of(full).failure == "disk"
    assert ending_of(OrchError("beta is negative")).failure == "config"
