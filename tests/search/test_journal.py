"""The journal on disk: whose it is, and what a kill or a stranger's hand leaves of it."""

from pathlib import Path

import pytest

from orchestrator.errors import RunFolderError
from tests.launch.kit import content
from tests.search.rehearsed import house


def test_a_journal_of_another_space_is_refused_field_by_field(tmp_path: Path) -> None:
    house(tmp_path).run()
    before = content(tmp_path, without="lock")
    other = house(tmp_path, beta=[0.1, 1])
    with pytest.raises(RunFolderError) as caught:
        other.run()
    told = str(caught.value)
    assert "holds another search" in told
    assert "space.kl.beta.low: 0.01 there, 0.1 here" in told
    assert "tune.name=" in told
    assert content(tmp_path, without="lock") == before


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": [0, 1]},
        {"maximize": "train/reward_mean"},
    ],
)
def test_a_journal_of_another_spec_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    house(tmp_path).run()
    with pytest.raises(RunFolderError, match="holds another search"):
        house(tmp_path, **change).run()


def test_what_says_only_how_to_search_may_change(tmp_path: Path) -> None:
    house(tmp_path).run()
    (found,) = house(tmp_path, trials=7, parallel=2).run()
    assert len(found.trials) == 7


def test_a_torn_last_line_costs_that_line_only(tmp_path: Path) -> None:
    made = house(tmp_path, trials=3)
    made.run()
    log = made.journal().log
    with log.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"x","study_i')
    (found,) = house(tmp_path, trials=5).run()
    assert [trial.state for trial in found.trials] == ["COMPLETE"] * 5


@pytest.mark.parametrize("content", [b"\x00\xff\x00 not a journal", b"no\njournal\n"])
def test_a_file_that_is_no_journal_is_told_and_kept(content: bytes, tmp_path: Path) -> None:
    made = house(tmp_path)
    log = made.journal().log
    made.folder.open()
    log.parent.mkdir(parents=True)
    log.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"is no journal of Optuna's"):
        made.run()
    assert log.read_bytes() == content


def test_a_lost_journal_is_rebuilt_from_the_run_directories(tmp_path: Path) -> None:
    made = house(tmp_path)
    (before,) = made.run()
    made.journal().log.unlink()
    again = house(tmp_path)
    (after,) = again.run()
    assert again.trained == []
    assert [t.beta for t in after.trials] == [t.beta for t in before.trials]
    assert [t.value for t in after.trials] == [t.value for t in before.trials]
