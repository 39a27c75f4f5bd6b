"""SLURM's messages as sentences: the site-file field to change, and if it helps to wait.

The messages themselves are data: messages.toml.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import did_you_mean


class SchedulerMessage(NamedTuple):
    """One message of the scheduler, as a sentence for a user."""

    sentence: str
    field: str = ""
    """The field to change, dotted (`site.options.partition`); empty where none is at fault."""
    passing: bool = False
    """The scheduler is away or busy: ask again later, nothing is wrong with the request."""


def refusal_of(
    stderr: str, options: Mapping[str, object], names: Mapping[str, list[str]] | None = None
) -> SchedulerMessage:
    """Return the output of a failed sbatch, srun, scontrol or sacct, as a sentence.

    options: `site.options`. names: field -> the cluster's names, for a suggestion.
    """
    line = _telling_line(stderr)
    for rule in _table()["refusal"]:
        if re.search(rule["phrase"], stderr, re.IGNORECASE):
            return _message(rule, line, options, names or {})
    return SchedulerMessage(f"SLURM refuses: {line or 'without a word'}")


def stuck_reason(reason: str, options: Mapping[str, object]) -> SchedulerMessage | None:
    """Return why a pending job will never start, by squeue's reason, or None if it may start."""
    name = reason.strip("()").split(",")[0].strip()
    for rule in _table()["reason"]:
        if rule["name"] == name:
            return _message(rule, name, options, {})
    return None


@cache
def _table() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _message(
    rule: Mapping[str, Any],
    line: str,
    options: Mapping[str, object],
    names: Mapping[str, list[str]],
) -> SchedulerMessage:
    template, field, passing = rule["sentence"], rule.get("field", ""), rule.get("passing", False)
    value = options.get(field)
    shown = "that was asked for" if value is None else f"'{value}'"
    sentence = template.format(value=shown, line=line)
    if not field:
        return SchedulerMessage(sentence, passing=passing)
    path = "site.runs_dir" if field == "runs_dir" else f"site.options.{field}"
    offered = names.get(field, [])
    hint = did_you_mean(str(value), offered) if value is not None else ""
    if not hint and offered:
        hint = f" (there are: {', '.join(offered)})"
    if template.endswith("{line}") or line in sentence:
        return SchedulerMessage(f"{sentence}{hint}; change {path}", path, passing)
    return SchedulerMessage(f"{sentence}{hint}; change {path}. SLURM: {line}", path, passing)


def _telling_line(stderr: str) -> str:
    """Return the last line with `error` in it, else the last line, without SLURM's prefixes."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    chosen = next((line for line in reversed(lines) if "error" in line.lower()), "")
    chosen = chosen or (lines[-1] if lines else "")
    return re.sub(
        r"^(sbatch|srun|scontrol|squeue|sacct|sacctmgr|scancel|error|fatal): *",
        "",
        re.sub(r"^\w+: ", "", chosen),
    ).strip()
