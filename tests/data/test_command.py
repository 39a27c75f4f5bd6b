"""orch data prepare, as it is typed."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.data import declared
from orchestrator.errors import SelectionError, SpecError
from tests.command_line import ROOT, orch

PROBLEM = {"question": "Make 6.", "metadata": {"numbers": [2, 3], "target": 6}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a config group `data` of two entries and the files of one."""
    group = tmp_path / "experiments" / "data"
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text("path: raw/train.jsonl\nreward: countdown\nnum_prompts: 2\n")
    (group / "gone.yaml").write_text("path: nowhere.parquet\n")
    (group / "bad.yaml").write_text("path: 5\nreward: nice\ncolour: red\n")
    (tmp_path / "raw").mkdir()
    for name in ("train", "validation"):
        (tmp_path / "raw" / f"{name}.jsonl").write_text((json.dumps(PROBLEM) + "\n") * 2)
    return tmp_path


def test_what_can_be_prepared_is_and_the_rest_is_told(home: Path) -> None:
    pytest.importorskip("datasets")
    done = orch(home, "data", "prepare", "mine", "gone", "--json", HF_HOME=str(home / "hf"))
    assert done.returncode == 1
    assert "data.path nowhere.parquet is a file that is not in" in done.stderr
    assert "Traceback" not in done.stderr
    assert "mine: 2 of its 2 validation prompts are training prompts too" in done.stderr
    [made] = json.loads(done.stdout)
    assert (made["name"], made["num_prompts"], made["state"]) == ("mine", 2, "prepared")
    folder = Path(made["folder"])
    assert folder.parent == home / "data" / "prepared"
    assert {path.name for path in folder.iterdir()} == {
        "about.json",
        "chat",
        "labelled",
        "questions",
    }
    again = orch(home, "data", "prepare", "mine", HF_HOME=str(home / "hf"))
    assert again.returncode == 0, again.stderr
    assert "was there" in again.stdout


def test_names_and_specs(home: Path) -> None:
    group = home / "experiments" / "data"
    [mine] = declared("mine", group)
    assert (mine.name, mine.num_prompts) == ("mine", 2)
    with pytest.raises(SelectionError, match=r"no data 'mein' in .*did you mean 'mine'\?"):
        declared("mein", group)
    with pytest.raises(SpecError) as told:
        declared("bad", group)
    assert all(part in str(told.value) for part in ("$.path", "$.reward", "$.colour"))
    whole = {data.name for data in declared(str(ROOT / "experiments" / "comedy_full.yaml"), group)}
    assert whole == {"math", "countdown"}
