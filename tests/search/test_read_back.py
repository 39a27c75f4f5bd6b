"""Searches in the experiment's own report, read back from their journals."""

from dataclasses import replace
from pathlib import Path

from orchestrator.pipeline.completion import digest_of
from orchestrator.runs.plan import plan
from orchestrator.search.results import read_searches
from orchestrator.search.section import experiment_sections
from tests.launch.kit import content
from tests.search.rehearsed import house


def test_a_search_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = house(tmp_path, ["k1.reward", "k3.loss"], name="one", trials=3)
    before = made.run()
    after, faults = read_searches(made.experiment)
    assert faults == []
    assert [one.search.name for one in after] == ["k1.reward", "k3.loss"]
    for own, read in zip(before, after, strict=True):
        assert [t.beta for t in read.trials] == [t.beta for t in own.trials]
    (section,), _ = experiment_sections(made.experiment)
    assert section.id == "tune-one"
    best, contest, trials = section.tables
    assert [row[0] for row in best.rows] == ["k1.reward", "k3.loss"]
    assert contest.rows[0][0] == "k1.reward − k3.loss"
    assert contest.rows[0][3] == "those that chose"
    assert len(trials.rows) == 6


def test_a_search_with_nothing_measured_is_told_as_such(tmp_path: Path) -> None:
    made = house(tmp_path)
    made.stopped()
    (section,), _ = experiment_sections(made.experiment)
    assert section.tables[0].rows[0][2] == "nothing measured yet"


def test_a_search_of_another_wording_of_the_spec_is_left_out_with_a_sentence(
    tmp_path: Path,
) -> None:
    made = house(tmp_path)
    made.run()
    spec = made.experiment.spec
    longer = [s.model_copy(update={"base": {**s.base, "num_train_steps": 7}}) for s in spec.studies]
    changed = replace(made.experiment, spec=spec.model_copy(update={"studies": tuple(longer)}))
    sections, (fault,) = experiment_sections(changed)
    assert sections == []
    assert "the spec has changed since" in fault
    wrong = {**(spec.tune or {}), "beta": [2, 1]}
    unreadable = replace(made.experiment, spec=spec.model_copy(update={"tune": wrong}))
    assert "cannot be shown" in experiment_sections(unreadable)[1][0]


def test_looking_changes_nothing_and_a_search_unsettles_the_report(tmp_path: Path) -> None:
    made = house(tmp_path, trials=2)
    made.run()
    before = content(tmp_path)
    experiment_sections(made.experiment)
    assert content(tmp_path) == before
    rows = plan(made.experiment.cells, made.folder)
    first = digest_of(made.experiment, rows)
    (made.folder.report).mkdir()
    (made.folder.report / "index.html").touch()
    second = digest_of(made.experiment, rows)
    house(tmp_path, trials=3).run()
    assert len({first, second, digest_of(made.experiment, rows)}) == 3
