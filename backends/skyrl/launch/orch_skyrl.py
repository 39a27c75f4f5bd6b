"""Trains one cell with SkyRL. orch writes this file into a cell's plan; it needs SkyRL alone.

    python orch_skyrl.py key=value ...

Arguments are SkyRL's own overrides, and these for what SkyRL has no key for:
    orch.chat_template=none         prompts as they are, without a chat template
    orch.kl_in_loss_too=true        with trainer.algorithm.use_kl_in_reward: the loss has it as well
    orch.max_training_steps=N       SkyRL < 0.3.0: stop after N rollout batches
    orch.asynchronous=true          train asynchronously (no entry point of SkyRL's wheel does)
Registered with SkyRL: the environment `orch` (the reward is reward.py beside this file), the
advantage estimator `orch_reinforce`, the policy losses `orch_rollout_ppo` and
`orch_rollout_dual_clip`.

Run as a script, all this is pickled by value into Ray's tasks. A class made inside a function finds
no name of this module there, so annotations stay text.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

OPTIONS: Mapping[str, str] = {
    "chat_template": "default",
    "kl_in_loss_too": "false",
    "max_training_steps": "0",
    "asynchronous": "false",
}
CONTENT_ONLY = (
    "{% if bos_token %}{{ bos_token }}{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
LARGEST_LOG_RATIO = 20.0
"""As SkyRL bounds it before taking the exponential."""


def split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options of this file, with defaults, and SkyRL's overrides. Exits on an unknown option."""
    options, overrides = dict(OPTIONS), []
    for argument in argv:
        if not argument.startswith("orch."):
            overrides.append(argument)
            continue
        name, _, value = argument.removeprefix("orch.").partition("=")
        if name not in OPTIONS:
            raise SystemExit(f"orch.{name} is no option of {__file__}: {', '.join(OPTIONS)}")
        options[name] = value
    return options, overrides


def reinforce(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Return a response's reward, KL penalty included, as the advantage of each of its tokens."""
    total = token_level_rewards.sum(dim=-1, keepdim=True)
    advantages = total * response_mask
    return advantages, advantages


def rollout_ppo(
    log_probs: Any,
    old_log_probs: Any,  # noqa: ARG001 - SkyRL's signature
    advantages: Any,
    config: Any,
    loss_mask: Any = None,
    rollout_logprobs: Any = None,
) -> tuple[Any, dict[str, float]]:
    """PPO's clipped loss with the ratio to the policy that sampled, summed over tokens.

    `advantages` come scaled for the aggregation of the loss; all arguments are [sequences, tokens].
    """
    import torch

    if rollout_logprobs is None:
        raise ValueError(f"{config.policy_loss_type} needs generator.sampling_params.logprobs=1")
    mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask.to(log_probs.dtype)
    # Before the exponential: an infinite gap of a masked token would become NaN times 0.
    gap = torch.where(mask.bool(), log_probs - rollout_logprobs, torch.zeros_like(log_probs))
    ratio = gap.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    bounded = ratio.clamp(1 - config.eps_clip_low, 1 + config.eps_clip_high)
    loss = torch.max(-ratio * advantages, -bounded * advantages)
    clipped = (-bounded * advantages > -ratio * advantages).to(log_probs.dtype) * mask
    if config.policy_loss_type == "orch_rollout_dual_clip":
        capped = torch.min(loss, -advantages * config.clip_ratio_c)
        loss = torch.where(advantages < 0, capped, loss)
    share = clipped.sum() / mask.sum().clamp(min=1)
    return (loss * mask).sum(), {"clip_ratio": share.detach().item()}


def register() -> None:
    """Register these functions in this process; SkyRL's initialize_ray sends them to all others."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        AdvantageEstimatorRegistry,
        PolicyLossRegistry,
    )

    AdvantageEstimatorRegistry.register("orch_reinforce", reinforce)
    PolicyLossRegistry.register("orch_rollout_ppo", rollout_ppo)
    PolicyLossRegistry.register("orch_rollout_dual_clip", rollout_ppo)


def environment(reward_file: Path) -> type:
    """Return a SkyRL environment of one turn, rewarded by a file's `score(response, answer)`."""
    from skyrl_gym.envs.base_text_env import (
        BaseTextEnv,
        BaseTextEnvStepOutput,
    )

    spec = importlib.util.spec_from_file_location("orch_reward", reward_file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(reward_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    score: Callable[[str, str], float] = module.score

    class Answer(BaseTextEnv):
        def __init__(self, extras: Mapping[str, Any], **_: Any):
            super().__init__()
            self.answer = extras["reward_spec"]["ground_truth"]

        def step(self, action: str) -> Any:
            reward = score(action, self.answer)
            return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})

    return Answer


def repeated(rows: Any, count: int, seed: int) -> Any:
    """Exactly `count` rows of a datasets.Dataset: whole shuffled passes over it, the last cut."""
    from datasets import concatenate_datasets

    passes = [rows.shuffle(seed=seed + n) for n in range(-(-count // len(rows)))]
    return concatenate_datasets(passes).select(range(count))


def number_last_export(trainer: Any) -> None:
    """Give the last export the number of the last step. The asynchronous trainer counts one step
    more before it saves for the last time, and may have exported that policy already."""
    save = trainer.save_models

    def save_models() -> None:
        last = trainer.total_training_steps
        if trainer.global_step <= last:
            save()
            return
        counted = trainer.global_step
        trainer.global_step = last
        try:
            exports = Path(trainer.cfg.trainer.export_path)
            if not (exports / f"global_step_{last}" / "policy" / "tokenizer_config.json").exists():
                save()
        finally:
            trainer.global_step = counted

    trainer.save_models = save_models


def train(config: Any, options: Mapping[str, str], folder: Path, tensorboard: str) -> None:
    """Train in a Ray task, which need not run on the head node."""
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl_gym.envs.registration import register as register_environment

    os.environ["TENSORBOARD_DIR"] = tensorboard
    register_environment(id="orch", entry_point=environment(folder / "reward.py"))
    batches = int(options["max_training_steps"])

    class Experiment(BasePPOExp):
        def get_train_dataset(self) -> Any:
            if options["chat_template"] == "none":
                self.tokenizer.chat_template = CONTENT_ONLY
            dataset = super().get_train_dataset()
            if batches:
                count = batches * config.trainer.train_batch_size
                dataset.dataframe = repeated(dataset.dataframe, count, config.trainer.seed)
            return dataset

        def get_trainer(self, *args: Any, **kwargs: Any) -> Any:
            if options["asynchronous"] != "true":
                return super().get_trainer(*args, **kwargs)
            from skyrl.train.fully_async_trainer import (
                FullyAsyncRayPPOTrainer,
            )

            trainer = FullyAsyncRayPPOTrainer(*args, **kwargs)
            number_last_export(trainer)
            return trainer

    Experiment(config).run()


def main() -> None:
    """Read the launch's own options, start Ray, and train."""
    import ray
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import (
        initialize_ray,
        validate_cfg,
    )

    options, overrides = split(sys.argv[1:])
    register()
    config = SkyRLTrainConfig.from_cli_overrides(overrides)
    validate_cfg(config)
    if options["kl_in_loss_too"] == "true":
        # SkyRL's validator refuses both; its reward and its loss read one flag each.
        config.trainer.algorithm.use_kl_loss = True
    initialize_ray(config)
    folder = Path(__file__).resolve().parent
    tensorboard = str(Path(os.environ.get("TENSORBOARD_DIR", "tensorboard_log")).resolve())
    ray.get(ray.remote(num_cpus=1)(train).remote(config, options, folder, tensorboard))


if __name__ == "__main__":
    main()
