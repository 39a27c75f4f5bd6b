"""verl 0.9.1 trains on this machine with the launch that orch emits: its whole main_ppo, in one
process. Only vLLM, the GPU, Ray's processes and TransferQueue's stand in."""

from pathlib import Path

import pytest

from orchestrator.prove import real
from orchestrator.prove.checks import checks
from tests.backends import proven
from tests.backends.cpu_meter import CpuMeter
from tests.backends.environments import cpu_python, root
from tests.backends.trained import hold
from tests.prove.scripts import VERL

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


def test_somebodys_script_is_rehearsed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`orch rehearse --real train.sh`: four train steps a batch, its own other arguments kept."""
    cpu_python("verl", "0.9.1")
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(root()))
    script = tmp_path / "it's mine.sh"
    script.write_text(VERL)
    (chosen,) = real.chosen_of_script(script, folder / "script")
    with CpuMeter(str(folder / "script")) as meter:
        outcome = real.rehearse(chosen, folder / "script")
    steps = chosen.small.cell.settings.num_train_steps
    hold("verl", "0.9.1", "somebody's script, rehearsed", steps, meter.seconds)
    assert outcome.holds, outcome
    assert outcome.proof is not None
    assert {each.name for each in outcome.proof.quantities} >= {"grad_norm", "weights", "kl_loss"}
    assert {"actor_rollout_ref.model.path", "trainer.n_gpus_per_node"} <= {
        each.name for each in outcome.deviations
    }
