"""Read the metrics that orch_trl.py wrote, one line a train step, under canonical names."""

import json
import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from backends.trl.options import VERSIONS
from backends.trl.translate import METRICS
from orchestrator.errors import LogFault
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, renamed
from orchestrator.metrics.names import VALIDATION
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
    "completions/clipped_ratio": "rollout/cut_share",
    "step_time": "time/step_seconds",
}
LENGTH = "completions/mean_length"
EVALUATED = f"eval_{REWARD}"
"""The same, of an evaluation (trl/trainer/grpo_trainer.py, log, 1.16.0)."""


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
        logged |= {name for name in values if name == EVALUATED or not name.startswith("eval_")}
        known = canonical(values, script)
        if known:
            yield MetricPoint(step, moment, known)
    if not logged <= {EVALUATED} and REWARD not in logged:
        raise LogFault.of_names(path, "TRL", VERSIONS, logged, REWARD)


def canonical(values: Mapping[str, float], script: str) -> dict[str, float]:
    """Return the values by their canonical names.

    `kl` of rloo is k1, over all tokens; of grpo it is the estimator in the loss, with its ratio, or
    the one that orch_trl_kl.py charges to the reward. `kl_reference` is orch_trl_kl.py's.
    """
    named = {ours: values[theirs] for theirs, ours in NAMES.items() if theirs in values}
    if EVALUATED in values:
        named[VALIDATION] = values[EVALUATED]
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
    return named


_KL = (
    LoggedMetric(
        "kl",
        "train/kl_term",
        "KL to the reference policy: k3 of each token, times the token's importance ratio where "
        "use_bias_correction_kl is on, averaged over response tokens; β is not in it. It is there "
        "only where β is not 0. Before 0.26.0 there is no ratio; in 0.14.0 it is the mean of the "
        "responses' means",
        "trl/trainer/grpo_trainer.py, _compute_loss, 0.14.0, 0.24.0, 1.9.2, 1.10.0 and 1.16.0",
        place="loss",
    ),
    LoggedMetric(
        "kl",
        "train/kl_reference_per_token",
        "KL to the reference policy: k1 of each token (log π of the rollout minus log π of the "
        "reference), averaged over response tokens. The penalty in the reward is its sum over the "
        "response, so the average times the length",
        "trl/trainer/rloo_trainer.py, _generate_and_score_completions, 0.24.0, 1.9.2 and 1.10.0",
        place="reward",
    ),
    LoggedMetric(
        "kl",
        "",
        "no KL to a reference policy, which this trainer does not have: k3 of the ratio between "
        "the policy and the policy that sampled, averaged over tokens",
        "trl/experimental/async_grpo/async_grpo_trainer.py, 1.9.0",
        where="AsyncGRPOTrainer",
    ),
    LoggedMetric(
        "objective/kl",
        "train/kl_reference",
        "KL to the reference policy: k1 summed over a response, averaged over responses",
        "trl/trainer/rloo_trainer.py, train, 0.14.0 (RLOOTrainer up to 0.21); ppo_trainer.py",
        place="reward",
    ),
    LoggedMetric(
        "sampling/sampling_logp_difference/mean",
        "rollout/mismatch_abs",
        "no KL: the mean distance of the engine's log-probabilities from the trainer's",
        "trl/trainer/grpo_trainer.py, _generate_and_score_completions",
    ),
)
_OTHERS = (
    LoggedMetric("reward", "train/reward_mean"),
    LoggedMetric("loss", "train/loss"),
    LoggedMetric("frac_reward_zero_std", "train/groups_without_signal"),
)
"""Names that orch's own launches do not read. `reward` is a weighted sum over reward functions."""
_PPO = {
    "objective/scores": "train/reward_mean",
    "objective/rlhf_reward": "train/shaped_reward_mean",
    "policy/clipfrac_avg": "train/clip_fraction",
    "policy/entropy_avg": "train/entropy",
    "lr": "train/learning_rate",
}


_PRINTED = re.compile(r"\{'loss': [^{}]*\}")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)"
_VALUE = re.compile(rf"'([^']+)': '?({_NUMBER})\b")
_BAR = re.compile(r"(\d+)/(\d+) \[")
_CELLS = re.compile(r"\s*[|\t]\s*")


def _console(text: str) -> Iterator[tuple[int | None, dict[str, float]]]:
    """Yield what Transformers printed: the lines have no step, and a progress bar may tell it. Or
    yield the rows of a notebook's table, whose columns a tab or a | separates."""
    printed = list(_PRINTED.finditer(text))
    names: list[str] = []
    for line in [] if printed else text.splitlines():
        cells = _CELLS.split(line.strip(" |"))
        if cells[0] == "Step" and "reward" in cells:
            names = ["loss" if n == "Training Loss" else n.replace(" / ", "/") for n in cells]
        elif cells[0].isdecimal() and len(cells) == len(names):
            row = zip(names, cells, strict=True)
            yield int(cells[0]), {n: float(v) for n, v in row if re.fullmatch(_NUMBER, v)}
    steps = _steps(text, [each.start() for each in printed])
    for step, each in zip(steps, printed, strict=True):
        yield step, {name: float(value) for name, value in _VALUE.findall(each[0])}


def _steps(text: str, places: Sequence[int]) -> Sequence[int | None]:
    """Return the step at each place: by the last bar before it, if one bar moves evenly from place
    to place (but for the first). A text that was written in blocks has no such bar."""
    bars: dict[str, list[tuple[int, int]]] = {}
    for bar in _BAR.finditer(text):
        bars.setdefault(bar[2], []).append((bar.start(), int(bar[1])))
    for moves in bars.values():
        last = [bisect(moves, (place,)) - 1 for place in places]
        steps = [moves[index][1] for index in last if index >= 0]
        gaps = [after - before for before, after in pairwise(steps)]
        if len(steps) == len(places) and min(gaps, default=1) > 0 and len(set(gaps[1:])) <= 1:
            return steps
    return [None] * len(places)


LOGGED = LoggedMetrics(
    (*_KL, *_OTHERS, *renamed(NAMES, (*_KL, *_OTHERS)), *renamed(_PPO)),
    prefixes=("train/",),
    step_names=("train/global_step",),
    console=_console,
)
"""TRL's metrics. Transformers' loggers, but for MLflow's, put `train/` before names."""
