"""The loss of a launch in each release of a library, with the defaults of that release.

It covers releases that orch does not drive, for a backend with `default_probe.py` (called by
runner.py) and `defaults.json` (the results). It needs only the source of a release and imports
nothing from it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.probes.measure import (
    ask_for_update,
    measured,
    models,
    name,
)
from orchestrator.probes.protocol import Inquiry, ProbeBatch, ProbeTarget, every_group

BETA = 0.5
LAUNCHES: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "beta": ("--beta", str(BETA)),
}
"""Name -> the KL options of a launch: none, or the coefficient alone."""
KEPT = "defaults.json"


def measured_defaults(
    library: str, version: str, where: ProbeTarget, defaults: Mapping[str, object]
) -> dict[str, Any]:
    """Return the measured objective of each of LAUNCHES in a release, on- and off-policy.

    Each has its gradient. `sources` has the hash of each function that was run.
    """
    inquiry = Inquiry(library, version)
    for on_policy in (True, False):
        for index, setting in enumerate(models(on_policy)):
            batch = every_group(setting)
            zero = [[0.0] * len(row) for row in batch["logp"]]
            inquiry.batch(name(on_policy, index), ProbeBatch(**{**batch, "advantages": zero}))
    for label, words in LAUNCHES.items():
        argv = ["grpo", *words]
        launch = inquiry.raw({"argv": argv, "files": {KEPT: json.dumps(defaults)}})
        for on_policy in (True, False):
            ask_for_update(inquiry, (label, on_policy), launch, on_policy, what="loss")
    answers, reply = inquiry.put(where, plugins.folder(library) / "default_probe.py")
    return {
        "sources": {key: each["sha256"] for key, each in reply.sources.items()},
        **{
            label: {
                "on_policy" if on else "off_policy": _kept(
                    measured(answers, (label, on), on, BETA if label == "beta" else 1.0)
                )
                for on in (True, False)
            }
            for label in LAUNCHES
        },
    }


def _kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a measurement with its gradient at the first policy only, rounded to 6 digits."""
    if "error" in answer:
        return dict(answer)
    first = [float(f"{x:.6g}") + 0.0 for x in answer["gradient"][0]]
    return {**answer, "gradient": [0.0 if abs(x) < 1e-12 else x for x in first]}


def read(library: str) -> Mapping[str, Any]:
    """Return release -> measurement of a library, oldest release first; {} if none was measured."""
    file = plugins.folder(library) / KEPT
    plain: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return plain


def as_text(releases: Mapping[str, Any]) -> str:
    """Return the text of the file, one release a line."""
    lines = ",\n".join(f" {json.dumps(v)}: {json.dumps(each)}" for v, each in releases.items())
    return f"{{\n{lines}\n}}\n"


def write(library: str, releases: Mapping[str, Any]) -> Path:
    """Write the measurements to the library's file. Return the file."""
    file = plugins.folder(library) / KEPT
    file.write_text(as_text(releases), encoding="utf-8")
    return file
