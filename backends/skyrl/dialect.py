"""The differences between SkyRL 0.2.0 to 0.4.0 and the embedded trainer in what a cell means.

Sources: backends/skyrl_train/utils/ppo_utils.py (compute_approx_kl, ppo_policy_loss, advantage
estimators), backends/skyrl_train/workers/worker.py (the KL in the loss; the reference policy's
_forward_micro_batch, at temperature 1), train/trainer.py (apply_reward_kl_penalty). The KL in the
reward is summed over the response, inside the group's plain baseline.
"""

from backends.skyrl.launch.orch_skyrl import LARGEST_LOG_RATIO
from backends.skyrl.manifest import MANIFEST, counts_steps
from orchestrator.kl.estimators import Clamp
from orchestrator.kl.library_semantics import Dialect, Semantics

K3_CLAMP = Clamp(log_ratio=20.0, value=10.0)
"""The clamp in compute_approx_kl, with the same bounds as verl's."""

_NEWER = Dialect(
    kl_clamp=K3_CLAMP,
    kl_clamp_of=("k3",),
    kl_reward_policy="batch_start",
    reference_temperature="one",
    kl_loss_mean="sequence_mean",
    ratio_bound=LARGEST_LOG_RATIO,
    warmup_from_zero=True,
    staleness="up_to",
    precision=("bf16", "bf16", "fp32"),
)
"""The dialect since 0.3.0. Asynchronous cells use orch_skyrl.py's loss: ratios to the sampler."""
_OLDER = _NEWER.model_copy(update={"ratio_to": "batch_start"})
"""The dialect before 0.3.0. SkyRL's own PPO loss trains asynchronous cells, and its old policy is
the current one."""

_OMITS = (
    "weights change while a response is being sampled: its tokens are of several policies",
    "single rollouts may be older than the bound, which SkyRL only warns of",
)
SEMANTICS = {
    version: Semantics(_NEWER if counts_steps(version) else _OLDER, _OMITS)
    for version in MANIFEST.versions
}
