"""The differences between OpenRLHF and the embedded trainer in what a cell means.

Sources, of 0.11.2 and 0.10.1.post2: models/utils.py (compute_approx_kl, compute_reward),
models/loss.py (PolicyLoss, aggregate_loss), trainer/ppo_utils/experience_maker.py
(compute_advantages_and_returns), trainer/ray/ppo_actor.py (training_step).
"""

from backends.openrlhf.flags import is_flat
from backends.openrlhf.manifest import MANIFEST, PLAIN_ESTIMATORS, PROMPT_ORDER, SHUFFLED
from backends.openrlhf.translate import LARGEST_MICRO_BATCH
from orchestrator.kl.estimators import Clamp
from orchestrator.kl.library_semantics import Dialect, Semantics

KL_CLAMP = Clamp(value=10.0)
"""The clamp in compute_approx_kl of every estimator, since 0.8.6."""
KL_RATIO_MAX = 10.0
"""KL_IS_WEIGHT_CLIP of models/utils.py."""
LOG_RATIO_BOUND = 20.0
"""Since 0.11 PolicyLoss clamps the log-ratio to plus and minus this before the exponential."""

_DOTTED = Dialect(
    kl_clamp=KL_CLAMP,
    kl_clamp_of=PLAIN_ESTIMATORS,
    kl_ratio_max=KL_RATIO_MAX,
    kl_reward="to_go",
    kl_reward_policy="batch_start",
    kl_loss_mean="token_mean",
    ratio_to="batch_start",
    ratio_bound=LOG_RATIO_BOUND,
    std_epsilon=1e-9,
    decay_of="matrices",
    warmup_from_zero=True,
    staleness="up_to",
    precision=("bf16", "bf16", "bf16"),
)
_FLAT = _DOTTED.model_copy(
    update={
        "kl_ratio_max": None,
        "kl_loss_mean": "as_policy",
        "ratio_bound": None,
        "micro_batch": LARGEST_MICRO_BATCH,
    }
)
"""The dialect of 0.10.1.post2. It divides each micro-batch by its own tokens. With sequence_mean a
micro-batch is one sequence, so the KL's mean over the micro-batch is the mean over the sequence."""

_OMITS = (f"seed: {PROMPT_ORDER}", f"batch.num_minibatches: {SHUFFLED}")
SEMANTICS = {
    version: Semantics(_FLAT if is_flat(version) else _DOTTED, _OMITS)
    for version in MANIFEST.versions
}
