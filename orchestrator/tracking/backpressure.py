"""The number of simultaneous calls to a server, and the reaction to a busy server.

MLflow's own client waits twice, each time for the `Retry-After` of the server, and then gives up.
Here, after a refusal (429 or 503), all threads wait for that time, the number of simultaneous calls
is halved, and the call is repeated. Each answered call raises that number a little.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AT_ONCE = 4
"""Number of simultaneous calls at the start: MLflow's server has as many workers."""
MOST_AT_ONCE = 16
PATIENCE_SECONDS = 300.0
"""Seconds for which a server may refuse every call before it counts as down."""
LONGEST_WAIT_SECONDS = 60.0
_BUSY = re.compile(r"too many (429|503) error responses|error code (429|503)\b")


class Gate:
    """A gate for the calls of several threads. It limits their number to what the server
    accepts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.limit = float(AT_ONCE)
        """Largest number of simultaneous calls."""
        self.refusals = 0
        self._inside, self._closed_until, self._clock = 0, 0.0, clock
        self._answered = clock()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until one more call may start, and count it while it runs."""
        with self._changed:
            while (wait := self._wait()) is not None:
                self._changed.wait(wait or None)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def answered(self) -> None:
        """Record an answered call."""
        with self._changed:
            self._answered = self._clock()
            # One more call after `limit` answers, and half of them after a refusal, as TCP does.
            self.limit = min(float(MOST_AT_ONCE), self.limit + 1 / self.limit)

    def refused(self, wait: float) -> bool:
        """Record a refused call, and let no call start for `wait` seconds.

        Return False if the server has refused everything for too long.
        """
        with self._changed:
            now = self._clock()
            self.refusals += 1
            self.limit = max(1.0, self.limit / 2)
            self._closed_until = max(self._closed_until, now + min(wait, LONGEST_WAIT_SECONDS))
            return now - self._answered < PATIENCE_SECONDS

    def _wait(self) -> float | None:
        """Return the seconds to wait; 0: until something changes; None: not at all."""
        if (remaining := self._closed_until - self._clock()) > 0:
            return remaining
        return None if self._inside < int(self.limit) else 0.0


class PatientClient:
    """An MlflowClient whose calls go through a gate. A refused call is repeated."""

    def __init__(self, client: Any, gate: Gate):
        self._client, self._gate = client, gate

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        if not callable(member):
            return member

        def patiently(*args: Any, **more: Any) -> Any:
            while True:
                with self._gate.turn():
                    started = time.monotonic()
                    try:
                        answer = member(*args, **more)
                    except Exception as error:
                        # the client has waited twice for what the server asked
                        pause = max(1.0, (time.monotonic() - started) / 2)
                        if not is_busy(error) or not self._gate.refused(pause):
                            raise
                        continue
                self._gate.answered()
                return answer

        return patiently


def is_busy(error: Exception) -> bool:
    """Return True for an answer that requires a later retry: 429 or 503."""
    return _BUSY.search(str(error)) is not None
