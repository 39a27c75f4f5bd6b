"""Read the library's metrics under canonical names, from TensorBoard's files.

A step of the library is a rollout batch. The name of the log directory gives the number of train
steps in a batch.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from backends.openrlhf.checkpoints import STEPS_DIR
from backends.openrlhf.flags import VERSIONS, read
from orchestrator.library.checkpoints import numbered
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, check_names, renamed
from orchestrator.metrics.names import VALIDATION
from orchestrator.metrics.tensorboard import scalars
from orchestrator.records import MetricPoint

Names = Mapping[str, str]
NAMES: Names = {
    "rollout/reward_mean": "train/reward_mean",
    "logprobs_diff": "train/kl_reference_per_token",
    "kl": "train/kl_term",
    "policy_loss": "train/policy_loss",
    "actor_grad_norm": "train/grad_norm",
    "actor_lr": "train/learning_rate",
    "ppo_clip_ratio": "train/clip_fraction",
    "entropy_loss": "train/entropy",
    "vllm_kl": "rollout/mismatch_kl",
    "rollout/response_length_mean": "rollout/response_tokens",
    "timing/step_total": "time/step_seconds",
}
VALIDATED = "eval_default_pass1"
"""Mean reward of the responses to evaluation prompts without a name of their data set, averaged by
prompt (trainer/ppo_trainer.py, compute_eval_metrics, 0.10.1.post2 and 0.11.2)."""
REWARD, LAST = "rollout/reward_mean", "timing/step_total"
"""LAST is the last value of a step. With it the step is complete."""
_WITHOUT_KL: Names = {theirs: NAMES[theirs] for theirs in NAMES.keys() - {"kl", "logprobs_diff"}}
"""The names without those of the KL. If no reference policy is loaded, the library logs 0 for
both."""

_LINE = re.compile(r"Global step (\d+): \{(.*)\}\s*$")
_VALUE = re.compile(r"'([^']+)': (-?(?:nan|inf|[0-9][0-9.]*(?:e[-+]?[0-9]+)?))(?=[,}]|$)")


def read_metrics(attempt_dir: Path) -> Iterator[MetricPoint]:
    """Yield the metrics of an attempt in file order, up to the point where a log is cut off.

    Raise LogFault after them if orch does not know the names in a log.
    """
    kept = NAMES if has_reference(attempt_dir) else _WITHOUT_KL
    for steps, directory in numbered(attempt_dir / "tensorboard", STEPS_DIR):
        logged: set[str] = set()
        for file in sorted(directory.rglob("events.out.tfevents.*")):
            yield from _of_events(file, steps, logged, kept)
        check_names(directory, "OpenRLHF", VERSIONS, logged, NAMES, LAST, REWARD)


def has_reference(attempt_dir: Path) -> bool:
    """Return True if an attempt loads a reference policy: its KL coefficient is above 0.

    Read the coefficient from the plan of the run directory. Without a plan, use the library's
    default.
    """
    try:
        plan = json.loads((attempt_dir.parents[1] / "plan" / "plan.json").read_text("utf-8"))
        coefficient = read(plan["argv"], []).given["algo.kl.init_coef"]
    except (OSError, ValueError, KeyError, IndexError):
        return True
    return bool(coefficient)


def _of_events(path: Path, steps: int, names_seen: set[str], kept: Names) -> Iterator[MetricPoint]:
    """Yield one point per step, when the step is complete, and one per validation.

    names_seen: takes the names in complete steps. All steps but the last are complete. The last is
    complete if LAST ended it.
    """
    at, values = -1, dict[str, float]()
    for scalar in scalars(path):
        prefix, _, name = scalar.tag.partition("/")
        if prefix == "eval":
            if name == VALIDATED and math.isfinite(scalar.value):
                yield MetricPoint(scalar.step * steps, scalar.time, {VALIDATION: scalar.value})
            continue
        if scalar.step != at:
            names_seen.update(values)
            at, values = scalar.step, {}
        values[name if prefix == "train" else scalar.tag] = scalar.value
        if prefix == "train" and name == LAST:
            names_seen.update(values)
            yield MetricPoint(at * steps, scalar.time, canonical(values, steps, kept))


def _console(text: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps of a console's text."""
    for line in text.splitlines():
        if match := _LINE.search(line):
            yield int(match[1]), {n: float(value) for n, value in _VALUE.findall(match[2])}


def canonical(values: Mapping[str, float], steps: int, kept: Names) -> dict[str, float]:
    """Return the values of the kept names, by their canonical names."""
    named = {ours: values[theirs] for theirs, ours in kept.items() if theirs in values}
    if "time/step_seconds" in named:
        named["time/step_seconds"] /= steps
    return named


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
    prefixes=("train/",),
    step_names=("train/global_step",),
    console=_console,
)
"""The metrics that OpenRLHF logs. TensorBoard and W&B have `train/` before a name."""
