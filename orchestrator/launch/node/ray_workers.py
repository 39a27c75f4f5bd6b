"""Ray's workers of a program that joins a running Ray: the Python that they run in.

Ray starts workers in the Python of its nodes, which lacks the library. verl 0.9.1 hands
`py_executable: None` to ray.init, which wins over what the job says. Ray calls `hook` last, with
what it merged (RAY_RUNTIME_ENV_HOOK). This file is copied into the attempt's folder, because the
trainer's environment has no orch.
"""

import shlex
import sys
from collections.abc import Mapping


def hook(runtime_env: Mapping[str, object] | None) -> dict[str, object]:
    """Return Ray's runtime environment, with this program's Python if it names none."""
    named = {name: value for name, value in (runtime_env or {}).items() if value is not None}
    return {"py_executable": shlex.quote(sys.executable), **named}
