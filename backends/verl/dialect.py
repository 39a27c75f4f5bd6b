"""The differences between verl 0.9.1 and 0.8.0 and the embedded trainer in what a cell means.

Sources: trainer/ppo/core_algos.py (kl_penalty, compute_policy_loss_vanilla), trainer/ppo/
ray_trainer.py (apply_kl_penalty), workers/utils/losses.py (ppo_loss). The KL in the reward is
summed over the response, inside the group's plain baseline.
"""

from backends.verl.manifest import LONGER_PROMPTS, MANIFEST
from orchestrator.kl.estimators import Clamp
from orchestrator.kl.library_semantics import Dialect, Semantics

K3_CLAMP = Clamp(log_ratio=20.0, value=10.0)
"""The clamp in kl_penalty of `k3` and `low_var_kl`."""
LOG_RATIO_BOUND = 20.0

_DIALECT = Dialect(
    kl_clamp=K3_CLAMP,
    kl_clamp_of=("k3",),
    ratio_bound=LOG_RATIO_BOUND,
    warmup_from_zero=True,
    schedule_per_batch=True,
    staleness="up_to",
    precision=("bf16", "bf16", "bf16"),
)
"""The dialect of both releases. An asynchronous launch of orch sets bypass_mode, so that ratios are
to the sampler in both."""

_OMITS = (
    "a response that new weights interrupt continues with them: its tokens are of several policies",
    f"data.max_prompt_tokens: {LONGER_PROMPTS}",
)
SEMANTICS = dict.fromkeys(MANIFEST.versions, Semantics(_DIALECT, _OMITS))
