"""Find the objective that a launch script optimises, without running the script.

    text --read--> Launches --judge (a backend's facts, the laboratory's verdicts)--> Findings

Callers need only `audit`.
"""

from collections.abc import Mapping

from orchestrator.audit import pipeline
from orchestrator.audit.judge import AuditFinding
from orchestrator.library.launches import InLoss, InReward, ReadSetting, UnreadableScript

__all__ = ["AuditFinding", "InLoss", "InReward", "ReadSetting", "UnreadableScript", "audit"]


def audit(
    text: str,
    name: str,
    *,
    files: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
) -> list[AuditFinding]:
    """Return one finding for each launch in the text and each case it can take, in file order.

    Pure.

    `name`: the file's path, shown in findings. Its suffix tells YAML and TOML from shell.
    `files`: texts of other files, by the path that a launch gives: configurations that it builds
    on, scripts that it calls. `versions`: library -> release, if a source outside the text gives
    it. Raise UnreadableScript, with a sentence, if nothing can be judged.
    """
    # `files or {}` would drop a NeighbourFiles: its length is always 0, because it finds files by
    # path and does not list them.
    neighbours = {} if files is None else files
    return pipeline.findings(text, name, neighbours, versions or {})
