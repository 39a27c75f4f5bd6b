"""Names and texts as MLflow allows them.

MLflow 3.17 takes letters, digits, `_`, `-`, `.`, `:`, space and `/` in the names of metrics,
params and tags. `@` becomes `_at_` (`eval/math500/mean@32` is `eval/math500/mean_at_32`), any
other character its code in hexadecimal (`k3+` is `k3_x2b`).
"""

import re
from functools import lru_cache

from orchestrator.identity import digest

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


def cut(value: str, limit: int) -> str:
    """Return a text, cut visibly if it is longer than MLflow takes."""
    if len(value) <= limit:
        return value
    end = f"... (cut here: {len(value):,} characters in all)"
    return value[: limit - len(end)] + end
