"""That a measurement sees what a library does: its source is changed, so the result must."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.probes.measure import measure
from tests.lab.probes.source import source_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
]  # runs a library's functions in a process of their own

Changed = Callable[..., dict[str, Any]]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """verl 0.9.1 with lines of its files replaced, measured."""

    def change(*changes: tuple[str, str, str]) -> dict[str, Any]:
        copied = tmp_path / "verl"
        with source_of("verl", "0.9.1") as found:
            for part in ("trainer/ppo", "workers/utils", "utils"):
                shutil.copytree(found.folder / part, copied / part, dirs_exist_ok=True)
        for file, old, new in changes:
            text = (copied / file).read_text(encoding="utf-8")
            assert text.count(old) == 1, "verl's source is not the one this test changes"
            (copied / file).write_text(text.replace(old, new), encoding="utf-8")
        return measure("verl", "0.9.1", copied)

    return change


def disagreeing(found: dict[str, Any]) -> set[str]:
    return {
        f"{c['estimator']}.{c['placement']}" for c in found["cells"] if c.get("agrees") is False
    }


def test_another_estimate_and_another_penalty_are_seen(changed: Changed) -> None:
    """k2 without its half, and a KL in the reward of the first token alone."""
    found = changed(
        (
            "trainer/ppo/core_algos.py",
            "return 0.5 * (logprob - ref_logprob).square()",
            "return (logprob - ref_logprob).square()",
        ),
        (
            "trainer/ppo/ray_trainer.py",
            "kld = kld * response_mask\n",
            "kld = kld * response_mask\n    kld[:, 1:] = 0\n",
        ),
    )
    assert {"k2.loss", "k1.reward", "k3.reward"} <= disagreeing(found)
    assert not {"k1.loss", "k3.loss", "k3+.loss"} & disagreeing(found)
    k2 = next(n for n in found["names"] if (n["name"], n["place"]) == ("k2", "loss"))
    assert k2["value"] == "?"
    assert found["reward"]["rloo"]["within"] == "none", "the token that is changed is the second"


def test_another_weight_of_a_sample_is_seen(changed: Changed) -> None:
    """TIS without its bound, and a KL in the loss that the weight multiplies too."""
    found = changed(
        (
            "trainer/ppo/rollout_corr_helper.py",
            "rollout_is_weights = raw_rollout_is_weights.clamp(max=rollout_is_threshold_upper)",
            "rollout_is_weights = raw_rollout_is_weights",
        ),
        (
            "workers/utils/losses.py",
            "loss_mat=kld, loss_mask",
            "loss_mat=kld * (1 if rollout_is_weights is None else rollout_is_weights), loss_mask",
        ),
    )
    cells = {(c["kind"], c["least"]): c for c in found["corrections"]["cells"]}
    assert cells["tis_token", 0.0]["agrees"] is False
    assert cells["tis_token", 0.0]["policy"]["weight"] == "the token's ratio"
    masked = cells["mis_token", 0.5]
    assert masked["agrees"] is False, "the KL in the loss is weighted"
    assert masked["policy"]["kind"] == masked["kl"]["kind"] == "mis_token"
