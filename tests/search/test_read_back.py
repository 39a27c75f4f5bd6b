"""Searches in the experiment's own report, read back from their journals."""

from dataclasses import replace
from pathlib import Path

from orchestrator.identity import digest
from orchestrator.runs.completion import is_up_to_date, mark_complete
from orchestrator.runs.plan import plan
from orchestrator.search.results import read_journals
from orchestrator.search.section import experiment_sections
from orchestrator.tracking.store import store_of
from tests.search.rehearsed import house


def test_searches_from_flags_are_read_back_as_they_were(tmp_path: Path) -> None:
    made = house(tmp_path, ["k1.reward", "k3.loss"], name="one", trials=3)
    found = made.run()
    house(tmp_path, name="two", trials=2).run()
    journals, faults = read_journals(made.experiment)
    assert faults == []
    assert {name: [one.search.name for one in own] for name, own in journals.items()} == {
        "one": ["k1.reward", "k3.loss"],
        "two": ["k1.reward"],
    }
    for before, after in zip(found, journals["one"], strict=True):
        assert [t.beta for t in after.trials] == [t.beta for t in before.trials]
        assert after.search.declaration() == before.search.declaration()
    sections, data, _ = experiment_sections(made.experiment)
    assert [section.id for section in sections] == ["tune-one", "tune-two"]
    assert [len(section.figures) for section in sections] == [1, 0]
    best, contest, trials = sections[0].tables
    assert [row[0] for row in best.rows] == ["k1.reward", "k3.loss"]
    assert contest.rows[0][0] == "k1.reward − k3.loss"
    assert contest.rows[0][3] == "those that chose"
    assert len(trials.rows) == 6
    assert [panel["title"].partition(":")[0] for panel in data["tune"]] == ["one", "two"]
    assert [one["name"] for one in data["tune"][0]["series"]] == ["k1.reward", "k3.loss"]


def test_a_search_with_nothing_measured_is_told_as_such(tmp_path: Path) -> None:
    made = house(tmp_path)
    made.controller()
    (section,), _, _ = experiment_sections(made.experiment)
    assert section.figures == ()
    assert section.tables[0].rows[0][2] == "nothing measured yet"


def test_a_search_of_another_wording_of_the_spec_is_left_out_with_a_sentence(
    tmp_path: Path,
) -> None:
    made = house(tmp_path)
    made.run()
    spec = made.experiment.spec
    longer = [s.model_copy(update={"base": {**s.base, "num_train_steps": 7}}) for s in spec.studies]
    changed = replace(made.experiment, spec=spec.model_copy(update={"studies": tuple(longer)}))
    sections, data, (fault,) = experiment_sections(changed)
    assert (sections, data) == ([], {})
    assert "the spec has changed since" in fault
    (made.journal().path / "blocks" / "k1.reward.json").write_text(
        '{"space": {"kl.bta": "log(1, 2)"}}'
    )
    _, _, (fault,) = experiment_sections(made.experiment)
    assert "does not fit the spec any more" in fault


def test_looking_changes_nothing_and_a_search_unsettles_the_report(tmp_path: Path) -> None:
    made = house(tmp_path, trials=2)
    made.run()
    before = _files(tmp_path)
    experiment_sections(made.experiment)
    assert _files(tmp_path) == before
    mirror = store_of(made.folder, made.experiment.spec.site.tracking_uri)
    rows = plan(made.experiment.cells, made.folder)
    mark_complete(made.experiment, rows, mirror)
    (made.folder.report).mkdir()
    (made.folder.report / "index.html").touch()
    mark_complete(made.experiment, rows, mirror)
    house(tmp_path, trials=3).run()
    assert not is_up_to_date(made.experiment, rows, mirror)


def _files(folder: Path) -> dict[Path, str]:
    return {p: digest(p.read_text()) for p in folder.rglob("*") if p.is_file()}
