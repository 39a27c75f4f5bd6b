"""`python -m lab`, as a person calls it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lab(
    place: Path, *words: object, tree: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the lab of a tree in a folder, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "lab", *map(str, words)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(tree), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
