"""SkyRL's own numerical functions on the tensors of standard input, with this Python's torch.

python arithmetic.py SITE_PACKAGES. In: JSON [{"call": name, ...}]. Out: one JSON list.
"""

import json
import sys
import types
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[4] / "lab" / "skyrl"))
from absent import AbsentModules

torch.set_num_threads(1)


def ppo_utils(site):
    """skyrl.backends.skyrl_train.utils.ppo_utils, without what its package imports on the way."""
    sys.path.append(str(site))
    sys.meta_path.append(
        AbsentModules(
            {"ray", "jaxtyping", "cloudpickle", "loguru", "omegaconf", "s3fs", "fsspec", "gcsfs"}
        )
    )
    import skyrl

    package = types.ModuleType("skyrl.backends")
    package.__path__ = [str(Path(skyrl.__path__[0]) / "backends")]
    sys.modules["skyrl.backends"] = skyrl.backends = package
    from skyrl.backends.skyrl_train.utils import ppo_utils

    return ppo_utils


def loss(lib, asked):
    logp = torch.tensor(asked["logp"], requires_grad=True)
    config = lib.AlgorithmConfig(**asked["config"])
    value, metrics = lib.ppo_policy_loss(
        logp,
        torch.tensor(asked["old"]),
        torch.tensor(asked["advantages"]),
        config,
        loss_mask=torch.tensor(asked["mask"]),
        rollout_logprobs=torch.tensor(asked["old"]),
    )
    (slope,) = torch.autograd.grad(value, logp)
    return {"value": value.item(), "slope": slope.tolist(), "metrics": metrics}


def named(plain):
    """Return nested mappings as objects with attributes."""
    if isinstance(plain, dict):
        return types.SimpleNamespace(**{name: named(value) for name, value in plain.items()})
    return plain


def policy(lib, asked):
    """Return a policy loss in double precision; `config`: what SkyRL made of a launch."""
    config = named(asked["config"])
    logp, old, engine, gained, mask = (
        torch.tensor(asked[name], dtype=torch.float64)
        for name in ("logp", "old", "engine", "advantages", "mask")
    )
    share = lib.apply_loss_reduction_to_advantages_minibatch(
        gained,
        mask,
        config.loss_reduction,
        micro_batch_size=len(mask),
        max_seq_len=config.max_seq_len,
    )
    value, _ = lib.PolicyLossRegistry.get(config.policy_loss_type)(
        logp.requires_grad_(), old, share, config, loss_mask=mask, rollout_logprobs=engine
    )
    (slope,) = torch.autograd.grad(value, logp)
    return value.item(), slope.tolist()


CALLS = {"loss": loss, "policy": policy}
library = ppo_utils(sys.argv[1])
answers = [CALLS[asked["call"]](library, asked) for asked in json.load(sys.stdin)]
print("ANSWER " + json.dumps(answers))
