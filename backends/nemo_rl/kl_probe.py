"""NeMo-RL's own KL functions, for orchestrator/probes/runner.py.

Run by a Python with torch beside a checkout; nothing of orch or of NeMo-RL is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

PACKAGE = "."
WHOLE = ("loss",)
"""The places whose update can be asked for as a whole."""


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return what is asked: a name, the KL's place, the words of a launch."""
    return [(each, "loss", [each]) for each in ("k1", "k2", "k3")]


class NemoRlKl:
    """calculate_kl with the weight that ClippedPGLossFn of the release gives it."""

    def __init__(self, sources: Any, version: str):
        import torch

        file = "nemo_rl/algorithms/utils.py"
        self.compute = sources.load(file, ["calculate_kl"], torch=torch).calculate_kl
        self.has_score = tuple(map(int, version.split("."))) >= (0, 7)

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch, which are all that the functions take."""
        return argv

    def kl(self, words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token."""
        policy, reference = batch["logp"], batch["ref"]
        if not self.has_score:
            return self.compute(policy, reference, words[0])
        weight = (policy - policy.detach()).exp()
        return self.compute(policy, reference, words[0], importance_sampling_weights=weight)

    def advantages(self, _: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return rewards and advantages of a task without a reward: zero."""
        return batch["mask"] * 0, batch["mask"] * 0

    def loss(self, words: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return the mean over tokens, as the trainer adds it to its policy loss."""
        return (self.kl(words, "loss", batch) * batch["mask"]).sum() / batch["mask"].sum()


def open_library(sources: Any, version: str) -> NemoRlKl:
    """Return the functions of a release."""
    return NemoRlKl(sources, version)
