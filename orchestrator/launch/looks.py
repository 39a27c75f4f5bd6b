"""Answers of a scheduler that are kept for seconds, so that one answer judges many cells."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class Looks(Generic[Key, Answer]):
    """The answers to `ask`, by what it is asked about. Each is kept for some seconds."""

    def __init__(self, ask: Callable[[Key], Answer], kept_seconds: float):
        self._ask, self.kept_seconds = ask, kept_seconds
        self._answers: dict[Key, tuple[float, Answer]] = {}
        self._held = 0

    def of(self, key: Key) -> Answer:
        """Return the answer about a key: one that is kept, or a new one."""
        known = self._answers.get(key)
        if known is None or not (self._held or time.monotonic() - known[0] < self.kept_seconds):
            known = self._answers[key] = time.monotonic(), self._ask(key)
        return known[1]

    def forget(self) -> None:
        """Drop all answers, because a job was submitted or cancelled."""
        self._answers.clear()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Ask about each key at most once inside the context, unless an answer is kept."""
        if not self._held:
            oldest = time.monotonic() - self.kept_seconds
            self._answers = {key: each for key, each in self._answers.items() if each[0] > oldest}
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
