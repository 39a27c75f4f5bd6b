"""Two runs of a cell: what is the same, what is near, and the first place where they differ."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.repetition import Bounds, compare_runs
from orchestrator.evaluate.scores import Result, ScoreKey
from orchestrator.records import Checkpoint, EvalTask, MetricPoint, Record, Sampling, Score
from orchestrator.rundir import COMPUTED_BY

POLICY = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "elder"
Twin = Callable[..., Record]


@pytest.fixture
def twin(synthetic: Any, tmp_path: Path) -> Twin:
    """Makes one of two runs of a cell, with a checkpoint and a score on disk."""

    def make(
        name: str,
        *,
        micro: bool = True,
        value: float = 0.5,
        stderr: float = 0.02,
        entropy: float = 1.0,
    ) -> Record:
        record: Record = synthetic.run(micro=micro).records[0]
        home = tmp_path / f"{name} 'ü'" / record.cell.directory
        shutil.copytree(POLICY, home / "checkpoints" / "step-20")
        (home / "checkpoints" / "step-20" / "state.safetensors").write_text(name)
        asked = ScoreKey(
            checkpoint="c",
            step=20,
            task=EvalTask(name="micro_sort", domain="in", repeats=4),
            task_version="v1",
            sampling=Sampling(),
            seed=0,
            chat_template=False,
            harness="lm-eval",
        )
        score = Score(
            cell_id=record.cell.id,
            step=20,
            task="micro_sort",
            domain="in",
            metric="mean@4",
            value=value,
            stderr=stderr,
            num_items=16,
            repeats=4,
            items_path=f"eval/{asked.stem}.jsonl",
        )
        result = Result(asked=asked, files={}, scores=(score,), cpu_seconds=0, versions={})
        (home / "eval").mkdir()
        (home / "eval" / f"{asked.stem}.json").write_text(result.model_dump_json())
        (home / "eval" / f"{asked.stem}.jsonl").write_text("responses")
        values = {"train/entropy": entropy, "time/step_seconds": hash(name) % 97, "a": math.nan}
        return replace(
            record,
            directory=home,
            metrics=(MetricPoint(1, 1.0, values), MetricPoint(2, 2.0, {"train/entropy": 0.5})),
            checkpoints=(Checkpoint(20, home / "checkpoints" / "step-20"),),
        )

    return make


def agreement(one: Record, other: Record, **bounds: float) -> dict[str, tuple[str, str]]:
    rows = compare_runs([one], [other], Bounds(**bounds))
    return {row.what: (row.agreement, row.detail) for row in rows}


def test_equal_runs_of_the_embedded_trainer_are_identical(twin: Twin) -> None:
    """Wall-clock times, and the state to go on from, are no part of the promise."""
    found = agreement(twin("one"), twin("two"))
    assert set(found) == {"curves", "checkpoints", "scores"}
    assert {kind for kind, _ in found.values()} == {"identical"}
    assert found["curves"][1] == "3 values"


def test_one_bit_of_a_curve_is_a_difference_with_its_place(twin: Twin) -> None:
    found = agreement(twin("one"), twin("two", entropy=math.nextafter(1.0, 2.0)))
    assert found["curves"][0] == "differs"
    assert found["curves"][1].startswith("from step 1 on: train/entropy 1 and 1.0000000000000002")
    cut = twin("three")
    shorter = replace(cut, metrics=cut.metrics[:1])
    assert (
        "from step 2 on: train/entropy 0.5 and nothing"
        in agreement(twin("four"), shorter)["curves"][1]
    )


def test_a_difference_names_what_computed_the_runs(twin: Twin) -> None:
    """Kernels of another compiler or for another CPU round in other places."""
    records = twin("one"), twin("two", entropy=math.nextafter(1.0, 2.0))
    for record, by in zip(records, ("C kernels 1 (gcc)", "torch (no C compiler)"), strict=True):
        attempt = record.directory / "attempts" / str(len(record.attempts))
        attempt.mkdir(parents=True)
        (attempt / "job.json").write_text(json.dumps({"versions": {COMPUTED_BY: by}}))
    differing, whole = agreement(*records)["curves"], agreement(*records)["scores"]
    assert differing[1].endswith(
        "; one was computed by C kernels 1 (gcc), the other by torch (no C compiler), which round "
        "in other places"
    )
    assert whole == ("identical", "1 scores with their responses")


def test_one_bit_of_a_checkpoint_is_a_difference_with_its_tensor(twin: Twin) -> None:
    one, other = twin("one"), twin("two")
    weights = other.checkpoints[0].path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    kind, detail = agreement(one, other)["checkpoints"]
    assert kind == "differs"
    assert detail.startswith("step 20: tensor ")
    shutil.copy(one.checkpoints[0].path / "model.safetensors", weights)
    (weights.parent / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert agreement(one, other)["checkpoints"] == (
        "differs",
        "step 20: its config or its tokenizer",
    )
    fewer = replace(other, checkpoints=())
    assert agreement(one, fewer)["checkpoints"] == ("differs", "steps [20] and []")
    shutil.rmtree(weights.parent)
    assert agreement(one, other)["checkpoints"][0] == "missing"


def test_another_score_or_another_response_is_a_difference(twin: Twin) -> None:
    one = twin("one")
    assert agreement(one, twin("two", value=0.51))["scores"] == (
        "differs",
        "micro_sort mean@4 at step 20: 0.5 and 0.51",
    )
    other = twin("three")
    next((other.directory / "eval").glob("*.jsonl")).write_text("others")
    assert agreement(one, other)["scores"] == ("differs", "responses to micro_sort at step 20")


def test_a_librarys_runs_are_held_to_bounds(twin: Twin) -> None:
    one = twin("one", micro=False)
    near = agreement(one, twin("two", micro=False, entropy=1.03, value=0.55))
    assert {kind for kind, _ in near.values()} == {"within bounds"}
    assert "at most 2.91% apart of 5% allowed" in near["curves"][1]
    assert "at most 1.8 standard errors" in near["scores"][1]
    far = agreement(one, twin("three", micro=False, entropy=1.2, value=0.7))
    assert far["curves"][0] == far["scores"][0] == "differs"
    assert "train/entropy" in far["curves"][1]
    strict = agreement(one, twin("four", micro=False, entropy=1.03), first_step=0.01)
    assert strict["curves"][0] == "differs"


def test_scores_without_an_error_are_near_if_they_are_equal(twin: Twin) -> None:
    one = twin("one", micro=False, stderr=0.0)
    near = agreement(one, twin("two", micro=False, stderr=0.0))["scores"]
    assert near[0] == "within bounds"
    assert near[1].startswith("at most 0.0 standard errors")
    other = agreement(one, twin("three", micro=False, stderr=0.0, value=0.51))["scores"]
    assert other[0] == "differs"


def test_a_run_that_failed_compares_with_nothing(twin: Twin) -> None:
    failed = replace(twin("one"), state="failed")
    (row,) = compare_runs([failed], [twin("two")], Bounds())
    assert (row.what, row.agreement, row.is_kept) == ("training", "missing", False)
    assert row.detail == "failed and succeeded"
