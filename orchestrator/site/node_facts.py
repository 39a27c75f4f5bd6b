"""Look at a node from the inside: `python -m orchestrator.site.node_facts JSON` prints JSON.

JSON: {folder, token, environments: [[library, version], ...], options}. Run by `srun` on a node.
"""

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "ORCH-LOOKED "
_IMPORT_SECONDS = 120


def main() -> int:
    """Print one line of JSON; never fail."""
    request = json.loads(sys.argv[1])
    facts = {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "python": platform.python_version(),
        "shared": _shared(Path(request["folder"]), request["token"]),
        "gpus": os.environ.get("SLURM_GPUS_ON_NODE", "0"),
        "environments": _environments(request["environments"], request["options"]),
    }
    sys.stdout.write(f"\n{MARK}{json.dumps(facts)}\n")
    return 0


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


def _environments(wanted: list[list[str]], options: dict[str, Any]) -> dict[str, str]:
    """Return release -> the fault of its environment on this node; empty if it has none."""
    from orchestrator.launch.node.environment import environment_fault, find_environment
    from orchestrator.spec.site_options import node_options

    chosen, faults = node_options(options), {}
    for library, version in wanted:
        name = f"{library}@{version}"
        faults[name] = environment_fault(library, version, chosen)
        environment = find_environment(library, version, chosen)
        if faults[name] or environment is None:
            continue
        argv = environment.command(["python", "-c", "pass"], Path.cwd(), (), ())
        try:
            done = subprocess.run(
                argv,
                env=environment.variables({}),
                capture_output=True,
                text=True,
                check=False,
                timeout=_IMPORT_SECONDS,
                stdin=subprocess.DEVNULL,
            )
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            faults[name] = f"its Python does not run: {last}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            faults[name] = f"its Python does not run: {error}"
    return faults


if __name__ == "__main__":
    sys.exit(main())
