"""Count the lines of each feature: `python -m docs.tools.size [CHECKOUT]...`.

Each file counts once, for the first row whose pattern is the start of its path. Several checkouts
(before, after) stand side by side.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

FEATURES: Mapping[str, tuple[str, ...]] = {
    "documentation's writers": ("docs/", "orchestrator/report/measured.py"),
    "embedded trainer": ("backends/micro/",),
    "laboratory, probes, prove, stand-ins": (
        "orchestrator/lab/",
        "orchestrator/probes/",
        "orchestrator/prove/",
        "orchestrator/library/cpu/",
    ),
    "audit": ("orchestrator/audit/",),
    "KL table, verdicts, questions": ("orchestrator/kl/", "orchestrator/evidence/"),
    "specs": ("orchestrator/spec/",),
    "library: protocol, manifests": ("orchestrator/library/",),
    "launch": ("orchestrator/launch/", "orchestrator/site/"),
    "runs, pipeline": ("orchestrator/runs/", "orchestrator/pipeline/"),
    "evaluation, scoring, data": (
        "orchestrator/evaluate/",
        "orchestrator/scoring/",
        "orchestrator/data/",
    ),
    "environments": ("orchestrator/environments/",),
    "MLflow": ("orchestrator/tracking/",),
    "search": ("orchestrator/search/",),
    "statistics, claims": ("orchestrator/analysis/",),
    "report, page, dashboard": ("orchestrator/report/", "orchestrator/charts/", "dashboards/"),
    "imports": ("orchestrator/imports/",),
    "sharing": ("orchestrator/sharing/",),
    "commands": ("orchestrator/cli/",),
    "contract suites": ("orchestrator/testing/",),
    "core words": ("orchestrator/", "orch/", "bootstrap.py"),
    "other libraries": ("backends/",),
    "tests": ("tests/",),
    "benchmarks": ("benchmarks/",),
}
"""Feature -> the starts of the paths of its files. The first row that fits counts."""


def lines(checkout: Path) -> Counter[str]:
    """Return feature -> lines of its Python files that git tracks in a checkout."""
    argv = ["git", "-C", str(checkout), "ls-files", "*.py"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    counts: Counter[str] = Counter()
    for name in listed:
        feature = next((f for f, starts in FEATURES.items() if name.startswith(starts)), "")
        if feature and (checkout / name).is_file():
            counts[feature] += len((checkout / name).read_bytes().splitlines())
    return counts


def main(checkouts: list[str]) -> None:
    """Print a Markdown table with a column for each checkout."""
    counted = [lines(Path(each)) for each in checkouts or ["."]]
    print("| feature |" + "".join(f" {each} |" for each in checkouts or ["lines"]))
    print("|---|" + "---|" * len(counted))
    for feature in FEATURES:
        print(f"| {feature} |" + "".join(f" {each[feature]:,} |" for each in counted))
    print("| all |" + "".join(f" {each.total():,} |" for each in counted))


if __name__ == "__main__":
    main(sys.argv[1:])
