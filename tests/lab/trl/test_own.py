"""A subclass of TRL's trainer is named by the gradient of its own loss."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.__main__ import lab
from tests.backends.environments import cpu_python

TRAINERS = """import torch
from trl import GRPOTrainer


class Stock(GRPOTrainer):
    pass


class NoKL(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        keep = inputs["completion_ids"].size(1)
        logps = self._get_per_token_logps_and_entropies(model, ids, mask, keep)[0]
        return -(logps * inputs["advantages"]).mean()


class OwnReference(GRPOTrainer):
    def logps(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        logits = model(input_ids=ids).logits[:, :-1][:, -inputs["completion_ids"].size(1) :]
        return logits.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logps, m = self.logps(model, inputs), inputs["completion_mask"]
        with torch.no_grad():
            x = self.logps(self.ref_model, inputs)
        r, a = torch.exp(logps - inputs["old_per_token_logps"]), inputs["advantages"].unsqueeze(1)
        each = -torch.min(r * a, r.clamp(0.8, 1.2) * a) + self.beta * 0.5 * (logps - x) ** 2
        return (each * m).sum() / m.sum()
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("Stock", (), "ppo (low 0.2, high 0.2), mean over tokens + β 0.1 × sg_rho_k2.loss"),
        ("Stock", ("beta=0.0",), "is         ppo (low 0.2, high 0.2), mean over tokens\n"),
        ("NoKL", (), "the reference policy enters no gradient"),
        ("OwnReference", ("beta=0.02",), "β 0.02 × k2.loss, mean over tokens"),
    ],
)
def test_a_trainer_is_named(tmp_path: Path, name: str, given: tuple[str, ...], says: str) -> None:
    file = tmp_path / "trainers.py"
    file.write_text(TRAINERS)
    python = str(cpu_python("trl", "1.16.0"))
    words = [word for each in given for word in ("--call", each)]
    result = CliRunner().invoke(lab, ["own", f"{file}:{name}", "--python", python, *words])
    assert result.exit_code == 0, result.output
    assert says in result.output
