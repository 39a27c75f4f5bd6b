"""The metrics that Prime-RL logs."""

from backends.prime_rl.metrics import ROWS
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, having, renamed

_KL = (
    LoggedMetric(
        "mismatch_kl/all/mean",
        "rollout/mismatch_kl",
        "no KL to a reference policy: k3 of the ratio between the trainer and the engine that "
        "sampled, so staleness and the engines' rounding",
        "src/prime_rl/trainer/rl/loss.py, compute_importance_ratio_and_mismatch_kl, 0.8.1",
    ),
)
LOGGED = LoggedMetrics(
    (*_KL, *(row for names in ROWS.values() for row in renamed(names, _KL))),
    owns=having("orchestrator.batch_size"),
)
