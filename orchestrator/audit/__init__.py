"""What a launch script written by anybody really optimises, without running it.

    text --read--> Launches --judge (a backend's facts, the laboratory's verdicts)--> Findings

`audit` is the whole of it for callers; the rooms are imported when it is called.
"""

from collections.abc import Mapping

from orchestrator.audit.findings import AuditFinding
from orchestrator.library.launches import InLoss, InReward, ReadSetting, UnreadableScript

__all__ = ["AuditFinding", "InLoss", "InReward", "ReadSetting", "UnreadableScript", "audit"]


def audit(
    text: str,
    name: str,
    *,
    files: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
) -> list[AuditFinding]:
    """One finding for each launch in the text and each case it can take, in file order. Pure.

    `name`: the file's path, shown in findings; its suffix helps to tell YAML and TOML from shell.
    `files`: texts of files beside it, by the path a launch gives: configurations it builds on,
    scripts it calls. `versions`: library -> release, where something outside the text says so.
    Raises UnreadableScript, a sentence, where there is nothing that can be judged.
    """
    from orchestrator.audit.pipeline import findings

    beside = {} if files is None else files  # Beside has no length
    return findings(text, name, beside, versions or {})
