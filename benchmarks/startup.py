"""Start-up and planning: `orch --help`, `orch plan` of 1,000 and 10,000 cells, beside Hydra.

The peer is `hydra --multirun` of a task that does nothing, over 40 jobs, in the same run.
    python benchmarks/startup.py
"""

import sys
import tempfile
from pathlib import Path

from measure import ORCH, grid_spec, measure

BARS = {"help": 0.2, 1000: 1.0, 10000: 4.0}
HYDRA_JOBS = 40


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        help_cost = min(measure([ORCH, "--help"]).cpu_seconds for _ in range(5))
        print(f"orch --help             {help_cost:6.2f} CPU s   bar {BARS['help']}")
        hydra = hydra_multirun(folder)
        print(f"hydra --multirun        {hydra:6.2f} CPU s   a job, over {HYDRA_JOBS} no-op jobs")
        for cells in (1000, 10000):
            spec = grid_spec(folder / f"bench_{cells}.yaml", cells)
            cost = measure([ORCH, "plan", spec], cwd=folder, codes=(3,))
            print(
                f"orch plan {cells:6d} cells {cost.cpu_seconds:6.2f} CPU s   bar {BARS[cells]}   "
                f"{cost.peak_mib:.0f} MiB (bar 250)   "
                f"1/{hydra * cells / cost.cpu_seconds:.0f} of hydra's cost for as many jobs"
            )


def hydra_multirun(folder: Path) -> float:
    """CPU seconds a job of Hydra's own sweep of a task that does nothing."""
    (folder / "noop.yaml").write_text("x: 0\n")
    (folder / "noop.py").write_text(
        "import hydra\n"
        "@hydra.main(config_path='.', config_name='noop', version_base=None)\n"
        "def main(cfg): pass\n"
        "main()\n"
    )
    many = measure(
        [sys.executable, "noop.py", "--multirun", f"x=range({HYDRA_JOBS})"], cwd=folder
    ).cpu_seconds
    one = measure([sys.executable, "noop.py"], cwd=folder).cpu_seconds
    return (many - one) / (HYDRA_JOBS - 1)


if __name__ == "__main__":
    main()
