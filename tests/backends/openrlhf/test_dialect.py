"""OpenRLHF's dialect against its own compute_approx_kl, RemoteExperienceMaker and training_step."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from backends.micro.objective import Experience, objective
from backends.openrlhf.flags import FLAT, VERSIONS
from lab.probes.protocol import AskedRelease, ProbeBatch
from orchestrator import plugins
from orchestrator.kl.library_semantics import Dialect
from orchestrator.settings import Kl, Loss
from tests.backends import dialects
from tests.backends.openrlhf.cells import environment

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dialect_trains_as_the_library_would(version: str) -> None:
    where = dialects.beside(environment(version), "openrlhf")
    found = dialects.gaps("openrlhf", version, where, seeds=1, every=4)
    assert found["count"] >= 20
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found


def test_micro_batches_are_averaged_over_their_own_tokens() -> None:
    """0.10.1.post2 is asked about each micro-batch by itself; the optimizer takes their mean."""
    whole = dialects.rollouts(0, fresh=True)
    told = plugins.load("openrlhf").semantics(FLAT).dialect
    gains = torch.linspace(-1, 1, 8)[:, None].expand(8, dialects.TOKENS)
    given = whole._replace(advantages=gains.numpy())._asdict()
    rollouts = {name: each for name, each in given.items() if each is not None}
    folder = dialects.beside(environment(FLAT), "openrlhf")
    with closing(AskedRelease("openrlhf", FLAT, folder)) as release:
        for cell, size in zip(_translatable(FLAT), (1, 2), strict=True):
            launch = plugins.load("openrlhf").translate(cell, dialects.PLACE)
            gradients = []
            for at in range(0, 8, size):
                part = {name: each[at : at + size] for name, each in rollouts.items()}
                gradients.append(release.ask("loss", launch, ProbeBatch(**part))["gradient"])
            theirs = torch.tensor(np.concatenate(gradients)) * size / 8
            dialect = told.model_copy(update={"micro_batch": size})
            mine = _gradient(whole, gains, cell.settings.kl, cell.settings.loss, dialect)
            assert dialects.relative(mine, theirs) <= dialects.TOLERANCE


def _translatable(version: str) -> list[Any]:
    """Cells with a sequence mean too, which `cells` leaves out."""
    first = next(iter(dialects.cells("openrlhf", version)))
    kl = Kl(estimator="k3", placement="loss", beta=0.3)
    return [
        first.model_copy(
            update={"settings": first.settings.model_copy(update={"loss": loss, "kl": kl})}
        )
        for loss in (Loss(aggregation="sequence_mean"), Loss())
    ]


def _gradient(batch: ProbeBatch, gains: Any, kl: Kl, loss: Loss, told: Dialect) -> Any:
    shape = (dialects.GROUPS, dialects.SIZE, dialects.TOKENS)
    logp, ref, old, mask = (
        torch.tensor(each, dtype=torch.float32).view(shape)
        for each in (batch.logp, batch.ref, batch.old, batch.mask)
    )
    none = torch.zeros(shape[:2])
    made = Experience(mask, mask, mask, old, ref, none, none, gains.reshape(shape))
    logp.requires_grad_()
    value = objective(loss, kl, logp, made, told).loss
    return (torch.autograd.grad(value, logp)[0] * mask).view(-1, dialects.TOKENS)
