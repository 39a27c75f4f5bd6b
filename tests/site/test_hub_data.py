"""doctor looks for models and evaluation data in the cache that a job will see."""

from pathlib import Path

from orchestrator.launch.hub_data import SiteFinding, hub_findings
from orchestrator.records import EvalTask, EvaluationSpec, Site
from orchestrator.settings import Kl
from tests.backends.trl.cells import cell

EVALUATION = EvaluationSpec(
    tasks=(EvalTask(name="math500", domain="in"), EvalTask(name="ifeval", domain="out"))
)


def findings(home: Path, **env: str) -> dict[str, SiteFinding]:
    trained = cell(Kl(estimator="none"), gpus=1)
    model = trained.settings.model.but(name="m", path="org/M-7B")
    trained = trained.but(settings=trained.settings.but(model=model))
    site = Site(kind="slurm", options={"env": {"HF_HOME": str(home), **env}})
    return {each.check: each for each in hub_findings(site, [trained], EVALUATION)}


def put(home: Path, kind: str, name: str, *files: str) -> None:
    kept = home / "hub" / f"{kind}--{name.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc")
    (kept / "snapshots" / "abc").mkdir(parents=True)
    for file in files:
        (kept / "snapshots" / "abc" / file).write_text("{}")


def test_what_is_not_in_the_cache_is_told_with_its_command(tmp_path: Path) -> None:
    absent = findings(tmp_path)
    assert set(absent) == {"model org/M-7B", "data of math500", "data of ifeval"}
    assert {each.verdict for each in absent.values()} == {"missing"}
    assert "hf download org/M-7B" in absent["model org/M-7B"].advice
    assert "--repo-type dataset HuggingFaceH4/MATH-500" in absent["data of math500"].advice
    offline = findings(tmp_path, HF_HUB_OFFLINE="1")
    assert {each.verdict for each in offline.values()} == {"broken"}
    assert "HF_HUB_OFFLINE is set" in offline["data of ifeval"].found


def test_what_is_in_the_cache_is_found_and_a_part_of_a_model_is_not_enough(tmp_path: Path) -> None:
    put(tmp_path, "models", "org/M-7B", "config.json", "model.safetensors")
    put(tmp_path, "datasets", "HuggingFaceH4/MATH-500", "test.jsonl")
    seen = findings(tmp_path, HF_HUB_OFFLINE="1")
    assert seen["model org/M-7B"].verdict == "broken"
    assert "lacks tokenizer" in seen["model org/M-7B"].found
    assert seen["data of math500"].verdict == "ok"
    snapshot = tmp_path / "hub" / "models--org--M-7B" / "snapshots" / "abc"
    (snapshot / "tokenizer.json").write_text("{}")
    assert findings(tmp_path)["model org/M-7B"].verdict == "ok"
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    assert "lacks weights" in findings(tmp_path)["model org/M-7B"].found


def test_local_copies_of_a_tasks_data_are_enough(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "math500.jsonl").write_text("{}\n")
    seen = findings(tmp_path, ORCH_EVAL_DATA=str(data))
    assert seen["data of math500"].verdict == "ok"
