"""OpenRLHF's functions around the KL, of any release: policy loss, reward, advantages, KL.

runner.py loads this file and asks it once (`functions`). PolicyLoss has other arguments in other
releases, and the command line other names: LOSSES and ADVANTAGES name what both mean. What a
release lacks, it has no entry for.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .probes import LEAST, LOSS, MAKER, MOST, PACKAGE, UTILS, OpenRlhfProbes, silent

__all__ = ["PACKAGE", "open_library"]

TOKEN_CORRECTION = {"is_correction_level": "token", "enable_vllm_is_correction": True}
LOSSES: Mapping[str, Mapping[str, Any]] = {
    "ppo": {},
    "ppo of each response": {"token_level_loss": False},
    "ppo, bounds apart": {"clip_eps_low": 0.2, "clip_eps_high": 0.28},
    "dual clip": {"dual_clip": 3.0},
    "gspo": {"policy_loss_type": "gspo"},
    "ppo, truncated weights": {
        **TOKEN_CORRECTION,
        "is_correction_mode": "clip",
        "vllm_is_correction_type": "tis",
    },
    "ppo, masked weights": {
        **TOKEN_CORRECTION,
        "is_correction_mode": "mask",
        "vllm_is_correction_type": "icepop",
    },
    "ppo, masked responses": {
        "is_correction_level": "seq",
        "is_correction_mode": "mask",
        "enable_vllm_is_correction": True,
        "vllm_is_correction_type": "seq-mask-tis",
    },
}
"""Arguments of PolicyLoss, in the words of every release."""
ADVANTAGES = ("rloo", "reinforce", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")
KL_ESTIMATORS = ("k1", "k2", "k3")


class OpenRlhfFunctions:
    """The functions of one release."""

    file = LOSS

    def __init__(self, sources: Any, version: str):
        self.sources, self.version = sources, version
        self.library = OpenRlhfProbes(sources)

    def read(self, *_: object) -> dict[str, Any]:
        """Return no configuration: every function has its own."""
        return {}

    def functions(self, batch: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Yield name, file and name of the function, and a call without arguments.

        The call returns the value; its gradient is taken in `batch["logp"]`.
        """
        for name, options in LOSSES.items():
            if call := self._loss(batch, options):
                yield name, "PolicyLoss.forward", call
        method = f"{MAKER}:RemoteExperienceMaker.compute_advantages_and_returns"
        for estimator in ADVANTAGES:
            yield f"advantage {estimator}", method, self._advantage(batch, estimator)
        for name in KL_ESTIMATORS:
            yield f"compute_approx_kl {name}", f"{UTILS}:compute_approx_kl", self._kl(batch, name)
        if "unbiased_gradient" in _arguments(self.library.utils.compute_approx_kl):
            call = self._kl(batch, "k3", log_probs_old=batch["old"], unbiased_gradient=True)
            yield "compute_approx_kl k3, unbiased", f"{UTILS}:compute_approx_kl", call
        yield "compute_reward", f"{UTILS}:compute_reward", self._reward(batch)

    def _loss(
        self, batch: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Callable[[], Any] | None:
        known = _arguments(self.library.loss_module.PolicyLoss)
        given = {name: value for name, value in options.items() if name in known}
        if any(name in options and name not in known for name in ("dual_clip", "policy_loss_type")):
            return None
        if TOKEN_CORRECTION.keys() & options.keys():
            if "is_correction_threshold" in known:
                given["is_correction_threshold"] = (LEAST, MOST)
            elif "vllm_is_correction_type" in known:
                given["vllm_is_truncated_threshold"] = (LEAST, MOST)
            elif options.get("vllm_is_correction_type") == "tis" and given:
                given["vllm_is_truncated_threshold"] = MOST  # it had one bound
            else:
                return None
        loss = self.library.loss_module.PolicyLoss(**given)
        more = (
            {"rollout_log_probs": batch["engine"]}
            if "rollout_log_probs" in _arguments(loss.forward)
            else {}
        )

        def call() -> Any:
            value = loss(
                batch["logp"],
                batch["old"],
                batch["advantages"],
                action_mask=batch["mask"],
                **more,
            )
            return value[0] if isinstance(value, tuple) else value

        return call

    def _advantage(self, batch: Mapping[str, Any], estimator: str) -> Callable[[], Any]:
        def call() -> Any:
            rloo = silent(self.version)["argv"]
            config = self.library.read([estimator if x == "rloo" else x for x in rloo], {})
            return self.library.advantages(config, batch)[1]

        return call

    def _kl(self, batch: Mapping[str, Any], name: str, **more: Any) -> Callable[[], Any]:
        return lambda: self.library.utils.compute_approx_kl(
            batch["logp"], batch["ref"], kl_estimator=name, **more
        )

    def _reward(self, batch: Mapping[str, Any]) -> Callable[[], Any]:
        return lambda: self.library.utils.compute_reward(
            batch["rewards"],
            0.5,
            batch["logp"] - batch["ref"],
            action_mask=batch["mask"],
            reward_clip_range=(-0.2, 0.8),
        )


def _arguments(function: Any) -> Mapping[str, Any]:
    return inspect.signature(function).parameters


def open_library(sources: Any, version: str) -> OpenRlhfFunctions:
    """Return the functions of a release for runner.py."""
    return OpenRlhfFunctions(sources, version)
