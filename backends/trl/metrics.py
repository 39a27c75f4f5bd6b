"""Read the metrics that orch_trl.py wrote, one line a train step, under canonical names."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.trl.options import VERSIONS
from backends.trl.translate import METRICS
from orchestrator.errors import LogFault
from orchestrator.records import MetricPoint

REWARD = "rewards/task_reward/mean"
"""The unweighted task reward. TRL's `reward` is multiplied by `reward_weights`."""
NAMES: Mapping[str, str] = {
    REWARD: "train/reward_mean",
    "entropy": "train/entropy",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "clip_ratio/region_mean": "train/clip_fraction",
    "completions/mean_length": "rollout/response_tokens",
    "step_time": "time/step_seconds",
}
LENGTH = "completions/mean_length"


def read_metrics(attempt_dir: Path) -> Iterator[MetricPoint]:
    """Yield the metrics of an attempt in file order, up to the point where the log is cut off.

    Raise LogFault after them if orch does not know the names in the log.
    """
    path = attempt_dir / METRICS
    logged: set[str] = set()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        try:
            plain: Any = json.loads(line) if line.endswith("\n") else None
            step, moment, script = plain["step"], plain["time"], plain["script"]
            values = {name: float(value) for name, value in plain["values"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            break
        logged |= values.keys()
        known = canonical(values, script)
        if known:
            yield MetricPoint(step, moment, known)
    if logged and REWARD not in logged:
        raise LogFault.of_names(path, "TRL", VERSIONS, logged, REWARD)


def canonical(values: Mapping[str, float], script: str) -> dict[str, float]:
    """Return the finite values, by their canonical names.

    `kl` of rloo is k1, over all tokens; of grpo it is the estimator in the loss, with its ratio, or
    the one that orch_trl_kl.py charges to the reward. `kl_reference` is orch_trl_kl.py's.
    """
    named = {ours: values[theirs] for theirs, ours in NAMES.items() if theirs in values}
    if "kl" in values and script == "rloo":
        named["train/kl_reference_per_token"] = values["kl"]
        if LENGTH in values:
            summed = values["kl"] * values[LENGTH]
            named |= {"train/kl_reference": summed, "train/kl_term": summed}
    elif "kl" in values:
        named["train/kl_term"] = values["kl"]
    if "kl_reference" in values:
        named["train/kl_reference_per_token"] = values["kl_reference"]
        if LENGTH in values:
            named["train/kl_reference"] = values["kl_reference"] * values[LENGTH]
    return {name: value for name, value in named.items() if math.isfinite(value)}
