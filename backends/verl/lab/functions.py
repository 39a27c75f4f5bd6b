"""verl's functions around the KL, of any release: policy losses, aggregations, advantages.

runner.py loads this file and asks it once (`functions`). Every function of trainer/ppo/
core_algos.py that is registered, or has the name of one of these kinds, is called on one batch with
the defaults of verl's configuration; what a release lacks, it has no entry for.
"""

import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

PACKAGE = "verl"
CORE, FUNCTIONAL = "trainer/ppo/core_algos.py", "utils/torch_functional.py"
GROUPS = "utils/groupwise.py"
HELPERS = ("masked_sum", "masked_mean", "masked_var", "masked_whiten")
LOSS_AGGREGATIONS = ("token-mean", "seq-mean-token-mean")
"""The values of loss_agg_mode with which each policy loss is called."""
AGGREGATIONS = (*LOSS_AGGREGATIONS, "seq-mean-token-sum", "seq-mean-token-sum-norm")
KL_ESTIMATORS = ("kl", "abs", "mse", "low_var_kl")


class ReadConfig(SimpleNamespace):
    """A configuration that is read by attribute, by key and by `get`."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return getattr(self, name, default)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a key."""
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        """Return True if there is such a key."""
        return hasattr(self, name)


CLIPS = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
POLICY_LOSS = {
    "loss_mode": "vanilla",
    "clip_cov_ratio": 0.25,
    "clip_cov_lb": -10.0,
    "clip_cov_ub": 10.0,
    "kl_cov_ratio": 0.25,
    "ppo_kl_coef": 0.1,
}
"""Keys of policy_loss; the shares of clip_cov and kl_cov are larger than verl's, so that they act
on some tokens of a small batch."""


class VerlFunctions:
    """The functions of one release."""

    file = CORE

    def __init__(self, sources: Any, version: str):
        self.sources, self.version = sources, version
        functional = sources.load(FUNCTIONAL, list(HELPERS), torch=__import__("torch"))
        within: dict[str, Any] = {"verl_F": functional, "ActorConfig": ReadConfig}
        if (sources.folder / GROUPS).is_file():
            groups = sources.load(GROUPS)
            within |= {name: getattr(groups, name) for name in ("as_torch_index", "group_mean_std")}
        self.core: ModuleType = sources.load(CORE, **within)

    def read(self, *_: object) -> dict[str, Any]:
        """Return no configuration: every function has the same one."""
        return {}

    def functions(self, batch: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Yield name, the function's name in the file, and a call without arguments.

        The call returns the value; its gradient is taken in `batch["logp"]`.
        """
        core = self.core
        for mode in AGGREGATIONS:
            yield (
                f"agg_loss {mode}",
                "agg_loss",
                _call(
                    core.agg_loss,
                    loss_mat=batch["logp"] ** 2,
                    loss_mask=batch["mask"],
                    loss_agg_mode=mode,
                ),
            )
        for name, function in self._policy_losses():
            for mode in LOSS_AGGREGATIONS:
                yield (
                    f"{name} {mode}",
                    function.__name__,
                    _call(
                        function,
                        old_log_prob=batch["old"],
                        log_prob=batch["logp"],
                        advantages=batch["advantages"],
                        response_mask=batch["mask"],
                        eos_mask=batch["mask"],
                        loss_agg_mode=mode,
                        cliprange=CLIPS["clip_ratio"],
                        cliprange_low=CLIPS["clip_ratio_low"],
                        cliprange_high=CLIPS["clip_ratio_high"],
                        clip_ratio_c=CLIPS["clip_ratio_c"],
                        config=ReadConfig(
                            **CLIPS,
                            **POLICY_LOSS,
                            policy_loss=ReadConfig(**POLICY_LOSS),
                            tau_pos=1.0,
                            tau_neg=1.05,
                            loss_agg_mode=mode,
                            loss_scale_factor=None,
                            global_batch_info={},
                        ),
                    ),
                )
        for name, function in vars(core).items():
            if name.startswith("compute_") and name.endswith("_outcome_advantage"):
                yield name.removeprefix("compute_"), name, self._advantage(function, batch)
        for name in KL_ESTIMATORS:
            yield (
                f"kl_penalty {name}",
                "kl_penalty",
                _call(
                    core.kl_penalty,
                    logprob=batch["logp"],
                    ref_logprob=batch["ref"],
                    kl_penalty=name,
                ),
            )

    def _policy_losses(self) -> Iterator[tuple[str, Any]]:
        registry = getattr(self.core, "POLICY_LOSS_REGISTRY", {})
        named = {"vanilla": getattr(self.core, "compute_policy_loss", None)} | dict(registry)
        for name in sorted(named):
            # It calls other losses by the rollout's log-probabilities, which are not given here.
            if named[name] is not None and name != "bypass_mode":
                yield name, named[name]

    def _advantage(self, function: Any, batch: Mapping[str, Any]) -> Any:
        import numpy as np
        import torch

        mask = batch["mask"]
        rewards = torch.zeros_like(mask)
        rewards[torch.arange(len(mask)), mask.sum(-1).long() - 1] = batch["rewards"]
        return _call(
            function,
            token_level_rewards=rewards,
            response_mask=mask,
            eos_mask=mask,
            index=np.array([str(each) for each in batch["groups"]], dtype=object),
            gamma=1.0,
            reward_baselines=0.5 * batch["rewards"],
            config=ReadConfig(gamma=1.0, norm_adv_by_std_in_grpo=True),
        )


def _call(function: Any, **given: Any) -> Any:
    """Return a call with those arguments that the release's function takes."""
    known = inspect.signature(function).parameters

    def call() -> Any:
        result = function(**{name: value for name, value in given.items() if name in known})
        return result[0] if isinstance(result, tuple) else result

    return call


def open_library(sources: Any, version: str) -> VerlFunctions:
    """Return the functions of a release for runner.py."""
    return VerlFunctions(sources, version)
