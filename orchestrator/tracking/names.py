"""Names and texts as MLflow allows them.

MLflow 3.17 takes letters, digits, `_`, `-`, `.`, `:`, space and `/` in the names of metrics,
params and tags. `@` becomes `_at_` (`eval/math500/mean@32` is `eval/math500/mean_at_32`), any
other character its code in hexadecimal (`k3+` is `k3_x2b`).
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from orchestrator.identity import digest
from orchestrator.records import Cell
from orchestrator.spec.fields import text_of

LEADING = ("kl", "beta", "seed", "kl.estimator", "kl.placement", "kl.beta")
"""Axes that lead or end a run's name."""
MAX_NAME = 250
MAX_PARAM = 6000
MAX_TAG = 8000

_FORBIDDEN = re.compile(r"[^/\w.\- :]")


@lru_cache(maxsize=4096)
def allowed_name(name: str) -> str:
    """Return the name under which MLflow stores a name of orch.

    The function must never change, because existing runs have these names.
    """
    safe = _FORBIDDEN.sub(lambda hit: f"_x{ord(hit[0]):02x}", name.replace("@", "_at_"))
    # MLflow refuses what is not a plain relative path: empty parts, `.` and `..`
    parts = [part if part.strip(".") else part.replace(".", "_") or "_" for part in safe.split("/")]
    safe = "/".join(parts)
    return safe if len(safe) <= MAX_NAME else f"{safe[: MAX_NAME - 13]}_{digest(name)}"


def run_names(cells: Sequence[Cell]) -> dict[str, str]:
    """Return cell id -> name of its run: its configuration, and its seed.

    `k1.reward β0.05 qwen2.5-7b s0`; at micro scale with `micro` at its end. Cells of one name have
    a number behind it.
    """
    before = configuration_names(cells)
    names = {}
    for cell in cells:
        name = f"{before[cell.id]} s{(cell.declared or cell.settings).seed}"
        name += " micro" if cell.scale == "micro" else ""
        names[cell.id] = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."
    often = Counter(names.values())
    numbers: Counter[str] = Counter()
    for cell_id, name in names.items():
        numbers[name] += 1
        if often[name] > 1:
            names[cell_id] = f"{name[: MAX_NAME - 7]} ({numbers[name]})"
    return names


def configuration_names(cells: Sequence[Cell]) -> dict[str, str]:
    """Return cell id -> name of its configuration, which its seeds share.

    The name starts with the KL term, then the axes that vary. Where that does not tell two
    configurations apart, their study does.
    """
    values: dict[str, set[str]] = {}
    for cell in cells:
        for axis, value in cell.axes.items():
            values.setdefault(axis, set()).add(value)
    varied = [a for a in values if len(values[a]) > 1 and a not in LEADING and a[:3] != "kl."]
    names = {cell.id: _name_of(cell, varied) for cell in cells}
    often = Counter((names[cell.id], (cell.declared or cell.settings).seed) for cell in cells)
    twice = {name for (name, _), count in often.items() if count > 1}
    return {
        cell.id: " ".join([names[cell.id], *(cell.studies[:1] if names[cell.id] in twice else ())])
        for cell in cells
    }


def _name_of(cell: Cell, varied: Sequence[str]) -> str:
    settings = cell.declared or cell.settings
    term = [
        settings.kl.label,
        *([f"β{text_of(settings.kl.beta)}"] if settings.kl.placement else []),
    ]
    others = [
        f"{axis} {value}" if value[:1].isdigit() else value
        for axis in varied
        if (value := cell.axes.get(axis, ""))
    ]
    return " ".join([*term, *others])


def param_text(value: str) -> str:
    """Return a param's value, cut visibly if it is longer than MLflow takes."""
    return _cut(value, MAX_PARAM)


def tag_text(value: str) -> str:
    """Return a tag's value or a note, cut visibly if it is longer than MLflow takes."""
    return _cut(value, MAX_TAG)


def _cut(value: str, limit: int) -> str:
    if len(value) <= limit:
        return value
    end = f"... (cut here: {len(value):,} characters in all)"
    return value[: limit - len(end)] + end
