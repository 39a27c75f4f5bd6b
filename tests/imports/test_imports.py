"""Runs that orch did not launch: files that real loggers wrote, and what is told of them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.analysis.imported import beside, imported_data
from orchestrator.errors import OrchError
from orchestrator.imports.logged import LoggedRow, LoggedRun, flattened
from orchestrator.imports.origin import origin_of
from orchestrator.imports.readers import open_source
from orchestrator.imports.runs import ImportedRun, read_imported, remove, store
from orchestrator.metrics.names import is_canonical
from orchestrator.report.results import imported_section
from orchestrator.rundir import RunFolder

FILES = Path(__file__).parent / "files"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.of(tmp_path / "runs", "mine", "full")


def unpacked(name: str, tmp_path: Path, called: str) -> Path:
    (packed,) = FILES.glob(name)
    path = tmp_path / called
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


def imported(folder: RunFolder, source: Path | str, library: str | None = None) -> ImportedRun:
    (run,) = open_source(str(source))
    kept, _ = store(folder, run, origin_of(run, library), {})
    return kept


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ------------------------------------------------------------------------------------- the formats


def test_a_history_as_json_lines(folder: RunFolder, tmp_path: Path) -> None:
    rows = [
        {"_step": n, "_timestamp": 1.7e9, "critic/score/mean": n / 10, "actor/kl_loss": 0.01 * n}
        | {"actor/pg_clipfrac": 0.1, "actor/ppo_kl": 0.0, "note": "text"}
        for n in range(4)
    ]
    lines = (
        "".join(f"{json.dumps(row)}\n" for row in rows) + '{"actor/lr": 1}\n{"_step": 4, "critic'
    )
    run = imported(folder, written(tmp_path / "history.jsonl", lines))
    assert run.manifest.library == "verl"
    assert [p.values["train/kl_term"] for p in run.points] == pytest.approx([0, 0.01, 0.02, 0.03])
    assert run.finals["train/reward_mean"] == pytest.approx(0.3)
    assert [p.step for p in run.points] == [0, 1, 2, 3], "a row without a step is none"
    assert run.manifest.notes == ("line 6 is no JSON; it is left out",)


def test_tensorboard_of_a_real_trainer(folder: RunFolder, tmp_path: Path) -> None:
    unpacked("events*.gz", tmp_path, "logs/events.out.tfevents.1.host.1.0")
    run = imported(folder, tmp_path / "logs")
    (data,) = imported_data([run])
    assert run.manifest.library == "trl"
    assert (data["kl"], data["beta"], data["verdict"]) == ("rho_k3.loss", 0.1, "token_reverse_kl")
    assert run.last_step == 6
    assert 0 < run.finals["train/kl_term"] < 10
    assert run.finals["rollout/response_tokens"] == 8
    assert run.manifest.settings["seed"] == 7


def test_trainer_state_says_what_it_does_not_know(folder: RunFolder, tmp_path: Path) -> None:
    """TRL logs `kl` for two trainers: without settings it has no canonical name."""
    for step in (2, 10):
        path = written(tmp_path / f"out/checkpoint-{step}/trainer_state.json", "{}")
    path.write_text((FILES / "trainer_state.json").read_text())
    run = imported(folder, tmp_path / "out")
    (data,) = imported_data([run])
    assert run.manifest.origin.endswith("checkpoint-10/trainer_state.json"), "by number, not name"
    assert (run.name, run.manifest.ended, run.last_step) == ("out", "finished", 6)
    assert "kl" in run.unnamed
    assert not [name for name in run.finals if "kl" in name]
    assert data["kl"] is None
    assert data["kl_metrics"]["kl"] == "depends on the trainer: orch explain kl@trl"
    assert any("settings" in sentence for sentence in data["unknown"])


def test_mlflow_of_a_real_store(folder: RunFolder, tmp_path: Path) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    owner = client.create_experiment("rloo", artifact_location=str(tmp_path / "artifacts"))
    run_id = client.create_run(owner, run_name="leave one out").info.run_id
    settings = {"beta": 0.05, "normalize_advantages": False, "num_generations": 4}
    more = {"num_iterations": 1, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    for name, value in {**settings, **more}.items():
        client.log_param(run_id, name, value)
    for step in range(3):
        for name, value in {"kl": 0.1 * step, "reward": 0.5, "step_time": 2.0}.items():
            client.log_metric(run_id, name, value, step=step)
    client.set_terminated(run_id, "FAILED")
    run = imported(folder, uri, "trl@1.16.0")
    (data,) = imported_data([run])
    assert (run.name, run.manifest.ended) == ("leave-one-out", "failed")
    assert (data["kl"], data["beta"], data["verdict"]) == ("k1.reward", 0.05, "unbiased_reverse_kl")
    assert run.finals["train/kl_reference_per_token"] == pytest.approx(0.2)
    assert "train/kl_term" not in run.finals, "rloo's kl is a mean over tokens, its penalty a sum"
    with pytest.raises(OrchError, match=r"has no experiment 'grpo' .it has: .*rloo"):
        open_source(uri, experiment="grpo")
    with pytest.raises(OrchError, match="leave one out"):
        open_source(uri, runs=["nobody"])


# ---------------------------------------------------------------------- what is told of their KL


VERL = {
    "actor_rollout_ref": {
        "actor": {
            "use_kl_loss": True,
            "kl_loss_coef": 0.001,
            "kl_loss_type": "low_var_kl",
            "ppo_mini_batch_size": 256,
            "ppo_epochs": 1,
        },
        "rollout": {"n": 8},
    },
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 256},
}
SLIME = {
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
    "kl_loss_type": "k1",
    "advantage_estimator": "grpo",
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
    "rollout_batch_size": 32,
    "n_samples_per_prompt": 8,
    "global_batch_size": 256,
    "num_rollout": 100,
}
NEMO = {
    "loss_fn": {"reference_policy_kl_penalty": 0.01, "reference_policy_kl_type": "k2"},
    "grpo": {"num_prompts_per_step": 32, "num_generations_per_prompt": 16},
    "policy": {"train_global_batch_size": 512},
}


@pytest.mark.parametrize(
    ("library", "settings", "verdict"),
    [
        ("verl", VERL, "token_forward_kl"),
        ("slime", SLIME, "zero_mean_noise"),
        ("nemo_rl", NEMO, "undetermined"),
    ],
)
def test_logged_settings_say_the_objective(
    folder: RunFolder, library: str, settings: Any, verdict: str
) -> None:
    """The settings tell the library, and the audit reads them as it reads a launch."""
    rows = [LoggedRow(3, 0.0, {"reward": 0.5})]
    logged = LoggedRun("run", "mlflow", "a store", "1", rows, flattened(settings))
    run, _ = store(folder, logged, origin_of(logged), {})
    (data,) = imported_data([run])
    assert run.manifest.library == library
    assert data["verdict"] == verdict, data
    assert data["problems"] == []


def test_every_row_of_a_library_names_a_metric_or_means_something() -> None:
    assert {"trl", "verl", "openrlhf", "slime", "nemo_rl"} <= {*plugins.logging()}
    for library in plugins.logging():
        table = plugins.logged_metrics(library)
        assert table is not None
        for row in table.metrics:
            assert not row.ours or is_canonical(row.ours), (library, row)
            assert row.ours or row.meaning, (library, row)
            assert bool(row.meaning) == bool(row.source), (library, row)


# ------------------------------------------------------------------- kept beside the experiment


def test_a_run_is_kept_once_and_updated_as_it_grows(folder: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    line = '{"_step": %d, "actor/ppo_kl": 0.1, "actor/kl_loss": 0.2, "actor/pg_clipfrac": 0}\n'
    changes = []
    for text in (line % 0, line % 0, line % 0 + line % 1):
        (run,) = open_source(str(written(path, text)))
        changes.append(store(folder, run, origin_of(run), {})[1])
    assert changes == ["imported", "unchanged", "updated"]
    (kept,) = read_imported(folder)
    assert (kept.name, kept.last_step) == ("h", 1)
    (other,) = open_source(str(written(tmp_path / "other" / "h.jsonl", line % 5)))
    assert store(folder, other, origin_of(other), {})[0].name == "h-2"
    with pytest.raises(OrchError, match="'h' is already imported, from"):
        store(folder, other, origin_of(other), {}, "h")
    renamed, _ = store(folder, other, origin_of(other), {"actor/ppo_kl": "train/ratio_max"}, "mine")
    assert renamed.finals["train/ratio_max"] == 0.1
    assert [run.name for run in read_imported(folder)] == ["h", "mine"]
    assert remove(folder, "mine")
    assert not remove(folder, "../h")
    assert [run.name for run in read_imported(folder)] == ["h"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("absent.json", None, "is not there; orch import reads a history"),
        ("notes.txt", "hello", "is in no format that orch knows"),
        ("table.csv", "a,b", "is in no format that orch knows"),
        ("cut.json", '[{"a": 1}, {"b"', "is cut off or no JSON"),
        ("cut/trainer_state.json", '{"log_history": [', "is cut off, or no trainer_state.json"),
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


def test_the_report_sets_imported_runs_beside_the_cells(
    folder: RunFolder, tmp_path: Path, synthetic: Any
) -> None:
    from orchestrator.analysis.compare import compare

    unpacked("events*.gz", tmp_path, "grpo-tiny/events.out.tfevents.1.host.1.0")
    run = imported(folder, tmp_path / "grpo-tiny")
    done = synthetic.grid({"k1.reward": [0.7, 0.8]})
    own = compare(synthetic.spec({}), done.records, done.scores).configurations
    (reward, *_) = beside([run], own)
    assert (reward["lines"][0]["name"], reward["lines"][0]["imported"]) == ("grpo-tiny", True)
    assert any(not line["imported"] for line in reward["lines"])
    section = imported_section([run], own)
    assert section is not None
    assert section.tables[0].rows[0][:4] == ("grpo-tiny", "trl", "rho_k3.loss", "0.1")
    assert "in no interval and in no claim" in section.text[0]
    assert section.figures[0].views[0]["title"] == "reward_mean"
    assert imported_section([], own) is None
