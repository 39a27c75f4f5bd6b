"""slime's own KL functions, for orchestrator/lab/probes/runner.py.

A Python with torch runs it on a checkout, without an import of orch or slime.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

PACKAGE = "."
WHOLE = ("loss", "reward")
"""The places of a KL for which the whole update runs."""


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the launches to measure: a name, the KL's place, the words of the launch."""
    names = ("k1", "k2", "k3", "low_var_kl")
    plain = [(each, "loss", [each, "loss"]) for each in names]
    weighted = [(f"{each} --use-unbiased-kl", "loss", [each, "loss", "ratio"]) for each in names]
    return [*plain, *weighted, ("k1 --kl-coef 1, grpo", "reward", ["k1"])]


class SlimeKl:
    """compute_approx_kl, the returns of grpo and PPO's loss, as policy_loss_function calls them."""

    def __init__(self, sources: Any, _version: str):
        import torch

        self.torch = torch
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        names = ["compute_approx_kl", "get_grpo_returns", "compute_policy_loss"]
        self.own = sources.load("slime/utils/ppo_utils.py", names, torch=torch)

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch, the only input of the functions."""
        return argv

    def kl(self, words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token, [N, T]."""
        ratio = (batch["logp"] - batch["old"]).exp() if "ratio" in words else None
        return self.own.compute_approx_kl(batch["logp"], batch["ref"], words[0], ratio)

    def advantages(self, words: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return rewards and advantages of grpo, which gets the KL of each rollout."""
        kl = list(self.own.compute_approx_kl(batch["old"], batch["ref"], words[0]))
        returns = self.torch.stack(self.own.get_grpo_returns(batch["rewards"], kl))
        return returns, returns

    def loss(self, words: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return the mean over tokens of PPO's loss, unclipped, and of the KL where it is asked."""
        ppo_kl = batch["old"] - batch["logp"]
        policy, _ = self.own.compute_policy_loss(ppo_kl, batch["advantages"], 1e9, 1e9)
        if "loss" in words:
            policy = policy + self.kl(words, "loss", batch)
        return (policy * batch["mask"]).sum() / batch["mask"].sum()


def open_library(sources: Any, version: str) -> SlimeKl:
    """Return the functions of a release."""
    return SlimeKl(sources, version)
