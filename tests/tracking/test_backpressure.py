"""A server that says it is busy is asked again, until it has refused for too long."""

import pytest

from orchestrator.tracking import backpressure
from orchestrator.tracking.backpressure import PatientClient, is_busy


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


def test_a_refused_call_is_made_again_and_a_fault_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "PAUSE_SECONDS", 0.01)
    assert PatientClient(Client(BUSY, BUSY, 7)).ask() == 7
    with pytest.raises(ValueError, match="404"):
        PatientClient(Client(ValueError("error code 404"), 7)).ask()
    assert is_busy(RuntimeError("API request to endpoint x failed with error code 503 != 200"))
    assert not is_busy(RuntimeError("the run 4290 has error code 400"))


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(RuntimeError, match="429"):
        PatientClient(Client(BUSY, 7)).ask()
