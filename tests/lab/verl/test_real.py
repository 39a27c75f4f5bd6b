"""verl 0.9.1 trains on this machine with the launch that orch emits: its whole main_ppo, over a
real Ray and TransferQueue. Only vLLM and the GPU have stand-ins."""

from pathlib import Path

import pytest

from lab.prove.checks import checks
from orchestrator.library import loggers
from tests.lab import proven

pytestmark = [pytest.mark.slow, pytest.mark.long(300), pytest.mark.real]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("it's a folder")


def test_verl_does_what_its_dialect_predicts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With orch's extension: its advantages and its KL in the loss. The third, k1_to_go, is below.

    Its own loggers of W&B and TensorBoard write beside the file that orch reads.
    """
    changes = {
        "advantage": {"estimator": "reinforce"},
        "kl": {"estimator": "rho_k3", "placement": "loss", "beta": 0.05},
    }
    proof_cell = proven.other_cell("verl", "0.9.1", changes, folder)
    logging = proof_cell.cell.but(loggers=("wandb", "tensorboard"))
    proof_cell = proof_cell._replace(cell=logging)
    monkeypatch.setenv("WANDB_MODE", "offline")  # as the worker sets it where there is no key
    proof_cell.train()
    assert (proof_cell.cell_dir.plan / "extension" / "orch_verl.py").is_file()
    (attempt,) = proof_cell.cell_dir.attempts()
    (offline,) = loggers.offline_runs(attempt.path)
    (logged,) = offline.glob("*.wandb")
    assert b"actor/grad_norm" in logged.read_bytes()
    assert list(attempt.path.rglob("events.out.tfevents.*"))
    proof = proof_cell.run().proof()
    assert proof.holds, proof
    assert proof.num_steps == proven.BATCHES
    worst = {each.name: each.worst for each in proof.quantities}
    assert worst["grad_norm"] < 1e-5, worst
    assert {"advantages", "kl_loss", "weights"} <= worst.keys()


def test_four_minibatches_do_what_its_dialect_predicts(folder: Path) -> None:
    """And verl's model_merger exports the policy, which is scored."""
    proof_cell = proven.proof_cell("verl", "0.9.1", "k3.loss.x4", folder)
    proof_cell.train()
    run = proof_cell.run()
    proof = run.proof()
    assert proof.holds, proof
    assert proof.num_steps == 4 * proven.BATCHES
    worst = {each.name: each.worst for each in proof.quantities}
    assert worst["grad_norm"] < 1e-3, worst
    assert "weights" in worst
    failed = [
        each
        for each in checks(run, proof_cell.cell_dir, proof_cell.options)
        if each.holds is not True
    ]
    assert not failed, failed


def test_a_killed_run_goes_on_and_is_exported(folder: Path) -> None:
    """Killed after its first checkpoint, it repeats what came after: the proof spans both.

    `k1_to_go` is orch's own advantage estimator in verl.
    """
    proof_cell = proven.proof_cell("verl", "0.9.1", "k1_to_go.reward", folder)
    proven.goes_on_as_predicted(proof_cell, closest=1e-5)
