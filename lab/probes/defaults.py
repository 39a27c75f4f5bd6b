"""What a release's own loss makes of a launch that leaves the KL options out: defaults.json.

A backend with `lab/default_probe.py` is asked. Its `lab/adoption.py` has the members of
DefaultLaunches, besides those of every adoption.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from lab.libraries import folder, part
from lab.probes.measure import (
    REGIMES,
    ask_for_update,
    batch_name,
    measured_objective,
    models,
)
from lab.probes.protocol import Inquiry, ProbeBatch, ProbeTarget, every_group
from orchestrator import plugins
from orchestrator.files import read_json, write_text
from orchestrator.library.key_tables import version_tuple

DEFAULTS = "defaults.json"
PROBE = "default_probe.py"


class DefaultLaunches(Protocol):
    """The launches that `lab/default_probe.py` is asked, and the defaults that decide them."""

    @property
    def LAUNCHES(self) -> Mapping[str, Sequence[str]]:  # noqa: N802  (a constant of a module)
        """`nothing`, `beta` -> a launch that says nothing of the KL, or the coefficient alone."""

    @property
    def BETA(self) -> float:  # noqa: N802  (a constant of a module)
        """The coefficient of the launch `beta`."""

    @property
    def DECIDING(self) -> Sequence[str]:  # noqa: N802  (a constant of a module)
        """Options whose defaults decide what such a launch optimises."""

    def class_defaults(self, package: Path, /) -> Mapping[str, object]:
        """Return option -> default, read in the source of a release: the folder `package`."""


def read_defaults(library: str) -> Mapping[str, Any]:
    """Return release -> the measured launches under its defaults, oldest first; {} for none."""
    plain = read_json(plugins.folder(library) / DEFAULTS) or {}
    return dict(sorted(plain.items(), key=lambda item: version_tuple(item[0])))


def write_defaults(file: Path, version: str, measured: Mapping[str, Any]) -> None:
    """Write the measurement of a release into a file, beside those that it holds."""
    releases = {**(read_json(file) or {}), version: measured}
    lines = ",\n".join(
        f" {json.dumps(each)}: {json.dumps(releases[each])}"
        for each in sorted(releases, key=version_tuple)
    )
    write_text(file, f"{{\n{lines}\n}}\n")


def measure_defaults(library: str, version: str, where: ProbeTarget) -> dict[str, Any]:
    """Return the measured objective of each of the launches in a release, on- and off-policy.

    Each has its gradient. `sources` has the hash of each function that was run, `defaults` those of
    the release that decide.
    """
    adoption = cast("DefaultLaunches", part(library, "adoption"))
    if where.folder is None:
        raise TypeError("defaults are read in the folder of a release's source")
    defaults = adoption.class_defaults(where.folder)
    inquiry = Inquiry(library, version)
    for on_policy in (True, False):
        for index, setting in enumerate(models(on_policy)):
            batch = every_group(setting)
            zero = [[0.0] * len(row) for row in batch["logp"]]
            inquiry.add_batch(
                batch_name(on_policy, index), ProbeBatch(**{**batch, "advantages": zero})
            )
    for label, argv in adoption.LAUNCHES.items():
        launch = inquiry.add_own_launch(
            {"argv": list(argv), "files": {DEFAULTS: json.dumps(defaults)}}
        )
        for on_policy in (True, False):
            ask_for_update(inquiry, (label, on_policy), launch, on_policy, what="loss")
    answers, sources = inquiry.send(where, folder(library) / PROBE)
    return {
        "defaults": {key: defaults.get(key) for key in adoption.DECIDING},
        "sources": {key: each["sha256"] for key, each in sources.items()},
        **{
            label: {
                name: _rounded(measured_objective(answers, (label, on), on, beta))
                for name, on in REGIMES.items()
            }
            for label, beta in (("nothing", 1.0), ("beta", adoption.BETA))
        },
    }


def _rounded(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a measurement with its gradient at the first policy only, rounded to 6 digits."""
    if "error" in answer:
        return dict(answer)
    first = [float(f"{x:.6g}") + 0.0 for x in answer["gradient"][0]]
    return {**answer, "gradient": [0.0 if abs(x) < 1e-12 else x for x in first]}
