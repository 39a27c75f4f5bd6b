"""Waiting with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    asked: Callable[[], T], seconds: float = 90, what: str = "it", every: float = 0.05
) -> T:
    """The first true answer. Raises TimeoutError with `what` after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        answer = asked()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s; last answer {answer!r}")
        time.sleep(every)
