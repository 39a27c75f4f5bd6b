"""CPU seconds of the capability matrix, of drift, and of measuring every release again.

    python benchmarks/probes.py [--environments DIR]

Bar: `orch explain --libraries` in 0.5 CPU seconds. Releases whose source is not here are left out
of the last part; Prime-RL's is taken from the repository that ORCH_PRIME_RL_CHECKOUT names.
"""

import sys
from pathlib import Path

from measure import ORCH, measure

from orchestrator.errors import EnvironmentFault
from orchestrator.evidence.cells import releases
from orchestrator.lab.probes.protocol import sources

ROOT = Path(__file__).parents[1]
GRID = ROOT / "experiments" / "comedy_full.yaml"


def main() -> None:
    """Print one line for each command."""
    within = Path(sys.argv[2]) if sys.argv[1:2] == ["--environments"] else None
    drift = ["audit", "--from", "verl@0.8.0", "--to", "verl@0.9.1", GRID]
    for name, arguments in {
        "explain --libraries (bar 0.5)": ["explain", "--libraries"],
        "the same, --json": ["explain", "--libraries", "--json"],
        "audit --from --to, 153 cells": drift,
    }.items():
        cost = min(measure([ORCH, *arguments], codes=(0, 3)) for _ in range(3))
        print(f"{name:<32} {cost.cpu_seconds:6.2f} CPU s  {cost.peak_mib:6.0f} MiB")
    for library, version in releases():
        name = f"{library}@{version}"
        try:
            with sources(library, version, within=within) as source:
                folder = source.where.folder
                cost = measure([sys.executable, "-c", _MEASURE, library, version, folder], cwd=ROOT)
        except EnvironmentFault as fault:
            print(f"measuring {name:<22} not here: {fault}")
            continue
        print(f"measuring {name:<22} {cost.cpu_seconds:6.2f} CPU s  {cost.peak_mib:6.0f} MiB")


_MEASURE = """
import sys
from pathlib import Path
from orchestrator.lab.probes.protocol import ProbeTarget
from orchestrator.lab.probes.measure import measure
library, version, folder = sys.argv[1:]
measure(library, version, ProbeTarget(Path(sys.executable), Path(folder)))
"""

if __name__ == "__main__":
    main()
