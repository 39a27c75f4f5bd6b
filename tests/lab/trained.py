"""What the real libraries trained in these tests, and the table of it.

docs/libraries.md shows the table.

    ORCH_KEEP_RECORDS=1 pytest -m real tests/lab     keeps a record of each run
    PYTHONPATH=tests python -m tests.lab.trained      prints the table

A record names the test that made it. A test that trains something else than its record says fails.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lab.prove.text import FOLDER as PROOFS
from orchestrator import plugins
from orchestrator.files import read_json, write_text
from tests.backends.cpu_meter import KEEPS_RECORDS

FOLDER = Path(__file__).parent
RECORDS = "trained.json"
"""In the folder of a library's tests."""
KILLED = "killed and resumed"
HEADER = ("library", "release", "parsed", "probed", "trained here", "predicted = observed to")
NEEDS_CHECKOUT = ("prime_rl",)
"""Not on a package registry: its tests need a git repository."""
REPLAYED = {("trl", "1.9.2"): "2e-4 (tests/backends/trl/test_replay.py)"}
"""Releases that a test replays without keeping a proof, with its tolerance."""
STOPS: dict[tuple[str, str], str] = {
    ("verl", "0.9.1"): "asynchronous: refused on a CPU",
    ("trl", "1.16.0"): "GPU launches never run",
    ("prime_rl", "0.5.0"): "not on a registry: tests need a checkout",
}
"""Release -> where it stops, for what a test refuses or skips. Releases without any CPU launch are
said so by the table itself."""


class TrainedRecord(NamedTuple):
    """One run of a real library."""

    test: str
    """The node of pytest that trains it."""
    release: str
    cell: str
    steps: int
    cpu_seconds: float | None
    """Of all its processes, as measured when the record was kept. None: not measured, as where
    processes of Ray are nobody's children."""


def kept(library: str) -> list[TrainedRecord]:
    """Return the records of a library's tests."""
    held = read_json(FOLDER / library / RECORDS) or {"runs": []}
    return [TrainedRecord(**each) for each in held["runs"]]


def hold(
    library: str, release: str, cell: str, steps: int, cpu_seconds: float | None = None
) -> None:
    """Hold a run of the current test to its record; keep it instead if the variable asks so."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    rounded = None if cpu_seconds is None else float(round(cpu_seconds))
    ours = TrainedRecord(test, release, cell, steps, rounded)
    records = {(each.test, each.cell): each for each in kept(library)}
    if os.environ.get(KEEPS_RECORDS):
        records[test, cell] = ours
        rows = [each._asdict() for _, each in sorted(records.items())]
        write_text(FOLDER / library / RECORDS, json.dumps({"runs": rows}, indent=1) + "\n")
        return
    known = records.get((test, cell))
    assert known is not None, f"no record of {test}: ORCH_KEEP_RECORDS=1 keeps one"
    assert (known.release, known.steps) == (release, steps), known


def table() -> str:
    """Return the table, Markdown, for docs/libraries.md."""
    titles = (*HEADER, "stops at")
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for library in (name for name in plugins.names() if name != "micro"):
        backend = plugins.load(library)
        lines += [f"| {' | '.join(_row(library, v))} |" for v in backend.versions]
    return "\n".join(lines) + "\n"


def _row(library: str, version: str) -> tuple[str, ...]:
    folder = plugins.folder(library)
    yes = "with a checkout" if library in NEEDS_CHECKOUT else "yes"
    parsed = (folder / "environments" / f"{version}.contract.txt").is_file()
    probed = (folder / "evidence" / f"{version}.json").is_file()
    here = (folder / "environments" / f"{version}.cpu.txt").is_file()
    stops = STOPS.get((library, version), "" if here else "no launch without a GPU")
    return (
        plugins.load(library).title,
        version,
        yes if parsed else "no",
        yes if probed else "no",
        _trained(library, version),
        _observed(library, version) or "not replayed",
        stops,
    )


def _trained(library: str, version: str) -> str:
    runs = [each for each in kept(library) if each.release == version]
    if not runs:
        return "no"
    steps = sum(each.steps for each in runs)
    said = [f"{len(runs)} runs, {steps} train steps"]
    measured = [each for each in runs if each.cpu_seconds is not None]
    if measured:
        seconds = sum(each.cpu_seconds or 0 for each in measured)
        of_steps = sum(each.steps for each in measured)
        said.append(f"{seconds:.0f} CPU s for {of_steps} of them")
    if any(KILLED in each.cell for each in runs):
        said.append(KILLED)
    return "; ".join(said)


def proofs() -> Iterator[dict[str, Any]]:
    """Yield the proofs of every release that are kept beside the backends."""
    for library in plugins.names():
        for path in sorted((plugins.folder(library) / PROOFS).glob("*.json")):
            if (content := read_json(path)) is not None:
                yield content


@cache
def _proofs() -> dict[tuple[str, str], list[float]]:
    worst: dict[tuple[str, str], list[float]] = {}
    for held in proofs():
        for proof in held["proofs"]:
            if (norm := proof["quantities"].get("grad_norm")) is not None:
                worst.setdefault((held["library"], held["version"]), []).append(norm["worst"])
    return worst


def _observed(library: str, version: str) -> str:
    worst = _proofs().get((library, version))
    if not worst:
        return REPLAYED.get((library, version), "")
    cells = f"{len(worst)} cell{'s' * (len(worst) > 1)}"
    return f"{max(worst):.1e} in {cells}"


if __name__ == "__main__":
    print(table(), end="")
