"""The real command line, in a process of its own. Shared by tests of commands and documents."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def orch(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`orch ARGUMENTS` in a folder; never a terminal, never a tracking server of the machine's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "ORCH"))}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *map(str, arguments)],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=1800,
    )
