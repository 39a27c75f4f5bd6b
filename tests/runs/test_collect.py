"""collect: run directories -> Records, whatever state they are in."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import plugins
from orchestrator.analysis.compare import compare
from orchestrator.errors import LogFault
from orchestrator.metrics.points import merge
from orchestrator.pipeline.training import keep_spec
from orchestrator.records import Cell, ExitRecord, MetricPoint, Outcome, Record
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from tests.launch.kit import content

ELDER = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "elder"


@pytest.fixture
def cell(synthetic: Any) -> Cell:
    made: Cell = synthetic.run().records[0].cell
    return made


def attempt_of(folder: RunFolder, cell: Cell, *steps: int, shift: float = 0.0) -> AttemptDir:
    """One more attempt that logged these steps and has not ended."""
    folder.open()
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    attempt = cell_dir.new_attempt()
    attempt.job.write_text("{}")
    for step in steps:
        with attempt.metrics.open("a") as file:
            plain = {"step": step, "time": 100.0 + step, "values": {"train/entropy": step + shift}}
            file.write(json.dumps(plain) + "\n")
    return attempt


def ended(state: str, **more: Any) -> ExitRecord:
    return ExitRecord.model_validate({"state": state, "started": 1.0, "ended": 2.0, **more})


def only(folder: RunFolder, cell: Cell) -> Record:
    (record,) = collect([cell], folder)
    return record


def entropies(record: Record) -> dict[int, float]:
    return {point.step: point.values["train/entropy"] for point in record.metrics}


def test_a_record_says_all_and_reading_changes_nothing(folder: RunFolder, cell: Cell) -> None:
    attempt = attempt_of(folder, cell, 1, 2, 3)
    exit_record = ended("succeeded", outcome=Outcome(kind="trained"))
    attempt.write_exit(exit_record)
    before = content(folder.path)
    record = only(folder, cell)
    assert record.state == "succeeded"
    assert record.attempts == (exit_record,)
    assert record.outcome.kind == "unclear", "three steps tell nothing"
    assert entropies(record) == {1: 1.0, 2: 2.0, 3: 3.0}
    assert record.metrics[0].time == 101.0
    assert record.faults == ()
    assert content(folder.path) == before


def test_the_outcome_is_judged_anew_from_the_curve_of_all_attempts(
    folder: RunFolder, cell: Cell
) -> None:
    for steps in (range(1, 61), range(41, 101)):
        attempt = attempt_of(folder, cell)
        for step in steps:
            reward = 0.0 if step >= 71 or (step > 50 and steps[0] == 1) else 0.5 + step % 2 / 100
            values = {"train/reward_mean": reward}
            with attempt.metrics.open("a") as file:
                file.write(json.dumps({"step": step, "time": 100.0, "values": values}) + "\n")
        attempt.write_exit(ended("preempted"))
    assert only(folder, cell).outcome is None, "it has not ended"
    attempt.exit.unlink()
    attempt.write_exit(ended("succeeded", outcome=Outcome(kind="trained")))
    judged = only(folder, cell).outcome
    assert (judged.kind, judged.cause, judged.step) == ("collapsed", "reward", 71)


@pytest.mark.parametrize("keep", [1, 10, 40])
def test_a_torn_last_line_is_told_and_the_rest_kept(
    folder: RunFolder, cell: Cell, keep: int
) -> None:
    attempt = attempt_of(folder, cell, 1, 2, 3)
    raw = attempt.metrics.read_bytes()
    third = raw.rindex(b"\n", 0, len(raw) - 1) + 1
    attempt.metrics.write_bytes(raw[: third + keep])
    record = only(folder, cell)
    assert entropies(record) == {1: 1.0, 2: 2.0}
    assert len(record.faults) == 1
    assert "line 3 is cut off" in record.faults[0]


def test_a_line_being_written_by_a_living_worker_is_no_fault(folder: RunFolder, cell: Cell) -> None:
    attempt = attempt_of(folder, cell, 1)
    with attempt.metrics.open("a") as file:
        file.write('{"step": 2, "ti')
    claim = folder.cell(cell).take_claim()
    with claim:
        record = only(folder, cell)
        assert (record.state, record.faults) == ("running", ())
    assert len(only(folder, cell).faults) == 1


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\x00\xff\xfe" * 50, "cut off"),
        (b'{"a": 1}\n', "gave 0 points"),
        (b'{"step": "x", "time": 1, "values": {}}\n', "and 'x' is none"),
        (b'{"step": 1, "time": 1, "values": 3}\n', "not what backend 'micro' writes"),
        (b"[1, 2]\n", "cut off"),
    ],
)
def test_a_foreign_metrics_file_is_told(
    folder: RunFolder, cell: Cell, raw: bytes, says: str
) -> None:
    attempt_of(folder, cell, 1).metrics.write_bytes(raw)
    record = only(folder, cell)
    assert record.metrics == ()
    assert len(record.faults) == 1
    assert says in record.faults[0]


def line(step: object, time: object, values: object) -> str:
    return json.dumps({"step": step, "time": time, "values": values}) + "\n"


@pytest.mark.parametrize(
    ("bad", "kept", "says"),
    [
        (line(2, 2.0, {"train/entropy": "a"}), {1, 3}, "train/entropy 'a'"),
        (line(2, 2.0, {"train/entropy": None}), {1, 3}, "train/entropy None"),
        (line(2, 2.0, {"train/entropy": 10**400}), {1, 3}, "train/entropy a number of 1329 bits"),
        (line(2, 2.0, {"train/entropy": 2.0, "note": "x"}), {1, 2, 3}, "note 'x'"),
        (line(2, "x", {"train/entropy": 2.0}), {1, 3}, "the time of step 2 is 'x'"),
        (line(2, float("nan"), {"train/entropy": 2.0}), {1, 3}, "the time of step 2 is nan"),
        (line(10**20, 2.0, {"train/entropy": 2.0}), {1, 3}, "a number of 67 bits is none"),
        (line(1.5, 2.0, {"train/entropy": 2.0}), {1, 3}, "and 1.5 is none"),
        (line(True, 2.0, {"train/entropy": 2.0}), {1, 3}, "and True is none"),
    ],
)
def test_what_is_no_number_is_told_and_costs_itself_alone(
    folder: RunFolder, cell: Cell, synthetic: Any, bad: str, kept: set[int], says: str
) -> None:
    attempt = attempt_of(folder, cell, 1)
    with attempt.metrics.open("a") as file:
        file.write(bad + line(3, 3.0, {"train/entropy": 3.0}))
    record = only(folder, cell)
    assert set(entropies(record)) == kept
    (fault,) = record.faults
    assert says in fault
    assert str(attempt.path) in fault
    compare(synthetic.spec({}), [record], [])


def test_nan_and_infinity_are_numbers_that_a_diverged_run_reports(
    folder: RunFolder, cell: Cell
) -> None:
    attempt = attempt_of(folder, cell)
    attempt.metrics.write_text(line(1, 1, {"train/entropy": float("inf"), "a": float("nan")}))
    record = only(folder, cell)
    assert record.faults == ()
    assert entropies(record) == {1: float("inf")}


@pytest.mark.parametrize("name", [str(10**20), "9" * 200, "007", "0", "\u00b2", "1 "])
def test_a_folder_that_is_no_attempt_is_not_taken_for_one(
    folder: RunFolder, cell: Cell, name: str
) -> None:
    attempt = attempt_of(folder, cell, 1)
    attempt.write_exit(ended("succeeded"))
    (attempt.path.parent / name).mkdir()
    record = only(folder, cell)
    assert (record.state, len(record.attempts)) == ("succeeded", 1)
    assert folder.cell(cell).new_attempt().number == 2


@pytest.mark.parametrize("when", ["1e999", "-1", "1e300", "NaN"])
def test_an_exit_record_of_no_time_costs_only_its_cell(
    folder: RunFolder, cell: Cell, when: str
) -> None:
    attempt = attempt_of(folder, cell, 1)
    attempt.write_exit(ended("succeeded"))
    attempt.exit.write_text(attempt.exit.read_text().replace('"ended":2.0', f'"ended":{when}'))
    record = only(folder, cell)
    assert record.state == "unknown"
    assert any("ended" in fault for fault in record.faults)


def test_a_metrics_file_that_is_a_folder_is_told(folder: RunFolder, cell: Cell) -> None:
    attempt_of(folder, cell).metrics.mkdir()
    assert "IsADirectoryError" in only(folder, cell).faults[0]


def test_a_cut_exit_record_is_told_once_and_costs_only_its_cell(
    folder: RunFolder, synthetic: Any
) -> None:
    cells = [record.cell for record in synthetic.grid({"k1.reward": [0.5, 0.5]}).records]
    attempt_of(folder, cells[0], 1).exit.write_text('{"state": "succ')
    attempt_of(folder, cells[1], 1).write_exit(ended("succeeded"))
    broken, whole = collect(cells, folder)
    assert broken.state == "unknown"
    assert entropies(broken) == {1: 1.0}
    assert len(broken.faults) == 1
    assert "exit.json is not a JSON object" in broken.faults[0]
    assert (whole.state, whole.faults) == ("succeeded", ())


def test_a_cut_checkpoint_is_told_and_left_out(folder: RunFolder, cell: Cell) -> None:
    attempt_of(folder, cell, 1)
    root = folder.cell(cell).checkpoints
    whole, cut = (Path(shutil.copytree(ELDER, root / f"step-{step}")) for step in (10, 20))
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (root / ".step-30.77").mkdir()
    (root / "resume.safetensors").write_bytes(b"x")
    record = only(folder, cell)
    assert [(point.step, point.path) for point in record.checkpoints] == [(10, whole)]
    assert len(record.faults) == 1
    assert str(cut) in record.faults[0]


def test_an_attempt_with_no_step_left_may_log_nothing(folder: RunFolder, cell: Cell) -> None:
    """The first is ended after its last step, before it says so; the second has nothing to do."""
    last = cell.settings.num_train_steps
    attempt_of(folder, cell, last - 1).write_exit(ended("preempted"))
    attempt_of(folder, cell).write_exit(ended("succeeded"))
    (fault,) = only(folder, cell).faults
    assert "there is no metric" in fault
    attempt_of(folder, cell, last).write_exit(ended("preempted"))
    attempt_of(folder, cell).write_exit(ended("succeeded"))
    assert only(folder, cell).faults == (fault,)


def test_what_a_backend_cannot_read_of_a_log_is_told(
    folder: RunFolder, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_of(folder, cell, 1)

    def read(_: Path) -> Iterator[MetricPoint]:
        yield MetricPoint(1, 1.0, {"train/entropy": 2.0})
        raise LogFault("log holds none of the names")

    monkeypatch.setattr(plugins.load("micro"), "read_metrics", read)
    record = only(folder, cell)
    assert entropies(record) == {1: 2.0}
    assert record.faults == ("log holds none of the names",)


def point(step: int, origin: float, name: str = "train/entropy") -> MetricPoint:
    return MetricPoint(step, origin, {name: origin})


def test_two_points_of_one_step_are_one() -> None:
    (joined,) = merge([[point(3, 1.0), point(3, 2.0, "eval/entropy")]])
    assert joined == MetricPoint(3, 1.0, {"train/entropy": 1.0, "eval/entropy": 2.0})


def test_an_evaluation_of_the_checkpoint_that_a_run_goes_on_from_replaces_no_train_step() -> None:
    validated = point(4, 2.0, "eval/validation/mean")
    merged = merge([[point(3, 1.0), point(4, 1.0), point(5, 1.0)], [validated, point(5, 2.0)]])
    assert [(p.step, sorted(p.values.values())) for p in merged] == [
        (3, [1]),
        (4, [1, 2]),
        (5, [2]),
    ]
    only = merge([[point(3, 1.0), point(4, 1.0), point(5, 1.0)], [validated], []])
    assert [p.step for p in only] == [3, 4]


@given(st.lists(st.lists(st.integers(0, 30), unique=True).map(sorted), max_size=5))
def test_merge_keeps_the_latest_attempt_that_reached_a_step(attempts: list[list[int]]) -> None:
    merged = merge(
        [point(step, float(number)) for step in steps] for number, steps in enumerate(attempts)
    )
    assert [p.step for p in merged] == sorted({p.step for p in merged})
    for one in merged:
        number = int(one.time)
        assert one.step in attempts[number]
        assert not any(steps and steps[0] <= one.step for steps in attempts[number + 1 :])
    last = next((steps for steps in reversed(attempts) if steps), [])
    assert set(last) <= {p.step for p in merged}


def test_a_seed_is_planned_once_by_the_first_run_that_has_it(
    synthetic: Any, folder: RunFolder
) -> None:
    def launched(*seeds: int) -> dict[int, float | None]:
        cells = tuple(synthetic.run(seed=seed).records[0].cell for seed in seeds)
        keep_spec(Experiment(synthetic.spec(), (), cells, "local", folder, "micro"))
        return {r.cell.settings.seed: r.planned for r in collect(cells, folder)}

    first = launched(0, 1)
    assert first[0] is not None
    assert first[0] == first[1]
    assert launched(0, 1) == first, "the same command again plans nothing"
    more = launched(0, 1, 2)
    assert (more[0], more[1]) == (first[0], first[1])
    assert more[2] > first[0]
