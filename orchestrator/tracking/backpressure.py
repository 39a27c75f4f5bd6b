"""Patience with a busy server.

MLflow's own client waits twice, each time for the `Retry-After` of the server, and then gives up.
Here a call that was refused (429 or 503) is repeated until the server has refused it for too long.
"""

import re
import time
from typing import Any

PATIENCE_SECONDS = 300.0
"""Seconds for which a server may refuse one call before it counts as down."""
PAUSE_SECONDS = 1.0
_BUSY = re.compile(r"too many (429|503) error responses|error code (429|503)\b")


class PatientClient:
    """An MlflowClient that repeats a call which a busy server refused."""

    def __init__(self, client: Any):
        self._client = client

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        if not callable(member):
            return member

        def patiently(*args: Any, **more: Any) -> Any:
            started = time.monotonic()
            while True:
                try:
                    return member(*args, **more)
                except Exception as error:
                    if not is_busy(error) or time.monotonic() - started > PATIENCE_SECONDS:
                        raise
                    time.sleep(PAUSE_SECONDS)

        return patiently


def is_busy(error: Exception) -> bool:
    """Return True for an answer that requires a later retry: 429 or 503."""
    return _BUSY.search(str(error)) is not None
