"""Table 2 of the paper: how each library is asked for k1 in the reward, and where it is still so.

verl and OpenRLHF up to 0.10.1 take it as printed; OpenRLHF renamed it at 0.10.2; SkyRL refuses it
without one flag more (tests/backends/skyrl/test_config.py asks SkyRL itself).
"""

import pytest

from backends import openrlhf, skyrl, verl
from tests.backends.openrlhf import cells as openrlhf_cells
from tests.backends.skyrl import cells as skyrl_cells
from tests.backends.verl import cells as verl_cells
from tests.backends.verl import library as verl_library

VERL = {"algorithm.use_kl_in_reward": "True", "algorithm.kl_penalty": "kl"}
OPENRLHF = ("--kl_estimator", "k1")
"""And no --use_kl_loss."""
SKYRL = {"trainer.algorithm.kl_estimator_type": "k1", "trainer.algorithm.use_kl_in_reward": "true"}
MISSING = "trainer.algorithm.use_kl_loss=false"


@pytest.mark.parametrize("version", verl_library.VERSIONS)
def test_verl_takes_it_as_printed(version: str) -> None:
    kl = {"estimator": "k1", "placement": "reward", "beta": 0.05}
    plan = verl.BACKEND.translate(
        verl_cells.cell({"backend.version": version, "kl": kl}), verl_cells.PLACE
    )
    printed = [f"{key}={value}" for key, value in VERL.items()]
    assert set(printed) <= set(plan.argv)
    assert "actor_rollout_ref.actor.use_kl_loss=False" in plan.argv
    (answer,) = verl_library.compose(version, [printed], list(VERL))
    assert answer["values"] == {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "kl"}


def test_openrlhf_took_it_until_it_renamed_it() -> None:
    """Each release's own parser, on our launch and the printed flags at its end."""
    answers = {}
    for version in openrlhf.BACKEND.versions:
        cell = openrlhf_cells.cell_of(openrlhf_cells.base(backend={"version": version}))
        argv = openrlhf.BACKEND.translate(cell, openrlhf_cells.PLACE).argv
        (answers[version],) = openrlhf_cells.asked_of_library(version, [[*argv, *OPENRLHF]])
    assert answers["0.10.1.post2"]["values"]["kl_estimator"] == "k1"
    assert "unrecognized arguments: --kl_estimator k1" in answers["0.11.2"]["error"]


@pytest.mark.parametrize("version", skyrl_cells.VERSIONS)
def test_skyrl_needs_a_flag_more(version: str) -> None:
    cell = skyrl_cells.onpolicy(version)
    assert cell.settings.kl.label == "k1.reward"
    argv = {word.lower() for word in skyrl.BACKEND.translate(cell, skyrl_cells.PLACE).argv}
    assert {f"{key}={value}" for key, value in SKYRL.items()} <= argv
    assert MISSING in argv
