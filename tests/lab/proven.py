"""Trains a proof's cell with a real library; kills it and goes on.

The cells, their scale and the launch are those of `python -m lab prove LIBRARY@VERSION`.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lab.cpu.orch_rollout_dump import VARIABLE
from lab.prove.checks import checks
from lab.prove.proof import Run, read_run
from lab.prove.scaled_down import cell_of, cells_of, on_few_gpus, scaled_down, train
from orchestrator import plugins
from orchestrator.environments.lock import Environment
from orchestrator.records import Cell
from orchestrator.rundir import CellDir
from orchestrator.spec.site_options import EnvironmentEntry, NodeOptions
from tests.backends.environments import cpu_python

BATCHES = 4
LONGEST_WAIT = 600
"""Seconds to a first checkpoint: SkyRL needed 277 beside a load of 12."""


class ProofCell(NamedTuple):
    """A cell of a proof at small scale, and where it trains."""

    cell: Cell
    cell_dir: CellDir
    environment: Environment

    @property
    def options(self) -> NodeOptions:
        """Options that name the library's environment."""
        release = f"{self.environment.library}@{self.environment.version}"
        return NodeOptions(
            environments={release: EnvironmentEntry(venv=str(self.environment.path))}
        )

    def train(self) -> None:
        """Train it, or go on. Raise AssertionError, with the end of the log, if it fails."""
        _, ending = train(self.cell, self.cell_dir, self.environment)
        log = self.cell_dir.attempts()[-1]
        assert ending.state == "succeeded", f"{ending.message}\n{log.stderr.read_text()[-4000:]}"

    def run(self) -> Run:
        """What it left."""
        return read_run(self.cell_dir)


def proof_cell(library: str, version: str, name: str, folder: Path) -> ProofCell:
    """Return a cell of the library's proof by its name."""
    declared = dict(cells_of(library, version))[name]
    return _at_small_scale(declared, name, folder, BATCHES)


def other_cell(
    library: str,
    version: str,
    settings: Mapping[str, object],
    folder: Path,
    *,
    batches: int = BATCHES,
) -> ProofCell:
    """Return a cell that no proof of the product has, at its scale: RLOO, with these sections of
    Settings."""
    declared = on_few_gpus(cell_of(library, version, settings))
    return _at_small_scale(declared, declared.settings.kl.label, folder, batches)


def _at_small_scale(declared: Cell, name: str, folder: Path, batches: int) -> ProofCell:
    backend = declared.settings.backend
    python = cpu_python(backend.name, str(backend.version))
    chosen = scaled_down(declared, folder, batches=batches).cell
    return ProofCell(
        chosen,
        CellDir(folder / "cells" / f"{name}-{chosen.id}"),
        Environment(backend.name, str(backend.version), "cpu", python.parents[1], ""),
    )


def train_killed_and_resumed(proof: ProofCell) -> None:
    """Kill all of its processes once it has a checkpoint, and go on.

    Raise AssertionError if the second attempt did not begin after that checkpoint.
    """
    backend = plugins.load(proof.cell.settings.backend.name)
    first = threading.Thread(target=train, args=(proof.cell, proof.cell_dir, proof.environment))
    first.start()
    deadline = time.monotonic() + LONGEST_WAIT
    while not backend.find_checkpoints(proof.cell_dir.checkpoints):
        assert time.monotonic() < deadline
        assert first.is_alive(), proof.cell_dir.attempts()[-1].stderr.read_text()[-4000:]
        time.sleep(0.2)
    for process in processes(proof.cell_dir.path):
        os.kill(process, signal.SIGKILL)
    first.join()
    saved = backend.find_checkpoints(proof.cell_dir.checkpoints)[-1].step
    assert saved < proof.cell.settings.num_train_steps
    proof.train()
    assert len(proof.cell_dir.attempts()) == 2
    again = sorted((proof.cell_dir.attempts()[1].path / "rollouts").glob("[0-9]*.json"))
    updates = proof.cell.settings.batch.num_minibatches
    assert int(again[0].stem) == saved + updates, "it goes on where its checkpoint is"


def goes_on_as_predicted(
    proof_cell: ProofCell, *quantities: str, closest: float = 2e-5, all_seen: bool = True
) -> Run:
    """Kill it and go on: over both attempts it does what its dialect predicts, to the weights.

    all_seen: what must hold in any run can be looked at, all of it.
    """
    train_killed_and_resumed(proof_cell)
    run = proof_cell.run()
    proof = run.proof()
    assert proof.holds, proof
    assert (proof.num_steps, proof.precision) == (BATCHES, "fp32")
    worst = {each.name: each.worst for each in proof.quantities}
    assert worst["grad_norm"] < closest, worst
    assert {"weights", *quantities} <= worst.keys(), worst
    left = list(checks(run, proof_cell.cell_dir, proof_cell.options))
    failed = (False, None) if all_seen else (False,)
    assert not [each for each in left if each.holds in failed], left
    return run


def processes(folder: Path) -> Iterator[int]:
    """The processes of a cell's launch, by the variable that names its folder."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            held = path.read_bytes()
        except OSError:
            continue
        if f"{VARIABLE}={folder}".encode() in held:
            yield int(path.parent.name)
