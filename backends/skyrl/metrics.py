"""Read SkyRL's logs under canonical names, from TensorBoard's files."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from backends.skyrl.manifest import VERSIONS
from orchestrator.library.checkpoints import numbered
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, check_names, renamed
from orchestrator.metrics.names import VALIDATION
from orchestrator.metrics.tensorboard import Scalar, scalars
from orchestrator.records import MetricPoint

NAMES: Mapping[str, str] = {
    "reward/avg_raw_reward": "train/reward_mean",
    "loss/avg_final_rewards": "train/shaped_reward_mean",
    "loss/avg_kl": "train/kl_term",
    "policy/policy_kl": "train/kl_term",
    "policy/policy_entropy": "train/entropy",
    "policy/policy_loss": "train/policy_loss",
    "policy/grad_norm": "train/grad_norm",
    "policy/loss_metrics/clip_ratio": "train/clip_fraction",
    "policy/policy_lr": "train/learning_rate",
    "generate/avg_num_tokens": "rollout/response_tokens",
    "async/staleness_mean": "rollout/staleness_mean",
    "async/staleness_max": "rollout/staleness_max",
    "timing/step": "time/step_seconds",
}
"""SkyRL's key -> canonical name. SkyRL logs its own estimator of the KL, averaged over each
response's tokens, then over responses. It logs no k1 per sequence: train/kl_reference is absent."""

REWARD = "reward/avg_raw_reward"
_BESIDE = ("eval/", "timing/")
"""Prefixes of names that an evaluation logs too."""
_VALIDATION = "eval/all/avg_score"
"""The mean reward of all responses to validation prompts (skyrl/train/evaluate.py, 0.4.0)."""
_STEP = re.compile(r"^.*?Step (\d+): *$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OF_RAY = re.compile(r"^\([^()\n]*pid=\d+[^()\n]*\) ?")
_NOT_FINITE = re.compile(r"(?<=: )(-?(?:nan|inf))(?=\s*[,}])")
"""A bare nan or inf, which is no literal of Python."""
_LONGEST_REPORT = 2000
"""Most lines of a printed report. A longer one counts as cut off."""


def tensorboard_of(attempt_dir: Path, updates: int) -> Path:
    """Return the folder of an attempt's event files. Its name has the train steps of a step."""
    return attempt_dir / f"tensorboard-x{updates}"


def read_metrics(attempt_dir: Path) -> Iterator[MetricPoint]:
    """Yield one point for each logged step of an attempt. Its step is the number of train steps.

    Raise LogFault after the last point if the log has no name known to orch.
    """
    names_by_step: dict[int, set[str]] = {}
    for updates, folder in numbered(attempt_dir, "tensorboard-x"):
        for path in sorted(folder.glob("events.out.tfevents.*")):
            yield from _points(scalars(path), updates, names_by_step)
    names_by_step.pop(max(names_by_step, default=0), None)  # it may not be written whole yet
    _check(attempt_dir, names_by_step)


def _check(path: Path, names_by_step: Mapping[int, set[str]]) -> None:
    """Raise LogFault if the steps have no name known to orch, or no reward.

    A step with only evaluations does not count, because a run logs one before it trains or resumes.
    """
    trained = [
        names
        for step, names in names_by_step.items()
        if step > 0 and any(not name.startswith(_BESIDE) for name in names)
    ]
    logged = {name for names in trained for name in names}
    check_names(path, "SkyRL", VERSIONS, logged, NAMES, REWARD)


def canonical(key: str) -> str | None:
    """Return the canonical name of a metric of SkyRL, or None if orch has no name for it."""
    return VALIDATION if key == _VALIDATION else NAMES.get(key)


def _points(
    scalars: Iterable[Scalar], updates: int, names_by_step: dict[int, set[str]]
) -> Iterator[MetricPoint]:
    for step, group in groupby(scalars, key=lambda scalar: scalar.step):
        members = list(group)
        names_by_step.setdefault(step, set()).update(scalar.tag for scalar in members)
        values = _named({scalar.tag: scalar.value for scalar in members})
        if values:
            yield MetricPoint(step * updates, members[0].time, values)


def _named(values: Mapping[str, object]) -> dict[str, float]:
    named = {}
    for key, value in values.items():
        name, number = canonical(key), _number(value)
        if name is not None and number is not None:
            named[name] = number
    return named


def _number(value: object) -> float | None:
    """Return a number, or None for another value. SkyRL prints some numbers as text."""
    try:
        return float(value)  # type: ignore[arg-type]  # TypeError is caught below
    except (TypeError, ValueError):
        return None


def _console(text: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps of a console's text, up to a report that is cut off."""
    lines = (_OF_RAY.sub("", _COLOUR.sub("", line)) for line in text.splitlines())
    for line in lines:
        head = _STEP.match(line)
        if head is None:
            continue
        report = _report(lines)
        if report is None:
            return
        numbers = {str(name): _number(value) for name, value in report.items()}
        yield int(head[1]), {name: value for name, value in numbers.items() if value is not None}


def _report(lines: Iterator[str]) -> Mapping[str, object] | None:
    """Return the dictionary on the next lines, or None if the log ends inside it."""
    text = ""
    for _, line in zip(range(_LONGEST_REPORT), lines, strict=False):
        text += f"{line}\n"
        if line.rstrip().endswith("}"):
            try:
                report = ast.literal_eval(_NOT_FINITE.sub(r"'\1'", text.strip()))
            except (ValueError, SyntaxError):
                return None
            return report if isinstance(report, dict) else None
    return None


_KL = (
    LoggedMetric(
        "loss/avg_kl",
        "train/kl_term",
        "KL to the reference policy in the reward, as kl_estimator_type estimates it: each "
        "response's mean over tokens, then the mean over responses; the coefficient is not in it",
        "skyrl_train/trainer.py, apply_reward_kl_penalty, 0.4.0",
        place="reward",
    ),
    LoggedMetric(
        "policy/policy_kl",
        "train/kl_term",
        "KL to the reference policy in the loss, as kl_estimator_type estimates it: each "
        "response's "
        "mean over tokens, then the mean over responses; kl_loss_coef is not in it",
        "skyrl_train/workers/worker.py, 0.4.0",
        place="loss",
    ),
)
LOGGED = LoggedMetrics(
    (*_KL, *renamed(NAMES, _KL)),
    console=_console,
)
"""The metrics that SkyRL logs."""
