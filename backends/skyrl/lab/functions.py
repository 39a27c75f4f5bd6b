"""SkyRL's functions around the KL, of any release: policy losses, reductions, advantages.

runner.py loads this file and asks it once (`functions`). Each registered loss and advantage is
called on one batch with the defaults of SkyRL's configuration; what a release lacks, it has no
entry for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .probes import KL_ESTIMATORS, LEAST, MOST, PACKAGE, UTILS, load_losses

__all__ = ["PACKAGE", "open_library"]

AGGREGATIONS = (
    "token_mean",
    "token_mean_legacy",
    "sequence_mean",
    "seq_mean_token_sum_norm",
    "prompt_mean",
)
LOSS_AGGREGATIONS = ("token_mean", "sequence_mean")
"""The aggregations with which each policy loss is called."""
LARGER = {"clip_cov.clip_ratio": 0.25, "clip_cov.clip_cov_lb": -10.0, "clip_cov.clip_cov_ub": 10.0}
"""clip_cov acts on some tokens of a small batch."""
BOTH = {"low": LEAST, "high": MOST}
CORRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "tis token": {"tis_ratio_type": "token"},
    "tis sequence": {"tis_ratio_type": "sequence"},
    "token mask": {f"token_mask_is_threshold_{side}": value for side, value in BOTH.items()},
    "outlier mask": {f"outlier_token_is_threshold_{side}": value for side, value in BOTH.items()},
    "geometric mask": {"sequence_mask_metric": "geometric"},
    "product mask": {"sequence_mask_metric": "product"},
}
"""Keys of off_policy_correction; thresholds that have a default keep it."""
LONGEST = 8
"""max_seq_len, the divisor of seq_mean_token_sum_norm."""
REDUCE = "apply_loss_reduction_to_advantages_minibatch"


class SkyRlFunctions:
    """The functions of one release."""

    file = UTILS

    def __init__(self, sources: Any):
        self.sources = sources
        loaded = load_losses(sources)
        self.config, self.utils = loaded.config, loaded.utils

    def read(self, *_: object) -> dict[str, Any]:
        """Return no configuration: every function has the same one."""
        return {}

    def functions(self, batch: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Yield name, the function's name in the file, and a call without arguments.

        The call returns the value; its gradient is taken in `batch["logp"]`.
        """
        registry = self.utils.PolicyLossRegistry
        registry.repopulate_registry()
        for name in sorted(registry.list_available()):
            for reduction in LOSS_AGGREGATIONS:
                call = self._loss(batch, name, loss_reduction=reduction)
                yield f"{name} {reduction}", registry.get(name).__wrapped__.__name__, call
        for name, options in CORRECTIONS.items():
            given = {f"off_policy_correction.{key}": value for key, value in options.items()}
            yield f"regular with {name}", "ppo_policy_loss", self._loss(batch, "regular", **given)
        if hasattr(self.utils, REDUCE):
            for reduction in AGGREGATIONS:
                yield f"reduction {reduction}", REDUCE, self._reduced(batch, reduction)
        estimators = self.utils.AdvantageEstimatorRegistry
        estimators.repopulate_registry()
        for name in sorted(estimators.list_available()):
            function = estimators.get(name)
            call = self._advantage(batch, function)
            yield f"advantage {name}", function.__wrapped__.__name__, call
        for name in KL_ESTIMATORS:
            yield f"compute_approx_kl {name}", "compute_approx_kl", self._kl(batch, name)

    def _loss(self, batch: Mapping[str, Any], name: str, **options: Any) -> Callable[[], Any]:
        """Return the loss of a minibatch that is one micro-batch, of its advantages as scaled."""
        given = {"loss_reduction": "token_mean", "max_seq_len": LONGEST, **LARGER, **options}
        config = self.config.AlgorithmConfig(policy_loss_type=name)
        for key, value in given.items():
            at: Any = config
            *way, leaf = key.split(".")
            for part in way:
                at = getattr(at, part)
            setattr(at, leaf, value)

        def call() -> Any:
            advantages = batch["advantages"]
            if hasattr(self.utils, REDUCE):
                advantages = self._reduced(batch, config.loss_reduction)()
            value, _ = self.utils.PolicyLossRegistry.get(name)(
                batch["logp"],
                batch["old"],
                advantages,
                config,
                loss_mask=batch["mask"],
                rollout_logprobs=batch["engine"],
            )
            return value

        return call

    def _reduced(self, batch: Mapping[str, Any], reduction: str) -> Callable[[], Any]:
        more: dict[str, Any] = {}
        if reduction == "prompt_mean":
            first = batch["groups"].index(1)
            more["prompt_boundaries"] = [(0, first), (first, len(batch["groups"]))]
        return lambda: getattr(self.utils, REDUCE)(
            batch["advantages"],
            batch["mask"],
            reduction,
            micro_batch_size=2,
            max_seq_len=LONGEST,
            **more,
        )

    def _advantage(self, batch: Mapping[str, Any], function: Any) -> Callable[[], Any]:
        import numpy as np
        import torch

        mask = batch["mask"]
        rewards = torch.zeros_like(mask)
        rewards[torch.arange(len(mask)), mask.sum(-1).long() - 1] = batch["rewards"]
        return lambda: function(
            token_level_rewards=rewards.clone(),
            response_mask=mask,
            index=np.array([str(each) for each in batch["groups"]], dtype=object),
            values=0.3 * batch["ref"],
            gamma=1.0,
            lambd=1.0,
            grpo_norm_by_std=True,
        )[0]

    def _kl(self, batch: Mapping[str, Any], name: str) -> Callable[[], Any]:
        return lambda: self.utils.compute_approx_kl(
            batch["logp"], batch["ref"], batch["mask"], kl_estimator_type=name
        )


def open_library(sources: Any, _version: str) -> SkyRlFunctions:
    """Return the functions of a release for runner.py."""
    return SkyRlFunctions(sources)
