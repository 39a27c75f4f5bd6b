"""open-instruct's own KL functions, for orchestrator/lab/probes/runner.py.

A Python with torch runs it on a checkout, without an import of orch or open-instruct.
"""

from collections.abc import Mapping, Sequence
from typing import Any

PACKAGE = "."
WHOLE = ("loss",)
"""The places of a KL for which the whole update runs."""


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the launches to measure: a name, the KL's place, the words of the launch."""
    return [(f"--kl_estimator {each}", "loss", [str(each)]) for each in range(4)]


class OpenInstructKl:
    """estimate_kl with its two arguments as grpo_fast.py makes them."""

    def __init__(self, sources: Any, _version: str):
        import torch

        file = "open_instruct/model_utils.py"
        self.compute = sources.load(file, ["estimate_kl"], torch=torch).estimate_kl

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch, the only input of the functions."""
        return argv

    def kl(self, words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token, [N, T]."""
        policy = batch["logp"]
        difference = (policy - batch["ref"]).clamp(-40.0, 40.0)
        return self.compute(difference, (policy - batch["old"]).exp())[int(words[0])]

    def advantages(self, _: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return rewards and advantages of a task without a reward: both are zero."""
        return batch["mask"] * 0, batch["mask"] * 0

    def loss(self, words: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return the mean over tokens, as the trainer adds it to its policy loss."""
        return (self.kl(words, "loss", batch) * batch["mask"]).sum() / batch["mask"].sum()


def open_library(sources: Any, version: str) -> OpenInstructKl:
    """Return the functions of a release."""
    return OpenInstructKl(sources, version)
