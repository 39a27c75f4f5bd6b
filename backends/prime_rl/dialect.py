"""The differences between Prime-RL and the embedded trainer in what a cell means.

A cell runs through orch's loss and advantages (hooks.py). The KL in the reward is summed over the
response and subtracted after the baseline, because the advantage hook gets no log-probabilities.
Sources: hooks.py; trainer/rl/loss.py (default_loss_fn, compute_loss) at the release.
"""

from backends.prime_rl.manifest import AGGREGATION, LAG, LINEAR, MANIFEST
from orchestrator.kl.library_semantics import Dialect, Semantics

_DIALECT = Dialect(
    kl_reward="outside",
    kl_reward_policy="batch_start",
    constant_is_tokens=True,
    warmup_from_zero=True,
    staleness="up_to",
    precision=("bf16", "model", "bf16"),
)
"""The dialect. A batch is one train step, so the current policy is the one before its update."""

_OMITS = (
    f"loss.aggregation: {AGGREGATION['token_mean']}",
    f"max_staleness_steps: {LAG}",
    f"optimizer.schedule linear: {LINEAR}",
)
SEMANTICS = dict.fromkeys(MANIFEST.versions, Semantics(_DIALECT, _OMITS))
