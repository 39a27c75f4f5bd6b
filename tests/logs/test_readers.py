"""Logs of runs: files that real loggers wrote, and what is known of them."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator import plugins
from orchestrator.audit.diagnose.trace import Trace, trace_of
from orchestrator.errors import OrchError
from orchestrator.logs.logged import LoggedRun
from orchestrator.logs.origin import origin_of
from orchestrator.logs.readers import open_source
from orchestrator.metrics.names import is_canonical

FILES = Path(__file__).parent / "files"


class Read(NamedTuple):
    run: LoggedRun
    library: str | None
    trace: Trace


def unpacked(name: str, tmp_path: Path, called: str) -> Path:
    (packed,) = FILES.glob(name)
    path = tmp_path / called
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


def read(source: Path) -> Read:
    (run,) = open_source(str(source))
    library = origin_of(run).library
    return Read(run, library, trace_of(run, library))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ------------------------------------------------------------------------------------- the formats


def test_a_history_as_json_lines(tmp_path: Path) -> None:
    rows = [
        {"_step": n, "_timestamp": 1.7e9, "critic/score/mean": n / 10, "actor/kl_loss": 0.01 * n}
        | {"actor/pg_clipfrac": 0.1, "actor/ppo_kl": 0.0, "note": "text"}
        for n in range(4)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    cut = '{"actor/lr": 1}\n{"_step": 4, "critic'
    found = read(written(tmp_path / "history.jsonl", lines + cut))
    assert found.library == "verl"
    assert found.trace.get("train/kl_term") == pytest.approx([0, 0.01, 0.02, 0.03])
    assert found.trace.get("train/reward_mean")[-1] == pytest.approx(0.3)
    assert list(found.trace.steps) == [0, 1, 2, 3], "a row without a step is none"


def test_tensorboard_of_a_real_trainer(tmp_path: Path) -> None:
    unpacked("events*.gz", tmp_path, "logs/events.out.tfevents.1.host.1.0")
    found = read(tmp_path / "logs")
    assert found.library == "trl"
    assert found.trace.steps[-1] == 6
    assert 0 < found.trace.get("train/kl_term")[-1] < 10
    assert found.trace.get("rollout/response_tokens")[-1] == 8


def test_trainer_state_of_the_last_checkpoint(tmp_path: Path) -> None:
    for step in (2, 10):
        path = written(tmp_path / f"out/checkpoint-{step}/trainer_state.json", "{}")
    path.write_text((FILES / "trainer_state.json").read_text())
    found = read(tmp_path / "out")
    assert (found.run.name, found.trace.steps[-1]) == ("out", 6), "of 10: by number, not name"


def test_every_row_of_a_library_names_a_metric_or_means_something() -> None:
    assert {"trl", "verl", "openrlhf", "slime", "nemo_rl"} <= {*plugins.logging()}
    for library in plugins.logging():
        table = plugins.logged_metrics(library)
        for row in table.metrics:
            assert not row.ours or is_canonical(row.ours), (library, row)
            assert row.ours or row.meaning, (library, row)
            assert bool(row.meaning) == bool(row.source), (library, row)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("absent.json", None, "is not there; orch reads a history"),
        ("notes.txt", "hello", "is in no format that orch knows"),
        ("table.csv", "a,b", "has no row and no object"),
        ("cut.json", '[{"a": 1}, {"b"', "is cut off or no JSON"),
        ("cut/trainer_state.json", '{"log_history": [', "has no row and no object with metrics"),
        ("words.jsonl", '{"a": "x"}', "has no row with a step and a number"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(
    tmp_path: Path, name: str, text: str | None, sentence: str
) -> None:
    path = tmp_path / name
    if text is not None:
        written(path, text)
    with pytest.raises(OrchError, match=sentence.replace(".", r"\.")):
        open_source(str(path))
