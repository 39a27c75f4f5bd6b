"""AReaL's own KL functions, for orchestrator/probes/runner.py.

Run by a Python with torch beside a checkout; nothing of orch or of AReaL is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

PACKAGE = "."
WHOLE = ()
"""The places whose update can be asked for as a whole."""


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return what is asked: a name, the KL's place, the words of a launch."""
    return [(each, "reward", [each]) for each in ("k1", "k2", "k3")]


class ArealKl:
    """KLEstimator, with the clamp that the trainer leaves on."""

    def __init__(self, sources: Any, _version: str):
        import torch

        file, name = "areal/utils/data.py", "KLEstimator._compute_approx_kl"
        self.compute = getattr(sources.load(file, [name], torch=torch), name.partition(".")[2])

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch, which are all that the functions take."""
        return argv

    def kl(self, words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token."""
        return self.compute(batch["logp"], batch["ref"], words[0], True)


def open_library(sources: Any, version: str) -> ArealKl:
    """Return the functions of a release."""
    return ArealKl(sources, version)
