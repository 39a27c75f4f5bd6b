"""AReaL's own KL functions, for orchestrator/lab/probes/runner.py.

A Python with torch runs it on a checkout, without an import of orch or AReaL.
"""

from collections.abc import Mapping, Sequence
from typing import Any

PACKAGE = "."
WHOLE = ()
"""The places of a KL for which the whole update runs."""


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the launches to measure: a name, the KL's place, the words of the launch."""
    return [(each, "reward", [each]) for each in ("k1", "k2", "k3")]


class ArealKl:
    """KLEstimator, with the clamp that the trainer leaves on."""

    def __init__(self, sources: Any, _version: str):
        import torch

        file, name = "areal/utils/data.py", "KLEstimator._compute_approx_kl"
        self.compute = getattr(sources.load(file, [name], torch=torch), name.partition(".")[2])

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch, the only input of the functions."""
        return argv

    def kl(self, words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token, [N, T]."""
        return self.compute(batch["logp"], batch["ref"], words[0], True)


def open_library(sources: Any, version: str) -> ArealKl:
    """Return the functions of a release."""
    return ArealKl(sources, version)
