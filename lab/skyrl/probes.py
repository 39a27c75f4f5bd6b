"""SkyRL's own KL, rewards, advantages and policy loss, for lab/probes/runner.py.

It runs on SkyRL's installed source. The methods of trainer and policy worker are SkyRL's. Ray and
the model are stand-ins: a forward pass returns the batch's log-probabilities. One minibatch, one
micro-batch, one device.
"""

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from lab.probes.protocol import LEAST, MOST, Bounds, OwnLaunch
from lab.probes.shared import at_last_token, loss_of, overrides, stop_at_backward, value_of

PACKAGE = "skyrl"
UTILS = "backends/skyrl_train/utils/ppo_utils.py"
TORCH_UTILS = "backends/skyrl_train/utils/torch_utils.py"
CORRECTION = "backends/skyrl_train/utils/off_policy_correction_utils.py"
CONFIG, TRAINER = "train/config/config.py", "train/trainer.py"
WORKER = "backends/skyrl_train/workers/worker.py"
SHIPPED = "orch_skyrl.py"
ALGORITHM = "trainer.algorithm."
KL_ESTIMATORS = ("k1", "k2", "k3", "abs")
STOOD_IN = (
    "Ray, registries of other processes and the model: a forward pass returns the "
    "log-probabilities asked about"
)
TYPICAL = {"reward": "k1", "loss": "k3"}
"""Place -> an estimator that orch can send to SkyRL. The arguments of `names` replace it."""


def names(_version: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return place, name and further arguments of every estimator that SkyRL has a name for."""
    return [
        (place, name, (f"{ALGORITHM}kl_estimator_type={name}",))
        for place in ("reward", "loss")
        for name in KL_ESTIMATORS
    ]


def silent(_version: str) -> OwnLaunch:
    """Return a launch that sets nothing about KL."""
    return OwnLaunch([])


OFF_POLICY = f"{ALGORITHM}off_policy_correction."


def corrections(_version: str) -> dict[str, OwnLaunch]:
    """Return launches with each correction of the engine's mismatch, in SkyRL's own words."""
    by_options = {"nothing set": _corrected({}, (None, None))._replace(is_silent=True)}
    token = {"tis_ratio_type": "token", "token_tis_ratio_clip_high": MOST}
    for options in (
        token,
        {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": MOST},
        _within("token_mask_is_threshold"),
        {**token, **_within("token_mask_is_threshold")},
        {"sequence_mask_metric": "geometric", **_within("geo_mask")},
        {"sequence_mask_metric": "product", **_within("product_mask")},
        _within("outlier_token_is_threshold"),
    ):
        least = LEAST if LEAST in options.values() else None
        by_options[" ".join(overrides(options))] = _corrected(options, (least, MOST))
    loss = {"policy_loss_type": "rollout_is", "eps_clip_low": 1 - LEAST, "eps_clip_high": MOST - 1}
    own = overrides(loss, ALGORITHM)
    by_options[" ".join(overrides(loss))] = _corrected({}, (LEAST, MOST), *own)
    return by_options


def _within(option: str) -> dict[str, Any]:
    return {f"{option}_low": LEAST, f"{option}_high": MOST}


def _corrected(options: Mapping[str, Any], bounds: Bounds, *more: str) -> OwnLaunch:
    """Return a launch with a correction and k2 in the loss."""
    plain = {
        "use_kl_in_reward": "false",
        "use_kl_loss": "true",
        "kl_estimator_type": "k2",
        "kl_loss_coef": 0.5,
        "loss_reduction": "token_mean",
    }
    argv = [*overrides(plain, ALGORITHM), *overrides(options, OFF_POLICY), *more]
    return OwnLaunch(argv, bounds=bounds, estimator="k2")


def ratio_levels(_version: str) -> dict[str, OwnLaunch]:
    """Return launches with each level of the importance ratio, in SkyRL's own words."""
    losses = (f"policy_loss_type={kind}" for kind in ("regular", "gspo"))
    return {loss: _corrected({}, (None, None), f"{ALGORITHM}{loss}") for loss in losses}


CONTROLLER = "kl_ctrl.type=adaptive"


def controller(_version: str, target: float, horizon: int, beta: float) -> OwnLaunch:
    """Return a launch with the adaptive controller of a KL in the reward."""
    options = {
        "kl_ctrl.type": "adaptive",
        "kl_ctrl.kl_target": target,
        "kl_ctrl.horizon": horizon,
        "kl_loss_coef": beta,
        "kl_estimator_type": "k1",
        "use_kl_in_reward": "true",
        "use_kl_loss": "false",
    }
    return OwnLaunch(overrides(options, ALGORITHM))


class TrainingBatch(dict[str, Any]):
    """SkyRL's TrainingInputBatch, as far as its trainer's methods use it."""

    def __init__(self, tensors: Mapping[str, Any], groups: Sequence[int]):
        super().__init__(tensors)
        self.metadata: dict[str, Any] = {"uids": [str(group) for group in groups]}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return {name: None if x is None else x[key] for name, x in self.items()}
        return super().__getitem__(key)


class SkyRlProbes:
    """SkyRL's functions and its typed configuration, of the algorithm."""

    def __init__(self, sources: Any, _version: str):
        import numpy as np
        import torch

        torch.cuda.current_device = lambda: 0
        sys.modules.setdefault("loguru", MagicMock())  # imported inside its functions
        load = sources.load
        torch_utils = load(TORCH_UTILS, ["masked_mean", "safe_exp_delta"], torch=torch)
        shared = {name: getattr(torch_utils, name) for name in ("masked_mean", "safe_exp_delta")}
        correction = load(CORRECTION, **shared)
        sources.uses(CORRECTION, "apply_off_policy_correction")
        self.config: ModuleType = load(CONFIG)
        # Ray's decorator would make actors of the classes.
        ray = SimpleNamespace(remote=lambda function: function, is_initialized=lambda: False)
        self.utils: ModuleType = load(
            UTILS,
            ray=ray,
            logger=MagicMock(),
            AlgorithmConfig=self.config.AlgorithmConfig,
            apply_off_policy_correction=correction.apply_off_policy_correction,
            **shared,
        )
        reduction = "apply_loss_reduction_to_advantages_minibatch"
        own = {
            "compute_approx_kl": self.utils.compute_approx_kl,
            "ppo_utils": self.utils,
            "PolicyLossRegistry": self.utils.PolicyLossRegistry,
            "torch": torch,
            "np": np,
            "logger": MagicMock(),
            reduction: getattr(self.utils, reduction),
            **shared,
        }
        trainer = "RayPPOTrainer."
        self.trainer: ModuleType = load(
            TRAINER,
            [trainer + name for name in ("apply_reward_kl_penalty", "_normalize_advantages")],
            **own,
        )
        self.worker: ModuleType = load(WORKER, ["PolicyWorkerBase._forward_backward_micro"], **own)
        sources.uses(
            UTILS,
            "compute_approx_kl",
            "ppo_policy_loss",
            "compute_rloo_outcome_advantage",
            "compute_grpo_outcome_advantage",
            reduction,
        )

    def read(self, argv: Sequence[str], files: Mapping[str, str]) -> Any:
        """Return SkyRL's configuration with a launch's overrides; register our functions."""
        algorithm = self.config.AlgorithmConfig()
        both = False
        for argument in argv:
            key, equals, value = argument.partition("=")
            if key == "orch.kl_in_loss_too":
                both = value == "true"
            if not equals or not key.startswith(ALGORITHM):
                continue
            at: Any = algorithm
            *way, leaf = key.removeprefix(ALGORITHM).split(".")
            for name in way:
                at = getattr(at, name)
            if not hasattr(at, leaf):
                raise ValueError(f"SkyRL's configuration has no {key}")
            setattr(at, leaf, value_of(value))
        algorithm.temperature = 1.0  # what its validation takes from the sampling parameters
        if both:
            algorithm.use_kl_loss = True
        elif algorithm.use_kl_in_reward and algorithm.use_kl_loss:
            raise ValueError("use_kl_in_reward and use_kl_loss should be mutually exclusive")
        if SHIPPED in files:
            self._register(files[SHIPPED])
        trainer = SimpleNamespace(algorithm=algorithm, micro_train_batch_size_per_gpu=1)
        return SimpleNamespace(trainer=trainer)

    def _register(self, text: str) -> None:
        ours: dict[str, Any] = {"__name__": "asked"}
        exec(compile(text, SHIPPED, "exec"), ours)  # noqa: S102  (our own file, as a launch ships it)
        registries = self.utils.AdvantageEstimatorRegistry, self.utils.PolicyLossRegistry
        for registry, name, function in (
            (registries[0], "orch_reinforce", ours["reinforce"]),
            (registries[1], "orch_rollout_ppo", ours["rollout_ppo"]),
            (registries[1], "orch_rollout_dual_clip", ours["rollout_ppo"]),
        ):
            if name not in registry.list_available():
                registry.register(name, function)

    def kl(self, config: Any, _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL [N, T]. SkyRL has one function for both places."""
        name = config.trainer.algorithm.kl_estimator_type
        return self.utils.compute_approx_kl(batch["logp"], batch["ref"], kl_estimator_type=name)

    def advantages(self, config: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return token rewards and advantages [N, T], before SkyRL scales them for the loss."""
        mask = batch["mask"]
        data = self._rewarded(config, batch, at_last_token(batch["rewards"], mask), None)
        rewards = data["rewards"]
        advantages, _ = self.utils.compute_advantages_and_returns(
            token_level_rewards=rewards,
            response_mask=mask,
            index=data.metadata["uids"],
            adv_estimator=config.trainer.algorithm.advantage_estimator,
            config=config.trainer.algorithm,
            values=None,
            gamma=config.trainer.algorithm.gamma,
            lambd=config.trainer.algorithm.lambd,
            grpo_norm_by_std=config.trainer.algorithm.grpo_norm_by_std,
        )
        return rewards, advantages

    def controlled(self, config: Any, batch: Mapping[str, Any]) -> float:
        """Return beta after apply_reward_kl_penalty of a batch, with the launch's controller."""
        control = self.utils.get_kl_controller(config.trainer.algorithm)
        self._rewarded(config, batch, 0 * batch["mask"], control)
        return float(control.value)

    def _rewarded(
        self, config: Any, batch: Mapping[str, Any], scores: Any, control: Any
    ) -> TrainingBatch:
        """Return a batch with the rewards of tokens [N, T], less a KL if the launch has it there.

        control: the controller of its beta, or None.
        """
        data = TrainingBatch(
            {
                "loss_mask": batch["mask"],
                "response_mask": batch["mask"],
                "rewards": scores,
                "values": None,
                "base_action_log_probs": batch["ref"],
                "action_log_probs": batch["old"],
            },
            batch["groups"],
        )
        trainer = MagicMock()
        trainer.cfg, trainer.reward_kl_controller, trainer.all_metrics = config, control, {}
        if config.trainer.algorithm.use_kl_in_reward:
            data = self.trainer.apply_reward_kl_penalty(trainer, data)
        return data

    def loss(self, config: Any, batch: Mapping[str, Any]) -> Any:
        """Return the worker's loss of one micro-batch, which is the whole minibatch."""
        import torch

        mask, size = batch["mask"], len(batch["mask"])
        trainer = MagicMock()
        trainer.cfg = config
        data = TrainingBatch(
            {"advantages": batch["advantages"], "loss_mask": mask, "response_mask": mask},
            batch["groups"],
        )
        scaled = self.trainer._normalize_advantages(  # noqa: SLF001  (the library's own function is what is asked)
            trainer, data, [(0, size)]
        )["advantages"]
        worker = MagicMock()
        worker.cfg = SimpleNamespace(algorithm=config.trainer.algorithm)
        worker.mesh_rank.dp_size = 1
        name = config.trainer.algorithm.policy_loss_type
        worker.policy_loss_fn = self.utils.PolicyLossRegistry.get(name)
        entropy = torch.zeros(size, mask.shape[1] + 1)
        worker.model = lambda *_, **__: (batch["logp"], {"entropy": entropy})
        worker.model.train = lambda: None
        worker.strategy.backward = stop_at_backward
        experience = MagicMock()
        experience.action_log_probs, experience.base_action_log_probs = batch["old"], batch["ref"]
        experience.advantages, experience.num_actions = scaled, mask.shape[1]
        experience.loss_mask = experience.response_mask = experience.action_mask = mask
        experience.rollout_logprobs = batch.get("engine", batch["old"])
        micro = self.worker._forward_backward_micro  # noqa: SLF001  (the library's own function is what is asked)
        return loss_of(micro, worker, experience, 1.0)


PROBES = SkyRlProbes
