"""verl 0.9.1 trains on this machine with the launch that orch emits: its whole main_ppo, in one
process. Only vLLM, the GPU, Ray's processes and TransferQueue's stand in."""

from pathlib import Path

import pytest

from orchestrator.prove.checks import checks
from tests.backends import proven
from tests.backends.trained import hold

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.real]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("it's a folder")


@pytest.mark.parametrize("name", ["k1.reward", "k3.loss.x4"])
def test_verl_does_what_its_dialect_predicts(name: str, folder: Path) -> None:
    proof_cell = proven.proof_cell("verl", "0.9.1", name, folder)
    seconds = proof_cell.train()
    run = proof_cell.run()
    proof = run.proof()
    hold("verl", "0.9.1", name, proof.num_steps, seconds)
    assert proof.holds, proof
    updates = run.cell.settings.batch.num_minibatches
    assert proof.num_steps == proven.BATCHES * updates
    worst = {each.name: each.worst for each in proof.quantities}
    assert worst["grad_norm"] < (1e-5 if updates == 1 else 1e-3), worst
    assert "weights" in worst


def test_a_killed_run_goes_on_and_is_exported(folder: Path) -> None:
    """Killed after its first checkpoint, it repeats what came after: the proof spans both."""
    proof_cell = proven.proof_cell("verl", "0.9.1", "k3.loss", folder)
    seconds = proven.train_killed_and_resumed(proof_cell)
    hold("verl", "0.9.1", "k3.loss, killed and resumed", proven.BATCHES, seconds)
    run = proof_cell.run()
    assert run.proof().holds, run.proof()
    left = checks(run, proof_cell.cell_dir, proof_cell.options)
    failed = [each for each in left if each.holds is not True]
    assert not failed, failed
