"""The rollout dump: what is written is what is read, and what cannot be understood is said."""

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


def test_a_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / "rollouts"
    whole = batch(
        mask=[[1, 0], [1]],
        texts=["6<eos>", "ü\u2028"],
        logp_rollout=[[-0.1, -1e-30], [-2.0]],
        advantages=[[0.5, 0.5], [-0.5]],
        updates=[[0], [1]],
        observed={"grad_norm": 0.25},
        reported={"actor/grad_norm": 0.25},
    )
    write(folder, whole)
    write(folder, batch(2))
    assert list(read([folder])) == [batch(2, observed={"reward": 0.5}), whole]
    assert whole.observed == {"grad_norm": 0.25, "reward": 0.5}
    assert sorted(path.name for path in folder.iterdir()) == ["000002.json", "000004.json"]


def test_a_later_attempt_counts(tmp_path: Path) -> None:
    write(tmp_path / "1", batch(2))
    write(tmp_path / "1", batch(4))
    write(tmp_path / "2", batch(4, temperature=0.5))
    assert [b.temperature for b in read([tmp_path / "1", tmp_path / "2"])] == [1.0, 0.5]


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"step"', "is no rollout batch"),
        ("[]", "is no rollout batch"),
        ('{"step": 1}', "missing 4 required"),
    ],
)
def test_a_file_that_cannot_be_understood_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "000001.json").write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        list(read([tmp_path]))
    assert "000001.json" in str(error.value)
