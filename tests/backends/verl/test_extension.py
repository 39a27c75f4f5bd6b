"""What orch adds to verl; its numbers are held against the embedded trainer in test_dialect.py."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.verl import extension


def test_k1_to_go_refuses_rewards_without_a_kl() -> None:
    registered: dict[str, Any] = {}
    core = SimpleNamespace(
        kl_penalty=None,
        register_adv_est=lambda name: lambda function: registered.setdefault(name, function),
    )
    extension.install(SimpleNamespace(kl_penalty=None, get_policy_loss_fn=None), core)
    rewards, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(RuntimeError, match="use_kl_in_reward"):
        registered["orch_to_go_rloo"](token_level_rewards=rewards, response_mask=mask)
