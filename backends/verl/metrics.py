"""Read verl's logs under canonical names: its file logger's JSONL, else its console.

The JSONL has no times and nothing about the cell. Its file name gives the scale of the numbers
(translate.metrics_file). The time of a step is that of the file's last write, less the durations of
later steps.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from backends.verl.manifest import VERSIONS
from orchestrator.errors import LogFault
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, check_names, renamed
from orchestrator.metrics.names import VALIDATION
from orchestrator.records import MetricPoint

NAMES: Mapping[str, str] = {
    "critic/score/mean": "train/reward_mean",
    "critic/rewards/mean": "train/shaped_reward_mean",
    "actor/reward_kl_penalty": "train/kl_term",
    "actor/kl_loss": "train/kl_term",
    "actor/pg_loss": "train/policy_loss",
    "actor/grad_norm": "train/grad_norm",
    "actor/pg_clipfrac": "train/clip_fraction",
    "actor/lr": "train/learning_rate",
    "actor/entropy": "train/entropy",
    "actor/entropy_loss": "train/entropy",
    "response_length/mean": "rollout/response_tokens",
    "response_length/clip_ratio": "rollout/cut_share",
    "training/off_policy/trajectory_staleness_worst/mean": "rollout/staleness_mean",
    "training/off_policy/trajectory_staleness_worst/max": "rollout/staleness_max",
    "rollout_corr/k3_kl": "rollout/mismatch_kl",
    "rollout_corr/chi2_token": "rollout/mismatch_chi2",
    "rollout_corr/rollout_is_eff_sample_size": "rollout/mismatch_ess",
    "timing_s/step": "time/step_seconds",
}
"""verl's name -> canonical name. Of two names with one canonical name, the later one counts."""

_TAGGED = re.compile(r"verl\.x(\d+)(?:\.c(\d+))?(\.k1)?\.jsonl")
_VALIDATION = re.compile(r"val-core/.+/(?:acc|reward)/mean@1")
"""Its data source, which is the name of the cell's data, and one response to each prompt."""
_CONSOLE = re.compile(r"step:(\d+) - (.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMPY = re.compile(r"np\.\w+\((.*)\)")


class LogScale(NamedTuple):
    """The scale of the numbers in one launch's log."""

    updates: int = 1
    """Train steps in one step of verl."""
    constant_tokens: int | None = None
    """The divisor of token sums, or None if it is the number of tokens."""
    k1_in_reward: bool = False


class LogLine(NamedTuple):
    """One step of verl's log, under verl's names."""

    step: int
    values: Mapping[str, float]


def read_metrics(attempt_dir: Path) -> Iterator[MetricPoint]:
    """Yield an attempt's metrics in file order, up to a torn last line.

    Raise LogFault after them.
    """
    source = next(iter(sorted(attempt_dir.glob("verl.x*.jsonl"))), None)
    if source is None or source.stat().st_size == 0:
        source = attempt_dir / "stdout"
    if not source.is_file():
        return
    written = source.stat().st_mtime
    text = source.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    console = source.name == "stdout"
    lines = list(_console(whole) if console else _jsonl(whole))
    scale = _scale(whole if console else source.name)
    for line, time in zip(lines, _times(lines, written), strict=True):
        yield MetricPoint(line.step * scale.updates, time, canonical(line.values, scale))
    _check(source, lines, None if console else whole.count("\n"))


REWARD = "critic/score/mean"


def _check(path: Path, lines: list[LogLine], written: int | None) -> None:
    """Raise LogFault for a log that differs from those of the releases that orch knows.

    written: the number of complete lines in a JSONL; None for the console. `lines` ends before the
    first line that cannot be read.
    """
    if written is not None and len(lines) < written:
        raise LogFault(
            f"{path} line {len(lines) + 1} is not a line of verl's file logger as orch knows it "
            f"(of {', '.join(VERSIONS)}): it and what follows are not read"
        )
    steps = [line.values for line in lines if line.step > 0]
    logged = {name for values in steps for name in values}
    check_names(path, "verl", VERSIONS, logged, NAMES, REWARD)


def canonical(values: Mapping[str, float], scale: LogScale) -> dict[str, float]:
    """Return the metrics that have a canonical name."""
    named = {ours: values[theirs] for theirs, ours in NAMES.items() if theirs in values}
    for name in ("rollout/staleness_mean", "rollout/staleness_max"):
        if name in named:
            named[name] *= scale.updates
    tokens = named.get("rollout/response_tokens")
    if scale.constant_tokens is not None and "train/entropy" in named:
        entropy = named.pop("train/entropy")
        if tokens:
            named["train/entropy"] = entropy * scale.constant_tokens / tokens
    beta = values.get("actor/reward_kl_penalty_coeff", 0.0)
    plain, shaped = named.get("train/reward_mean"), named.get("train/shaped_reward_mean")
    if scale.k1_in_reward and beta and plain is not None and shaped is not None:
        named["train/kl_reference"] = (plain - shaped) / beta
    validated = next((name for name in values if _VALIDATION.fullmatch(name)), None)
    if validated is not None:
        named[VALIDATION] = values[validated]
    return named


def _scale(text: str) -> LogScale:
    """Read the scale from a file's name, or from the console's line that names the file."""
    tags = _TAGGED.search(text)
    if tags is None:
        return LogScale()
    constant = int(tags[2]) if tags[2] else None
    return LogScale(int(tags[1]), constant, tags[3] is not None)


def _jsonl(text: str) -> Iterator[LogLine]:
    for line in text.split("\n")[:-1]:
        try:
            plain = json.loads(line)
            step, data = int(plain["step"]), dict(plain["data"])
        except (ValueError, KeyError, TypeError):
            return
        yield LogLine(step, _numbers(data.items()))


def _console(text: str) -> Iterator[LogLine]:
    for line in text.splitlines():
        if match := _CONSOLE.search(_COLOUR.sub("", line)):
            pairs = (pair.rpartition(":") for pair in match[2].split(" - "))
            yield LogLine(int(match[1]), _numbers((key, value) for key, _, value in pairs))


def _numbers(pairs: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Return the numbers. The JSONL has null for a number that was not finite."""
    numbers = {}
    for key, value in pairs:
        if isinstance(value, int | float):
            numbers[key] = float(value)
        elif value is None:
            numbers[key] = math.nan
        elif isinstance(value, str):
            with suppress(ValueError):
                numbers[key] = float(_NUMPY.sub(r"\1", value))
    return numbers


def _times(lines: list[LogLine], written: float) -> list[float]:
    """Return the Unix seconds of each line, counted back from the last one."""
    times: list[float] = []
    for line in reversed(lines):
        times.append(written)
        seconds = [line.values.get(f"timing_s/{name}", 0.0) for name in ("step", "testing")]
        written -= sum(filter(math.isfinite, seconds))
    return times[::-1]


_KL = (
    LoggedMetric(
        "actor/reward_kl_penalty",
        "train/kl_term",
        "KL to the reference policy, as algorithm.kl_penalty estimates it, of the "
        "log-probabilities "
        "of the batch: each response's mean over tokens, then the mean over responses; β is not in "
        "it. The penalty that a response gets is a sum over its tokens, not this mean",
        "verl/trainer/ppo/ray_trainer.py, apply_kl_penalty, 0.8.0 and 0.9.1",
        place="reward",
    ),
    LoggedMetric("actor/reward_kl_penalty_coeff", "train/beta", place="reward"),
    LoggedMetric(
        "critic/kl",
        "train/kl_term",
        "the name of actor/reward_kl_penalty before 0.3",
        "verl/trainer/ppo/ray_trainer.py, apply_kl_penalty, 0.2.0",
        place="reward",
    ),
    LoggedMetric("critic/kl_coeff", "train/beta", place="reward"),
    LoggedMetric(
        "actor/kl_loss",
        "train/kl_term",
        "KL to the reference policy, as actor.kl_loss_type estimates it, aggregated like "
        "the policy "
        "loss (loss_agg_mode); kl_loss_coef is not in it",
        "verl/workers/utils/losses.py, ppo_loss, 0.9.1; verl/workers/actor/dp_actor.py before",
        place="loss",
    ),
    LoggedMetric("actor/kl_coef", "train/beta", place="loss"),
    LoggedMetric(
        "actor/ppo_kl",
        "",
        "no KL to the reference policy: the mean over tokens of log π_old - log π, so of "
        "k1 between "
        "the policy before the batch's updates and the policy; 0 at the first update of a "
        "batch. With loss_mode kl_cov it is the mean distance of the two",
        "verl/trainer/ppo/core_algos.py, compute_policy_loss_*, 0.8.0 and 0.9.1",
    ),
    LoggedMetric(
        "rollout_corr/kl",
        "",
        "no KL to the reference policy: the mean over tokens of the engine's log-probability minus "
        "the trainer's, for the same policy (k1 of KL(engine || trainer))",
        "verl/trainer/ppo/rollout_corr_helper.py, 0.9.1",
    ),
    LoggedMetric(
        "rollout_corr/k3_kl",
        "rollout/mismatch_kl",
        "no KL to the reference policy: k3 of KL(engine || trainer), the same policy "
        "computed twice",
        "verl/trainer/ppo/rollout_corr_helper.py, 0.9.1",
    ),
)
LOGGED = LoggedMetrics(
    (*_KL, *renamed(NAMES, _KL)),
    console=_console,
)
"""The metrics that verl logs."""
