"""Evaluation jobs: export in the library's environment, failures of their own class, retries."""

import os
import signal
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.files import write_text
from orchestrator.launch.slurm import scheduler
from orchestrator.launch.slurm.submissions import read_end
from orchestrator.records import Cell, Spec
from orchestrator.records import EvaluationSpec as Asked
from orchestrator.runs import evaluation_jobs
from orchestrator.runs.cost import evaluation_hours
from orchestrator.runs.evaluation_jobs import EvaluationState
from orchestrator.runs.operations import retry
from orchestrator.runs.wait import SubmitRequest, evaluation_states, start, wait
from tests.launch import exporter
from tests.launch.slurm.conftest import Site


@pytest.fixture
def verl(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site with the real backends, on the nodes too; nothing is scored beside the export."""
    import importlib

    monkeypatch.setattr(
        plugins, "load", lambda name: importlib.import_module(f"backends.{name}").BACKEND
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    spec = Spec(name="x", studies=(), evaluation=Asked())
    site.folder.open()
    write_text(site.folder.spec, spec.model_dump_json())
    return site


def request(site: Site, *cells: Cell) -> SubmitRequest:
    return SubmitRequest(cells, site.folder, site.options, evaluate=True, tell=site.told.append)


def of(site: Site, cell: Cell) -> EvaluationState:
    looks = [(cell, site.look(cell))]
    return evaluation_states(site.folder, looks)[1][site.folder.cell(cell).path.name]


def test_a_failed_export_is_no_failed_training_and_goes_again(verl: Site, tmp_path: Path) -> None:
    place = exporter.environment(tmp_path / "env 'of' verl")
    cells = [exporter.trained(verl.folder, seed)[0] for seed in range(2)]
    verl.set(**exporter.options(place, "fail"), evaluation={"gpus": 1, "memory_gib": 0.5})
    assert start(request(verl, *cells)).cells == (), "they are trained"
    assert "submitted the evaluation of 2 trained cells" in verl.told[-1]
    shown = verl.cluster.run("squeue", "-h", "-r", "-o", "%b %m")
    assert set(shown.split("\n")) <= {"gres:gpu:1 512M", "N/A 512M", ""}, shown
    seen = wait(request(verl, *cells))
    assert seen.count("succeeded") == 2
    for cell in cells:
        told = of(verl, cell)
        assert (told.state, told.failures) == ("failed", 2), "it was tried again once"
        assert told.exit.failure == "export"
        assert "size mismatch for lm_head.weight" in told.exit.message
    assert exporter.calls(place) == 4
    verl.set(**exporter.options(place))
    assert start(request(verl, *cells)).cells == ()
    assert of(verl, cells[0]).state == "failed", "running again is not enough"
    done = retry(cells, verl.folder)
    assert [(d.done, d.note) for d in done] == [(True, "its evaluation had failed")] * 2
    wait(request(verl, *cells))
    assert [of(verl, cell).state for cell in cells] == ["succeeded"] * 2, verl.words(cells[0])
    made = [*verl.folder.path.glob("cells/*/exports/*/huggingface/model.safetensors")]
    assert len(made) == 2
    assert not retry(cells, verl.folder)[0].done
    assert exporter.calls(place) == 6
    assert evaluation_hours(verl.folder) > 0


def test_an_evaluation_avoids_a_node_with_a_bad_gpu(verl: Site, tmp_path: Path) -> None:
    verl.cluster.spoil("a100-0", "0, 81153, 81920, 7\n")
    place = exporter.environment(tmp_path / "env")
    cell, _ = exporter.trained(verl.folder)
    options = exporter.options(place) | {"exclude": "a100-[2-3]", "gres": "gpu:a100:4"}
    verl.set(**options, evaluation={"gpus": 1, "memory_gib": 0.5})
    start(request(verl, cell))
    wait(request(verl, cell))
    assert of(verl, cell).state == "succeeded", verl.words(cell)
    first, second = [
        record
        for path in sorted(verl.folder.path.glob("slurm/*/ends/0.*.json"), key=os.path.getmtime)
        if (record := read_end(path)) is not None
    ]
    assert (first.failure, first.host) == ("node", "a100-0")
    assert first.message == "node a100-0: GPU 0 has 7 uncorrectable ECC errors"
    assert (second.state, second.host) == ("succeeded", "a100-1")
    assert verl.told[-1].endswith(", on 1 GPU, without node a100-0"), verl.told
    assert exporter.calls(place) == 1, "it was found before anything started"


def test_an_evaluation_that_dies_is_lost_and_told_and_goes_again(
    verl: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LATE_SECONDS", 1.0)
    place = exporter.environment(tmp_path / "env")
    cell, _ = exporter.trained(verl.folder)
    verl.set(**exporter.options(place, "slow"), retries={"lost": 1})
    start(request(verl, cell))
    for count in (1, 2):
        verl.wait_for(lambda least=count: exporter.calls(place) >= least, cell, 90)
        assert of(verl, cell).state == "pending"
        merger = int((place / "calls").read_text().split()[-1])
        stat = Path(f"/proc/{merger}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(stat[1]), signal.SIGKILL)  # its parent is the job's own process
        verl.wait_for(lambda: of(verl, cell).state != "pending", cell)
        told = of(verl, cell)
        assert told.exit is not None, told
        assert (told.state, told.exit.failure) == ("failed", "lost")
        assert evaluation_jobs.may_repeat(told, verl.options) == (count == 1)
        start(request(verl, cell))
    assert of(verl, cell).failures == 2
    assert not verl.cluster.run("squeue", "-h"), "twice was enough"
    assert retry([cell], verl.folder)[0].done
    start(request(verl, cell))
    job = verl.cluster.run("squeue", "-h", "-r", "-o", "%F_%K").split()[0]
    verl.cluster.run("scancel", job)
    verl.wait_for(lambda: of(verl, cell).state != "pending", cell)
    told = of(verl, cell)
    assert told.exit.failure == "cancelled", "by a person, who is to say when it goes again"
    assert not evaluation_jobs.may_repeat(told, verl.options)
