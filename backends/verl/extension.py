"""An external module of verl's: KL weighted by the importance ratio, a KL in the reward that is
charged to later tokens only, and plain REINFORCE.

Shipped beside a launch as orch_verl.py and named in VERL_USE_EXTERNAL_MODULES, it is imported in
every process at the end of `import verl`. It wraps two functions that ppo_loss looks up in its own
module, and kl_penalty as apply_kl_penalty looks it up, and registers advantage estimators. Written
for verl 0.8.0 and 0.9.1.
"""

import importlib
import threading
from collections.abc import Callable
from typing import Any

Tensor = Any

WEIGHTED = {
    "rho_k1": ("k1", True),
    "rho_k2": ("k2", True),
    "sg_rho_k2": ("k2", False),
    "rho_k3": ("k3", True),
}
"""kl_loss_type -> verl's own estimator, and whether the ratio that multiplies it has a gradient."""
REINFORCE = "orch_reinforce"
"""algorithm.adv_estimator: the reward itself."""
TO_GO = {kind: f"orch_to_go_{kind}" for kind in ("rloo", "grpo", "dr_grpo", "reinforce")}
"""algorithm.adv_estimator: the reward from each token on, with the baseline of that name."""


def install(losses: Any, core_algos: Any) -> None:
    """Teach verl's loss the estimators of WEIGHTED, and the trainer the advantage REINFORCE.

    `losses`: verl.workers.utils.losses; `core_algos`: verl.trainer.ppo.core_algos.
    """
    context = threading.local()
    own_lookup, own_kl = losses.get_policy_loss_fn, losses.kl_penalty

    def get_policy_loss_fn(name: str) -> Callable[..., Any]:
        policy_loss = own_lookup(name)

        def remembering(*, old_log_prob: Tensor, **rest: Any) -> Any:
            # kl_penalty is called right after, in the same thread, and is not given this.
            context.old_log_prob = old_log_prob
            return policy_loss(old_log_prob=old_log_prob, **rest)

        return remembering

    def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
        if kl_penalty not in WEIGHTED:
            return own_kl(logprob, ref_logprob, kl_penalty)
        plain, has_gradient = WEIGHTED[kl_penalty]
        estimate = own_kl(logprob, ref_logprob, plain)
        ratio = (logprob - context.old_log_prob.detach()).exp()
        return (ratio if has_gradient else ratio.detach()) * estimate

    own_reward_kl = core_algos.kl_penalty

    def reward_kl(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
        # apply_kl_penalty adds it to the rewards; an advantage estimator is given their sum alone
        context.reward_kl = own_reward_kl(logprob, ref_logprob, kl_penalty)
        return context.reward_kl

    losses.get_policy_loss_fn, losses.kl_penalty = get_policy_loss_fn, kl_penalty
    core_algos.kl_penalty = reward_kl
    core_algos.register_adv_est(REINFORCE)(reinforce)
    for kind, name in TO_GO.items():
        core_algos.register_adv_est(name)(_to_go(kind, context))


def reinforce(
    token_level_rewards: Tensor, response_mask: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """Return the reward of each response as the advantage of its tokens, and as returns: [rollouts,
    T] both.
    """
    returns = token_level_rewards.sum(-1, keepdim=True) * response_mask
    return returns, returns


def _to_go(kind: str, context: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the advantages of the reward from each token on: [rollouts, T] both.

    verl puts the task's reward on the last token and takes the KL off each, so that a token keeps
    the task's reward, and is charged its own KL and that of later tokens. The baseline is of each
    position, over the group; there a response that has ended counts with the task's reward.
    `context.reward_kl` [rollouts, T]: the KL in these rewards, before beta.
    """

    def advantages(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        kl = getattr(context, "reward_kl", None)
        if kl is None or kl.shape != token_level_rewards.shape:
            raise RuntimeError(
                f"{TO_GO[kind]} needs algorithm.use_kl_in_reward=true and the KL of the same "
                "responses: apply_kl_penalty has not computed it"
            )
        masked, lengths = token_level_rewards * response_mask, response_mask.long().sum(-1)
        # The sum from each token to the end: a cumulative sum of the reversed row.
        ahead = masked.flip(-1).cumsum(-1).flip(-1)
        last = lengths.sub(1).clamp(min=0)[:, None]
        # Places count the response's tokens from 1, with gaps in the mask left out.
        places = response_mask.long().cumsum(-1) * response_mask.long()
        before = (places > 0) & (places < lengths[:, None])
        # before the last token a reward is the penalty alone; a controller may have moved beta
        square = (kl * kl * before).sum()
        # Least squares of -reward over kl: exact, as every such reward is -beta · kl.
        beta = -(masked * kl * before).sum() / square if square > 0 else 0.0
        # The last token's reward is the task's less beta · kl; the kl is added back.
        task = ahead.gather(-1, last) + beta * kl.gather(-1, last)
        value = ahead.where(response_mask.bool(), task)
        groups: dict[Any, list[int]] = {}
        for row, name in enumerate(range(len(value)) if index is None else index):
            groups.setdefault(name, []).append(row)
        gains = value.clone()
        for rows in groups.values():
            gains[rows] = _centred(kind, value[rows])
        gains = gains * response_mask
        return gains, gains

    return advantages


def _centred(kind: str, value: Tensor) -> Tensor:
    """Return [n, T] less the baseline of each position, as verl's estimators have it."""
    count = len(value)
    if kind == "reinforce" or count < 2:
        return value
    centred = value - value.mean(0)
    if kind == "rloo":
        # value - mean of the others = (value - mean of all) · n / (n - 1)
        return centred * (count / (count - 1))
    return centred / (value.std(0) + 1e-6) if kind == "grpo" else centred


if __name__ == "orch_verl":
    install(
        importlib.import_module("verl.workers.utils.losses"),
        importlib.import_module("verl.trainer.ppo.core_algos"),
    )
