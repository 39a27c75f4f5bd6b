"""NeMo-RL's own KL functions, for orchestrator/lab/probes/runner.py.

A Python with torch runs it on a checkout, without an import of orch or NeMo-RL.
"""

from collections.abc import Mapping, Sequence
from typing import Any

PACKAGE = "."
WHOLE = ("loss",)
"""The places of a KL for which the whole update runs."""


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the launches to measure: a name, the KL's place, the words of the launch."""
    return [(each, "loss", [each]) for each in ("k1", "k2", "k3")]


class NemoRlKl:
    """calculate_kl with the weight that ClippedPGLossFn of the release gives it."""

    def __init__(self, sources: Any, version: str):
        import torch

        file = "nemo_rl/algorithms/utils.py"
        self.compute = sources.load(file, ["calculate_kl"], torch=torch).calculate_kl
        self.has_score = tuple(map(int, version.split("."))) >= (0, 7)

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch, the only input of the functions."""
        return argv

    def kl(self, words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token, [N, T]."""
        policy, reference = batch["logp"], batch["ref"]
        if not self.has_score:
            return self.compute(policy, reference, words[0])
        weight = (policy - policy.detach()).exp()
        return self.compute(policy, reference, words[0], importance_sampling_weights=weight)

    def advantages(self, _: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return rewards and advantages of a task without a reward: both are zero."""
        return batch["mask"] * 0, batch["mask"] * 0

    def loss(self, words: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return the mean over tokens, as the trainer adds it to its policy loss."""
        return (self.kl(words, "loss", batch) * batch["mask"]).sum() / batch["mask"].sum()


def open_library(sources: Any, version: str) -> NemoRlKl:
    """Return the functions of a release."""
    return NemoRlKl(sources, version)
