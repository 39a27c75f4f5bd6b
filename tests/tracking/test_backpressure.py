"""A server that says it is busy is asked less, later, and in the end for all."""

import threading
import time

import pytest

from orchestrator.tracking import backpressure
from orchestrator.tracking.backpressure import MOST_AT_ONCE, Gate, PatientClient, is_busy


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Client:
    """Answers, or raises what it was given."""

    def __init__(self, *answers: object):
        self.answers = list(answers)

    def ask(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


BUSY = RuntimeError("API request failed with exception: too many 429 error responses")


def test_a_refusal_halves_what_is_asked_at_once_and_answers_let_in_more() -> None:
    gate = Gate()
    for _ in range(400):
        gate.answered()
    assert gate.limit == MOST_AT_ONCE
    gate.refused(0.0)
    assert gate.limit == MOST_AT_ONCE / 2
    for _ in range(40):
        gate.refused(0.0)
    assert gate.limit == 1


def test_nobody_asks_before_the_wait_is_over() -> None:
    gate = Gate()
    gate.refused(0.3)
    asked: list[float] = []

    def ask() -> None:
        with gate.turn():
            asked.append(time.monotonic())

    started = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(asked) == 4
    assert min(asked) - started >= 0.3


def test_a_refused_call_is_made_again_and_a_fault_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "LONGEST_WAIT_SECONDS", 0.01)
    assert PatientClient(Client(BUSY, BUSY, 7), Gate()).ask() == 7
    with pytest.raises(ValueError, match="404"):
        PatientClient(Client(ValueError("error code 404"), 7), Gate()).ask()
    assert is_busy(RuntimeError("API request to endpoint x failed with error code 503 != 200"))
    assert not is_busy(RuntimeError("the run 4290 has error code 400"))


def test_patience_ends() -> None:
    clock = Clock()
    gate = Gate(clock)
    assert gate.refused(1.0)
    clock.now += backpressure.PATIENCE_SECONDS
    assert not gate.refused(1.0)
    gate.answered()
    assert gate.refused(1.0), "what was answered shows that it is there"
