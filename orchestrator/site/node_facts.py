"""Look at a node from the inside: `python -m orchestrator.site.node_facts JSON` prints JSON.

JSON: {folder, token, site, cells, evaluation, data_dir}. Run by `srun` on a node.
"""

import json
import os
import platform
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

MARK = "ORCH-LOOKED "


def main() -> int:
    """Print the findings of this node, as one line of JSON."""
    request = json.loads(sys.argv[1])
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    found = f"{node}: Python {platform.python_version()}, orch importable"
    findings: list[tuple[str, ...]] = [("a node", "ok", found + (f", {gpus} GPUs" if gpus else ""))]
    check = "runs folder there"
    if fault := _shared(Path(request["folder"]), request["token"]):
        advice = "choose a folder on a file system that all nodes see, with site.runs_dir"
        findings.append((check, "broken", fault, advice))
    else:
        findings += [(check, "ok", request["folder"]), *_findings(request)]
    sys.stdout.write(f"\n{MARK}{json.dumps(findings)}\n")
    return 0


def _findings(request: dict[str, Any]) -> list[tuple[str, ...]]:
    from orchestrator.records import Cell, EvaluationSpec, Site
    from orchestrator.site.preflight import preflight

    os.environ["ORCH_DATA_DIR"] = request["data_dir"]  # as it is where the cells are submitted
    evaluation = request["evaluation"]
    findings: list[tuple[str, ...]] = []
    try:
        findings += preflight(
            Site.model_validate(request["site"]),
            [Cell.model_validate(each) for each in request["cells"]],
            EvaluationSpec.model_validate(evaluation) if evaluation else None,
            Path(request["folder"]),
        )
    except Exception as error:  # the login node reports it, beside the findings made before
        traceback.print_exc()
        advice = "is orch of the same release there? Else it is a fault of orch"
        findings.append(("checks of a node", "broken", f"{type(error).__name__}: {error}", advice))
    return findings


def _shared(folder: Path, token: str) -> str:
    """Return why this node cannot use the runs folder; empty if it can."""
    try:
        text = (folder / token).read_text(encoding="utf-8")
    except FileNotFoundError:
        return "this node does not see it: it lies on the login node's own disk"
    except OSError as error:
        return f"this node cannot read it: {error.strerror}"
    if text != token:
        return "this node sees another folder of that name"
    try:
        (folder / f"{token}.answer").write_text(socket.gethostname(), encoding="utf-8")
    except OSError as error:
        return f"this node cannot write to it: {error.strerror}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
