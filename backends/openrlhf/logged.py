"""The metrics that OpenRLHF logs. TensorBoard and W&B have `train/` before a name."""

from backends.openrlhf.metrics import NAMES
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_flags, having, renamed

_KL = (
    LoggedMetric(
        "kl",
        "train/kl_term",
        "KL to the reference policy, as algo.kl.estimator estimates it: in the reward each "
        "response's mean over tokens, in the loss aggregated like the policy loss; the coefficient "
        "is not in it. 0 where no reference policy is loaded",
        "openrlhf/trainer/ppo_utils/experience_maker.py, openrlhf/trainer/ray/ppo_actor.py, 0.11",
    ),
    LoggedMetric(
        "logprobs_diff",
        "train/kl_reference_per_token",
        "KL to the reference policy: k1, averaged over tokens, whatever the estimator is",
        "openrlhf/trainer/ppo_utils/experience_maker.py, openrlhf/trainer/ray/ppo_actor.py, 0.11",
    ),
    LoggedMetric(
        "ppo_kl",
        "",
        "no KL to the reference policy: the mean over tokens of log π_old - log π",
        "openrlhf/models/loss.py, PolicyLoss, 0.11",
    ),
    LoggedMetric(
        "vllm_kl",
        "rollout/mismatch_kl",
        "no KL to the reference policy: the mean over tokens of vLLM's log-probability minus the "
        "trainer's, for the same policy",
        "openrlhf/models/loss.py, PolicyLoss, 0.11",
    ),
)
LOGGED = LoggedMetrics(
    (*_KL, *renamed(NAMES, _KL)),
    steps="a step is a rollout batch, which may be several train steps",
    prefixes=("train/",),
    launch=as_flags(("python3", "-m", "openrlhf.cli.train_ppo_ray"), dashes=False),
    step_names=("train/global_step",),
    owns=having("algo.kl.init_coef", "init_kl_coef"),
)
