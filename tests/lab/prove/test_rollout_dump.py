"""The rollout dump: what is written is what is read, and lists that do not fit are refused."""

from pathlib import Path

import pytest

from lab.cpu.orch_rollout_dump import RolloutBatch, read, write


def batch(step: int = 4, **entries: object) -> RolloutBatch:
    return RolloutBatch(
        step=step,
        prompts=[[1, 5], [1, 5]],
        responses=[[7, 2], [8]],
        rewards=[1.0, 0.0],
        groups=["a", "a"],
        **entries,  # type: ignore[arg-type]  # of any entry, wrong ones too
    )


def test_a_batch_is_read_as_it_was_written_and_a_later_attempt_counts(tmp_path: Path) -> None:
    whole = batch(
        mask=[[1, 0], [1]],
        texts=["6<eos>", "ü\u2028"],
        logp_rollout=[[-0.1, -1e-30], [-2.0]],
        advantages=[[0.5, 0.5], [-0.5]],
        updates=[[0], [1]],
        observed={"grad_norm": 0.25},
    )
    write(tmp_path / "1", batch(2))
    write(tmp_path / "1", batch(4))
    write(tmp_path / "2", whole)
    found = list(read([tmp_path / "1", tmp_path / "2"]))
    assert found == [batch(2, observed={"reward": 0.5}), whole]
    assert whole.observed == {"grad_norm": 0.25, "reward": 0.5}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"advantages": [[0.5, 0.5], [0.5, 0.5]]}, r"advantages\[1\] has 2 values for 1 response"),
        ({"texts": ["one"]}, "texts has 1 entries for 2 responses"),
        ({"observed": {"kl": 1.0}}, "observed has kl; it may have policy_loss"),
    ],
)
def test_a_hook_that_mixes_lists_up_is_told(
    entries: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        write(tmp_path, batch(**entries))
    assert not list(tmp_path.iterdir())
