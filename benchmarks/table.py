"""The cheap benchmarks as one table: ours, peer, limit, ratio, machine.

Machines differ by a factor of three, so costs are ratios to H, a job of `hydra --multirun` that
does nothing, or to another peer, measured in the same run. `make bench` prints it.
    python benchmarks/table.py [--keep FOLDER] [--against benchmarks/RESULTS.md] [--write PATH]

keep: 10,000 finished cells are made there once, and used again. against: print each ratio that rose
by more than a quarter since that table; a report, and no failure.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from measure import ORCH, grid_spec, measure
from run_again import finished

from orchestrator.spec import load
from orchestrator.spec.expand import expand

RISE = 1.25
HYDRA_JOBS = 40


class Line(NamedTuple):
    """One row of the table."""

    what: str
    ours: str
    peer: str
    limit: str
    ratio: float
    """Ours to the peer: what is compared between commits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    before = ratios(given.against.read_text()) if given.against else {}
    with tempfile.TemporaryDirectory() as name:
        lines = []
        for line in measured(Path(name), given.keep or Path(name) / "finished"):
            lines.append(line)
            print(" | ".join(map(str, line)), flush=True)
            if given.write:  # at each line: a run that is stopped leaves what it measured
                given.write.write_text(table(lines))
    for line in lines:
        if (old := before.get(line.what)) and line.ratio > RISE * old:
            print(f"rose: {line.what}: {line.ratio:.3g} times its peer, and was {old:.3g}")


def measured(folder: Path, keep: Path) -> Iterator[Line]:
    job = hydra_multirun(folder)
    yield Line("H, a no-op job of hydra --multirun", f"{job:.3f} CPU s", "", "", 1.0)
    cost = min(measure([ORCH, "--help"]) for _ in range(5))
    yield against_hydra("orch --help", cost.cpu_seconds, cost.peak_mib, job, "0.15 s")
    for cells, limit in ((1000, "none set"), (10_000, "8 H, 150 MB"), (100_000, "90 H, 600 MB")):
        spec = grid_spec(folder / f"bench_{cells}.yaml", cells)
        cost = measure([ORCH, "plan", spec], cwd=folder, codes=(3,))
        yield against_hydra(f"plan of {cells:,} cells", cost.cpu_seconds, cost.peak_mib, job, limit)
    spec = grid_spec(folder / "unlike_10000.yaml", 10_000, seeds=False)
    cost = measure([ORCH, "plan", spec], cwd=folder, codes=(3,))
    what = "plan of 10,000 cells, no two of which differ in their seed alone"
    yield against_hydra(what, cost.cpu_seconds, cost.peak_mib, job, "none set")
    faulty = folder / "faulty_100000.yaml"
    faulty.write_text(grid_spec(faulty, 100_000).read_text().replace("[k1, k3]", "[k1, k33]"))
    cost = measure([ORCH, "plan", faulty], cwd=folder, codes=(1,))
    yield against_hydra("faults of 100,000 cells", cost.cpu_seconds, cost.peak_mib, job, "1 s")
    yield expansion(folder / "bench_10000.yaml")
    keep.mkdir(exist_ok=True)
    spec = keep / "bench_10000.yaml"
    if not (keep / "runs").exists():
        finished(grid_spec(spec, 10_000), keep)
    measure([ORCH, "status"], cwd=keep)  # writes the index
    for argv, what in (
        (["status"], "status"),
        (["status", spec, "site=local"], "status of a spec"),
    ):
        cost = measure([ORCH, *argv], cwd=keep)
        what = f"{what}, 10,000 ended cells, warm"
        yield against_hydra(what, cost.cpu_seconds, cost.peak_mib, job, "2 s")
    yield from page_opened(folder)
    yield evaluated()
    yield from trained()  # imports torch: a process that this one starts later would have its peak


def hydra_multirun(folder: Path) -> float:
    """Return the CPU seconds of a job of Hydra's own sweep, of a task that does nothing."""
    (folder / "noop.yaml").write_text("x: 0\n")
    (folder / "noop.py").write_text(
        "import hydra\n"
        "@hydra.main(config_path='.', config_name='noop', version_base=None)\n"
        "def main(cfg): pass\n"
        "main()\n"
    )
    many, one = (
        measure([sys.executable, "noop.py", *more], cwd=folder).cpu_seconds
        for more in (["--multirun", f"x=range({HYDRA_JOBS})"], [])
    )
    return (many - one) / (HYDRA_JOBS - 1)


def against_hydra(what: str, spent: float, mib: float, job: float, limit: str) -> Line:
    ours = f"{spent:.2f} CPU s, {mib:.0f} MiB"
    return Line(what, ours, f"{spent / job:.1f} H", limit, spent / job)


def expansion(path: Path) -> Line:
    """Return the time of expanding and hashing, beside a dict and its sha256 for each cell.

    The smallest of five: Python's garbage collector runs in some of them.
    """
    load(path)
    spec = load(path)
    ours, bare = [], []
    for _ in range(5):
        started = time.process_time()
        cells = expand(spec.model_copy())  # `load` has kept its own expansion
        ours.append(time.process_time() - started)
        plain = cells[0].settings.model_dump()
        started = time.process_time()
        for seed in range(len(cells)):
            line = json.dumps({**plain, "seed": seed}, sort_keys=True)
            hashlib.sha256(line.encode()).hexdigest()
        bare.append(time.process_time() - started)
    each, of_bare = (min(seconds) / len(cells) * 1e3 for seconds in (ours, bare))
    return Line(
        "expanding and hashing a cell",
        f"{each:.4f} CPU ms",
        f"{of_bare:.4f} CPU ms: a dict and its sha256; SEML 0.027 ms (elsewhere)",
        "none set",
        each / of_bare,
    )


def page_opened(folder: Path) -> Iterator[Line]:
    """Open the page of the most cells in a browser, beside that of a few.

    CPU seconds are of the page's main thread. Yield nothing without a browser.
    """
    import report

    if not report.is_there():
        return
    openings = []
    for shape in (report.SMALL, report.LARGE):
        page = folder / f"{shape.cells}.html"
        argv = ["-m", "benchmarks.report", "x".join(map(str, shape)), str(page)]
        subprocess.run([sys.executable, *argv], cwd=Path(__file__).parent.parent, check=True)
        openings.append(min((report.opened(page) for _ in range(3)), key=lambda each: each.cpu))
    few, many = openings
    size = f"{page.stat().st_size / 1e6:.1f} MB"
    yield Line(
        f"first figure of a page of {report.LARGE.cells:,} cells in Chromium",
        f"{many.cpu:.2f} CPU s, {many.first:.2f} s by the clock; {size}",
        f"{few.cpu:.2f} CPU s: a page of {report.SMALL.cells} cells",
        "4 s by the clock",
        many.cpu / few.cpu,
    )


def evaluated() -> Line:
    """Score micro checkpoints, beside the harness alone."""
    import evaluate

    costs = evaluate.measured()
    return Line(
        "evaluating a checkpoint at micro scale: 4 tasks, 512 items",
        f"{costs.each:.3f} CPU s",
        f"{costs.harness_each:.3f} CPU s: lm-evaluation-harness alone",
        f"{evaluate.BAR_CPU_SECONDS} CPU s",
        costs.each / costs.harness_each,
    )


def trained() -> Iterator[Line]:
    """Train at micro scale, beside U: one update of one cell, unpacked and under autograd."""
    import grid
    import micro_update

    seed = grid.one_seed()
    cells = f"{micro_update.CELLS} cells"
    rounds = micro_update.measure(["unpacked", cells])
    unit, ours = (min(rounds[name]) for name in ("unpacked", cells))
    floor = micro_update.floor_ms() / unit
    yield Line(
        f"update of the embedded trainer, one of {cells}",
        f"{ours:.2f} CPU ms",
        f"{unit:.1f} CPU ms: U; the products of weights alone {floor:.2f} U",
        f"{micro_update.BAR} U",
        ours / unit,
    )
    peer = seed.peer(unit)
    yield Line(
        f"one seed of comedy_full, {seed.cells} cells",
        f"{seed.whole.cpu_seconds:.0f} CPU s, {seed.whole.wall_seconds:.0f} s by the clock, "
        f"{seed.whole.peak_mib / 1024:.2f} GiB",
        f"{peer:.0f} CPU s: {seed.cells} x {grid.UPDATES} U",
        f"{grid.BAR} of it, {grid.BAR_GIB} GiB",
        seed.whole.cpu_seconds / peer,
    )


def table(lines: list[Line]) -> str:
    commit = "unknown"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        argv = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        commit = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    load_ = os.getloadavg()[0]
    head = (
        "# Benchmarks\n\n`make bench` printed this. Ratio: ours to the peer, or to H.\n\n"
        f"Commit {commit}, {datetime.now(UTC):%Y-%m-%d}. Machine: {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load {load_:.1f} at the end "
        "(a load above the number of cores makes all CPU seconds larger).\n\n"
        "| what | ours | peer | limit | ratio |\n|---|---|---|---|---|\n"
    )
    rows = [f"| {x.what} | {x.ours} | {x.peer} | {x.limit} | {x.ratio:.3g} |\n" for x in lines]
    return head + "".join(rows)


def ratios(text: str) -> dict[str, float]:
    """Return what -> ratio of a table."""
    ratios = re.findall(r"^\| ([^|]+) \|.*\| ([0-9.e+-]+) \|$", text, re.MULTILINE)
    return {what: float(ratio) for what, ratio in ratios}


if __name__ == "__main__":
    sys.exit(main())
