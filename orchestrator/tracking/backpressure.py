"""The number of simultaneous calls to a server, and the reaction to a busy server.

MLflow's client itself waits for as long as `Retry-After` requires, twice, and then gives up. Here a
refusal (429 or 503) makes every thread wait for the same time again, halves the number of calls at
once, and repeats the call; each call that is answered raises that number a little.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AT_ONCE = 4
"""Calls at once to begin with: MLflow's server has as many workers."""
MOST_AT_ONCE = 16
PATIENCE_SECONDS = 300.0
"""For how long a server may refuse every call before it counts as not there."""
LONGEST_WAIT_SECONDS = 60.0
_BUSY = re.compile(r"too many (429|503) error responses|error code (429|503)\b")


class Gate:
    """Lets calls of several threads through, so many at once as the server takes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.limit = float(AT_ONCE)
        """Calls at once."""
        self.refusals = 0
        self._inside, self._closed_until, self._clock = 0, 0.0, clock
        self._answered = clock()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until one more call may be made, and count it while it is."""
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
        """Note a call that was answered."""
        with self._changed:
            self._answered = self._clock()
            self.limit = min(float(MOST_AT_ONCE), self.limit + 1 / self.limit)

    def refused(self, wait: float) -> bool:
        """Note a call that was refused, and let no call begin for `wait` seconds.

        Return False if the server has refused everything for too long.
        """
        with self._changed:
            now = self._clock()
            self.refusals += 1
            self.limit = max(1.0, self.limit / 2)
            self._closed_until = max(self._closed_until, now + min(wait, LONGEST_WAIT_SECONDS))
            return now - self._answered < PATIENCE_SECONDS

    def _wait(self) -> float | None:
        """Return for how many seconds to wait, 0 for until something changes, None for not."""
        if (remaining := self._closed_until - self._clock()) > 0:
            return remaining
        return None if self._inside < int(self.limit) else 0.0


class PatientClient:
    """An MlflowClient whose calls go through a gate and are made again where they are refused."""

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
