"""The differences between TRL and the embedded trainer in what a cell means.

Sources: trainer/grpo_trainer.py (_compute_loss, _generate_and_score_completions), trainer/
rloo_trainer.py (the same). The KL in the reward is summed over the response, inside the group's
leave-one-out baseline, which is plain; k3 has no clamp.
"""

from backends.trl.manifest import LONGER_PROMPTS, MANIFEST, SHUFFLED
from orchestrator.kl.library_semantics import Dialect, Semantics

STD_EPSILON = 1e-4

_DIALECT = Dialect(
    std_epsilon=STD_EPSILON,
    ratio_level="sequence_if_kl_reward",
    mean_over="batch",
    decay_of="matrices",
    warmup_from_zero=True,
    precision=("bf16", "bf16", "fp32"),
)
_OMITS = (
    f"batch.num_minibatches: {SHUFFLED}",
    f"data.max_prompt_tokens: {LONGER_PROMPTS}",
)
SEMANTICS = dict.fromkeys(MANIFEST.versions, Semantics(_DIALECT, _OMITS))
"""The releases differ in defaults, but the values that orch sends have the same meaning in both."""
