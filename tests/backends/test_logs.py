"""A log in which the task reward has another name is a fault, after all that can be read of it."""

from pathlib import Path

import pytest

from backends.openrlhf.metrics import REWARD as OPENRLHF
from backends.skyrl.metrics import REWARD as SKYRL
from backends.trl.metrics import REWARD as TRL
from backends.verl.metrics import REWARD as VERL
from orchestrator.errors import LogFault
from orchestrator.testing.backend_contract import BackendContract
from tests.backends.openrlhf import test_contract as openrlhf
from tests.backends.skyrl import test_contract as skyrl
from tests.backends.trl import test_contract as trl
from tests.backends.verl import test_contract as verl

SUITES = [
    (verl.TestVerl, VERL),
    (trl.TestTRL, TRL),
    (skyrl.TestSkyRL, SKYRL),
    (openrlhf.TestOpenRLHF, OPENRLHF),
]


@pytest.mark.parametrize(("suite", "reward"), SUITES)
def test_a_log_without_the_reward_is_told(
    suite: type[BackendContract], reward: str, tmp_path: Path
) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    log = suite().write_log(attempt)
    whole = log.read_bytes()
    assert reward.encode() in whole
    log.write_bytes(whole.replace(reward.encode(), b"x" * len(reward)))
    points = suite.backend.read_metrics(attempt)
    assert next(points).values
    with pytest.raises(LogFault, match=f"has no '.*{reward}'"):
        list(points)
