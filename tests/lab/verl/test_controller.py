"""A beta that follows the KL: verl's own controller and reward, beside the embedded trainer's."""

from types import SimpleNamespace

import pytest
import torch

from backends.micro.train import followed
from lab.probes.protocol import sources
from lab.probes.runner import Sources
from lab.verl.probes import PaddedBatch, VerlProbes
from orchestrator.settings import BetaController
from tests.backends.environments import contract_python, root


@pytest.mark.thorough  # in a library's environment
@pytest.mark.parametrize("version", ["0.9.1", "0.8.0"])
@pytest.mark.parametrize("target", [0.02, 0.3, 100.0])
def test_verl_moves_beta_as_the_embedded_trainer_does(version: str, target: float) -> None:
    """Three rollout batches: the KL is verl's, of responses of several lengths."""
    contract_python("verl", version)
    controller = BetaController(target=target, horizon=50)
    random = torch.Generator().manual_seed(3)
    with sources("verl", version, within=root()) as release:
        assert release.where.folder is not None
        core, _, trainer = VerlProbes(Sources(release.where.folder), version).plain
        control = core.AdaptiveKLController(0.1, controller.target, controller.horizon)
        mine = 0.1
        for _ in range(3):
            logp, ref = -torch.rand(2, 6, 4, generator=random).double()
            mask = (torch.arange(4) < torch.tensor([[1], [2], [3], [4], [4], [2]])).double()
            scores = torch.zeros_like(mask)
            tensors = {
                "response_mask": mask,
                "token_level_scores": scores,
                "old_log_probs": logp,
                "ref_log_prob": ref,
            }
            data = SimpleNamespace(batch=PaddedBatch(tensors))
            data, metrics = trainer.apply_kl_penalty(data, kl_ctrl=control, kl_penalty="kl")
            assert metrics["actor/reward_kl_penalty_coeff"] == pytest.approx(mine, rel=1e-12)
            kl = (logp - ref) * mask
            torch.testing.assert_close(data.batch["token_level_rewards"], -mine * kl)
            mine = followed(controller, mine, float((kl.sum(-1) / mask.sum(-1)).mean()), len(mask))
        assert control.value == pytest.approx(mine, rel=1e-6)
        assert control.value != 0.1
