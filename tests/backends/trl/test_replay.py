"""What TRL's dialect predicts, and what TRL does: rollouts of real runs, replayed.

TRL itself trains a few steps and writes its rollouts. The embedded trainer's advantages and
objective, in the dialect of the release, then go over the same tokens from the same policy.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.trl import BACKEND
from lab.cpu.orch_rollout_dump import RolloutBatch, weights_path
from orchestrator.metrics.names import VALIDATION
from orchestrator.records import MetricPoint
from orchestrator.settings import Clip, Kl, Loss, ReferencePolicy
from tests.backends.trl.cells import BY_SEQUENCES
from tests.lab import proven

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.long(200)]

K1 = {"kl": Kl(estimator="k1", placement="reward", beta=0.2), "loss": BY_SEQUENCES}
K3 = {"kl": Kl(estimator="k3", placement="loss", beta=0.2), "loss": BY_SEQUENCES}
RHO = {"kl": Kl(estimator="rho_k3", placement="loss", beta=0.2), "loss": BY_SEQUENCES}
RB = {"kl": Kl(estimator="rb", placement="reward_and_loss", beta=0.2)}
LENGTHS = {"loss": Loss(aggregation="constant", constant_tokens=6)}
TOKENS = {"loss": Loss()}
OF_RESPONSES = {"loss": BY_SEQUENCES.but(ratio_level="sequence")}
"""RLOOTrainer's ratio is of the response: of several minibatches a cell says so."""
GSPO = {
    "kl": RHO["kl"].model_copy(update={"ratio_level": "sequence_mean"}),
    "loss": Loss(ratio_level="sequence_mean", clip=Clip(low=3e-4, high=4e-4)),
}
TWO = {"batch": {"num_prompts": 8, "num_minibatches": 2}}
CELLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "k1.reward, two minibatches": ("1.16.0", K1 | OF_RESPONSES | TWO),
    "rho_k3, two minibatches": ("1.16.0", RHO | TWO),
    "1.9.2, k3, token mean, two minibatches": ("1.9.2", K3 | TOKENS | TWO),
    "GSPO's ratio, also on k3, two minibatches": ("1.16.0", GSPO | TWO),
    "k3, grpo, token mean": ("1.16.0", K3 | TOKENS | {"advantage": {"estimator": "grpo"}}),
    "1.9.2, k1.reward, two minibatches": ("1.9.2", K1 | OF_RESPONSES | TWO),
    "1.9.2, k3, sequence mean": ("1.9.2", K3 | {"loss": Loss(aggregation="sequence_mean")}),
    "1.9.2, rho_k3, dr_grpo": ("1.9.2", RHO | LENGTHS | {"advantage": {"estimator": "dr_grpo"}}),
}


torch.set_num_threads(1)  # of so small a size several wait longer for each other than they compute


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the library too."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def read_points(attempt_dir: Path) -> "tuple[list[MetricPoint], list[int]]":
    """Return the train steps of an attempt, and the steps of its validations."""
    points = list(BACKEND.read_metrics(attempt_dir))
    return (
        [point for point in points if VALIDATION not in point.values],
        [point.step for point in points if VALIDATION in point.values],
    )


def trained_twice(
    cell: proven.ProofCell,
) -> "tuple[list[MetricPoint], list[MetricPoint]]":
    """Train a cell of four steps, and its last two again. Return the steps of both attempts."""
    cell.train()
    shutil.rmtree(cell.cell_dir.checkpoints / "checkpoint-4")
    cell.train()
    (first, before), (second, after) = (read_points(each.path) for each in cell.cell_dir.attempts())
    assert (before, after) == ([0, 4], [2, 4]), "before the first train step and after the last"
    assert [point.step for point in second] == [3, 4]
    for one, other in zip(first[2:], second, strict=True):
        same = ("train/kl_term", "train/grad_norm", "train/reward_mean", "train/entropy")
        assert [one.values[x] for x in same] == [other.values[x] for x in same]
    return first, second


def padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """[N, T], zeros at the end."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


FEW = slice(16)
"""Rollouts of a batch that are looked at."""


def log_probabilities(model: Any, batch: RolloutBatch) -> torch.Tensor:
    """[N, T] of the responses' tokens; 0 where there is none."""
    found = []
    for prompt, response in zip(batch.prompts[FEW], batch.responses[FEW], strict=True):
        logits = model(torch.tensor([[*prompt, *response]])).logits[0] / batch.temperature
        picked = logits[len(prompt) - 1 : -1].log_softmax(-1)
        found.append(picked.gather(1, torch.tensor(response)[:, None])[:, 0].tolist())
    return padded(found)


def test_a_renewed_reference_policy_survives_a_resume(tmp_path: Path) -> None:
    """TRL saves no reference policy. Prompts are messages here, through the chat template."""
    renewed = {"kl": K3["kl"].model_copy(update={"reset_reference_every_steps": 2})}
    first, _ = trained_twice(proven.other_cell("trl", "1.16.0", K3 | renewed, tmp_path))
    terms = [point.values["train/kl_term"] for point in first]
    assert terms[0] == terms[2] == 0, "the policy has just become its reference"
    assert min(terms[1], terms[3]) > 0


def test_an_averaged_reference_is_the_declared_average_and_survives_a_resume(
    tmp_path: Path,
) -> None:
    """The reference log-probabilities of TRL's rollouts are those of the average of weights."""
    from transformers import AutoModelForCausalLM

    average = ReferencePolicy(kind="ema", share=0.25, every_steps=1)
    moving = {"kl": K1["kl"].model_copy(update={"reference": average})}
    cell = proven.other_cell("trl", "1.16.0", K1 | moving, tmp_path)
    first, _ = trained_twice(cell)
    assert first[2].values["train/kl_term"] != 0
    run = cell.run()
    reference = AutoModelForCausalLM.from_pretrained(cell.cell.settings.model.path)
    dumps = [attempt.path / "rollouts" for attempt in cell.cell_dir.attempts()]
    for batch in run.batches:
        assert batch.logp_reference is not None
        with torch.no_grad():
            ours = log_probabilities(reference, batch)
            theirs = padded(batch.logp_reference[FEW])
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
            policy = torch.load(weights_path(dumps[batch.step > 2], batch.step))
            for name, weights in reference.named_parameters():
                weights.lerp_(policy[name], 0.25)


@pytest.mark.parametrize("name", CELLS)
def test_the_dialect_predicts_what_the_library_does(name: str, tmp_path: Path) -> None:
    version, settings = CELLS[name]
    cell = proven.other_cell("trl", version, settings, tmp_path / "replayed ü", batches=2)
    cell.train()
    proof = cell.run().proof()
    assert proof.holds, proof
    assert {"advantages", "grad_norm", "weights"} <= {each.name for each in proof.quantities}


def test_what_orch_ships_trains_in_the_library(tmp_path: Path) -> None:
    """Its gradients are held in test_quiet.py, in the release's own loss."""
    cell = proven.other_cell("trl", "1.16.0", RB | LENGTHS | TWO, tmp_path, batches=1)
    cell.train()
    points, _ = read_points(cell.cell_dir.attempts()[0].path)
    first, second = (point.values["train/kl_term"] for point in points)
    assert first == 0, "the policy is its own reference"
    assert second > 0


def test_a_token_mean_is_over_the_batch_of_several_minibatches(tmp_path: Path) -> None:
    """Responses of this cell have several lengths. Divided by each minibatch's own, it is wrong."""
    proof_cell = proven.proof_cell("trl", "1.16.0", "k3.loss.x4", tmp_path)
    proof_cell.train()
    run = proof_cell.run()
    assert run.dialect.mean_over == "batch"
    assert run.proof().holds, run.proof()
    wrong = run.proof(run.dialect.model_copy(update={"mean_over": "minibatch"}))
    assert not wrong.holds, wrong
