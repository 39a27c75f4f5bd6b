"""Entry points and configurations of verl and its recipes, and which of them ignore KL keys."""

import re

from orchestrator.library.launch_keys import LONGEST_ENTRY
from orchestrator.library.launches import CommandWord

_MODULE = re.compile(
    r"^(verl\.(trainer|experimental)\.[\w.]*main\w*|verl\.experimental\.[\w.]*_main"
    r"|recipe\.[\w.]*main_\w+)$"
)
_FILE = re.compile(r"(^|/)(verl/trainer|recipe/[\w/]+)/main_\w+\.py$")

NOT_RL = re.compile(
    r"(main_generation|main_eval|sft_trainer|model_merger|main_generation_server)(\.py)?$"
)
"""Entry points that train without a reward, or do not train."""

DEAD_REWARD = re.compile(r"main_prime|main_flowrl|main_gkd")
"""recipe/prime/prime_ray_trainer.py, recipe/flowrl/flowrl_ray_trainer.py and recipe/gkd/
ray_trainer.py do not call apply_kl_penalty."""

STOCK = frozenset(
    {
        "ppo_trainer",
        "ppo_megatron_trainer",
        "dapo_trainer",
        "dapo_megatron_trainer",
        "entropy_trainer",
        "flowrl_trainer",
        "fully_async_ppo_trainer",
        "prime_trainer",
        "fully_async_ppo_megatron_trainer",
        "one_step_off_ppo_trainer",
        "one_step_off_ppo_megatron_trainer",
        "geo3k_multiturn_grpo",
        "geo3k_multiturn_megatron_grpo",
        "gsm8k_multiturn_grpo",
        "gsm8k_multiturn_grpo_server",
        "gsm8k_multiturn_grpo_w_interaction",
        "deepeyes_multiturn_grpo",
        "gsm8k_multiturn_megatron_grpo",
        "retool_multiturn_grpo",
        "rob_ppo_trainer",
        "rob_sac_trainer",
        "search_multiturn_grpo",
        "search_multiturn_grpo_one_step_off",
        "spin_trainer",
        "sppo_trainer",
        "transfer_queue_ppo_trainer",
        "transfer_queue_ppo_megatron_trainer",
        "legacy_ppo_trainer",
        "legacy_ppo_megatron_trainer",
        "ppo_trainer_split",
        "_self_",
        "gsm8k_multiturn_sf_grpo",
        "gsm8k_multiturn_sf_grpo_np",
        "ppo_torchtitan_trainer",
        "ppo_veomni_trainer",
    }
)
"""Configurations of verl's repository that leave the KL as ppo_trainer has it."""


def is_ours(text: str) -> bool:
    """Whether a word is an entry point of verl or of its recipes."""
    return len(text) < LONGEST_ENTRY and bool(_MODULE.match(text) or _FILE.search(text))


def config_name(words: tuple[CommandWord, ...]) -> str | None:
    """The configuration a command names, without folder and ending."""
    texts = [word.text for word in words]
    for i, text in enumerate(texts):
        name, _, value = text.partition("=")
        if name in ("--config-name", "-cn", "--config_name"):
            value = value or (texts[i + 1] if i + 1 < len(texts) else "")
            return value.strip("'\"").removesuffix(".yaml").rpartition("/")[2]
    return None
