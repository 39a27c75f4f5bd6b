"""Dialects: how close each is to its library's own functions, and what the grid of them costs.

    python benchmarks/dialects.py            gradients only; needs a package index the first time
    python benchmarks/dialects.py --grid     the grid of experiments/cross_library.yaml too

Prime-RL is compared where ORCH_PRIME_RL_CHECKOUT names a git repository of it.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import ORCH, measure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from orchestrator import plugins  # noqa: E402  (after the path is set)
from orchestrator.lab.probes.protocol import ProbeTarget  # noqa: E402  (after the path is set)
from tests.backends import dialects  # noqa: E402  (after the path is set)
from tests.backends.openrlhf.cells import environment as openrlhf  # noqa: E402  (after the path is set)
from tests.backends.skyrl.library import python as skyrl  # noqa: E402  (after the path is set)
from tests.backends.verl.library import python as verl  # noqa: E402  (after the path is set)

BAR_GRADIENT, BAR_SECONDS = 1e-5, 480.0
PYTHONS = {"verl": verl, "openrlhf": openrlhf, "skyrl": skyrl}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for library, version, where in releases(Path(name)):
            gaps = dialects.gaps(library, version, where)
            worst = ", ".join(f"{what} {gap:.1e}" for what, gap in gaps["worst"].items())
            print(
                f"{library} {version}: {gaps['count']} launches and batches, {worst} "
                f"(bar of gradients {BAR_GRADIENT:g})"
            )
            for sentence in gaps["failed"]:
                print(f"  not compared: {sentence}")
        if "--grid" in sys.argv:
            grid(Path(name))


def releases(folder: Path) -> Iterator[tuple[str, str, ProbeTarget]]:
    for library, python in PYTHONS.items():
        for version in plugins.load(library).versions:
            yield library, version, dialects.beside(python(version), library)
    checkout = os.environ.get("ORCH_PRIME_RL_CHECKOUT")
    if checkout is None:
        print("prime_rl 0.5.0: not compared, ORCH_PRIME_RL_CHECKOUT names no repository of it")
        return
    git = [str(shutil.which("git")), "-C", checkout, "archive", "63331ad8b", "src/prime_rl"]
    packed = subprocess.run(git, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    yield "prime_rl", "0.5.0", ProbeTarget(Path(sys.executable), folder / "src" / "prime_rl")


def grid(folder: Path) -> None:
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    cost = measure([ORCH, "run", "experiments/cross_library.yaml"], cwd=folder)
    cells = len(list((folder / "runs" / "cross_library.micro" / "cells").iterdir()))
    print(
        f"cross_library, 135 declared cells, {cells} trained   {cost.wall_seconds:.1f} s wall "
        f"(bar {BAR_SECONDS:.0f} on 2 quiet cores)   {cost.cpu_seconds:.1f} CPU s"
    )


if __name__ == "__main__":
    main()
