"""Measure the KL of a library that orch only reads, in functions of its checkout."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestrator.probes.alone import PROBE, kept_file
from orchestrator.probes.measure import (
    WEIGHTS,
    ask_for_update,
    classify,
    measured,
    prepare_objectives,
)
from orchestrator.probes.protocol import Inquiry, ProbeTarget, curve

BETA = 1.0


def measure(
    library: str, version: str, folder: Path, python: Path | None = None
) -> Mapping[str, Any]:
    """Return the measurement of each launch in a library's kl_probe.py, out of a checkout."""
    inquiry = Inquiry(library, version)
    prepare_objectives(inquiry)
    for name, weight in WEIGHTS.items():
        inquiry.batch(f"curve {name}", curve(weight))
    launches = _launches(library, version)
    for label, place, argv in launches:
        number = inquiry.raw({"argv": list(argv), "files": {}})
        for name in WEIGHTS:
            key = (label, place, "curve", name)
            inquiry.question(key, "kl", number, f"curve {name}", place=place)
        if place in _whole(library):
            for on_policy in (True, False):
                ask_for_update(inquiry, (label, place, on_policy), number, on_policy)
    target = ProbeTarget(python or Path(sys.executable), folder)
    answers, reply = inquiry.put(target, kept_file(library, PROBE))
    return {
        "commit": _commit(folder),
        "sources": {name: each["sha256"] for name, each in reply.sources.items()},
        "rows": [
            {"name": label, "place": place, **_row(answers, label, place, _whole(library))}
            for label, place, _ in launches
        ],
    }


def _row(
    answers: Mapping[Any, Mapping[str, Any]], label: str, place: str, whole: Sequence[str]
) -> dict[str, Any]:
    """Return the curve of an estimator's name, and the objective of its whole update."""
    curves = {name: answers[label, place, "curve", name] for name in WEIGHTS}
    failed = next((each["error"] for each in curves.values() if "error" in each), None)
    if failed:
        return {"error": failed}
    # The value may be clamped after it is weighted. Its gradient is then 0 at a large weight, and
    # that is no bound of the weight.
    known = {k: v for k, v in asdict(classify(curves)).items() if v is not None}
    if known.get("weight_bound") == 0:
        del known["weight_bound"]
    row: dict[str, Any] = {"curve": known}
    at = (label, place)
    for on_policy in (True, False) if place in whole else ():
        answer = measured(answers, (label, place, on_policy), on_policy, BETA)
        kept = {key: value for key, value in answer.items() if key != "gradient"}
        if not any(_has_gradient(answers[key]) for key in answers if key[:3] == (*at, on_policy)):
            kept["dropped"] = True
        row["on_policy" if on_policy else "off_policy"] = kept
    return row


def _has_gradient(answer: Mapping[str, Any]) -> bool:
    """Return True if any token of an update has a gradient."""
    return any(each for row in answer.get("gradient", ()) for each in row)


def _launches(library: str, version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the launches to measure in a release: a name for people, the KL's place, the words."""
    module = import_module(f"backends.{library}.kl_probe")
    launches: Sequence[tuple[str, str, Sequence[str]]] = module.launches(version)
    return launches


def _whole(library: str) -> Sequence[str]:
    """Return the places of a KL for which the probe runs the whole update."""
    places: Sequence[str] = import_module(f"backends.{library}.kl_probe").WHOLE
    return places


def _commit(folder: Path) -> str:
    """Return the commit of a checkout or of an archive with a file COMMIT; else an empty text."""
    note = folder / "COMMIT"
    if note.is_file():
        return note.read_text(encoding="utf-8").strip()
    done = subprocess.run(
        [str(shutil.which("git")), "-C", str(folder), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
