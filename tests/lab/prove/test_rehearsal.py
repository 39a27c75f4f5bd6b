"""What `python -m lab rehearse` would train, and all in which that differs from the launch.

That the real library trains it is tested beside the library (tests/lab/verl/test_real.py).
"""

from contextlib import suppress
from pathlib import Path

import pytest

from lab.cpu import HOOK, CpuLaunch
from lab.cpu.orch_rollout_dump import VARIABLE
from lab.prove import real
from lab.prove.scaled_down import (
    NOWHERE,
    WANTED,
    cell_of,
    cells_of,
    environment_of,
    on_cpu,
    on_few_gpus,
    scaled_down,
)
from orchestrator.errors import EnvironmentFault, UnsupportedSetting
from orchestrator.launch.endings import Ending
from orchestrator.settings import Kl
from tests.backends.specs import declared
from tests.lab.commands import ROOT, lab


def test_declared_cells_that_are_one_training_are_trained_once(tmp_path: Path) -> None:
    cells = [c for c in declared("comedy_full") if c.settings.backend.name == "verl"]
    chosen = real.chosen(cells, tmp_path)
    assert len(chosen) < len(cells)
    assert sum(len(each.declared) for each in chosen) == len(cells)
    for each in chosen:
        on_cpu(each.small.cell, NOWHERE)
        (one,) = {c.settings.kl.model_dump_json() for c in each.declared}
        assert one == each.small.cell.settings.kl.model_dump_json()


def test_a_cell_that_its_library_refuses_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    _, cell = next(cells_of("trl", "1.16.0"))
    kl = cell.settings.kl.model_copy(update={"estimator": "k2", "placement": "loss", "beta": 0.1})
    refused = cell.model_copy(update={"settings": cell.settings.model_copy(update={"kl": kl})})
    told: list[str] = []
    assert len(real.chosen([refused, cell], tmp_path, told.append)) == 1
    assert len(told) == 1
    assert told[0].startswith(f"left out, {refused.slug}: trl cannot run kl.estimator=k2")


def test_a_proofs_cells_ask_for_fp32() -> None:
    cells = dict(cells_of("verl", "0.9.1"))
    assert cells.keys() == WANTED.keys()
    assert {c.settings.precision.training for c in cells.values()} == {"fp32"}
    with pytest.raises(EnvironmentFault, match="takes none"):
        list(cells_of("verl", "0.8.0"))


def test_a_release_that_cannot_be_run_here_is_refused() -> None:
    with pytest.raises(UnsupportedSetting, match="without a GPU"):
        on_cpu(cell_of("verl", "0.8.0", {"kl": {"estimator": "none"}}), NOWHERE)
    with pytest.raises(EnvironmentFault):
        environment_of("verl", "0.8.0")


@pytest.mark.parametrize(
    ("library", "version"),
    [("openrlhf", "0.11.2"), ("prime_rl", "0.5.0"), ("skyrl", "0.4.0"), ("trl", "1.16.0")],
)
def test_every_library_is_rehearsed_through_the_protocol(
    library: str, version: str, tmp_path: Path
) -> None:
    settings = {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.05}}
    chosen = scaled_down(cell_of(library, version, settings), tmp_path, batches=2)
    assert chosen.cell.settings.kl == Kl(estimator="k3", placement="loss", beta=0.05)
    launch = on_cpu(chosen.cell, NOWHERE)
    assert launch.plan.argv
    assert {"cpu/sitecustomize.py", f"cpu/{HOOK}"} <= launch.plan.files.keys()
    assert VARIABLE in {each.name for each in launch.deviations}
    adapted = cell_of(library, version, {**settings, "lora": {"rank": 8, "alpha": 16}})
    with suppress(UnsupportedSetting):  # OpenRLHF, and Prime-RL of all layers
        assert VARIABLE not in on_cpu(on_few_gpus(adapted), NOWHERE).plan.env, "none is replayed"


def test_a_second_rehearsal_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on from the first one's last checkpoint, and trained a step that nobody asked for."""
    cells = [c for c in declared("comedy_full") if c.settings.backend.name == "verl"]
    chosen = real.chosen(cells[:1], tmp_path)[0]
    left = tmp_path / "runs" / "cells" / chosen.small.cell.directory / "checkpoints" / "step-8"
    left.mkdir(parents=True)

    def train(*_: object, **__: object) -> tuple[CpuLaunch, Ending]:
        assert not left.exists()
        late = Ending("failed", failure="node", message="exit code 1\nmore\nException: timed out")
        return on_cpu(chosen.small.cell, NOWHERE), late

    monkeypatch.setattr(real, "environment_of", lambda *_: None)
    monkeypatch.setattr(real, "train", train)
    [trouble] = real.rehearse(chosen, tmp_path / "runs").troubles
    assert trouble.startswith("exit code 1: Exception: timed out; the machine is at fault")


@pytest.mark.slow
def test_the_command_needs_an_environment_and_says_how_to_make_it(tmp_path: Path) -> None:
    done = lab(
        tmp_path,
        "rehearse",
        ROOT / "experiments/smoke.yaml",
        "-w",
        "kl.estimator=k1",
        f"site.runs_dir={tmp_path}",
        ORCH_ENVIRONMENTS=str(tmp_path / "none"),
    )
    assert done.returncode == 1
    assert "`orch env create verl@0.9.1 --cpu` makes one" in done.stderr
    assert "Traceback" not in done.stderr
