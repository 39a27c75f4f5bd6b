"""Each dialect against the library's own KL, rewards, advantages and loss (dialects.py)."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.micro.objective import Experience, objective
from backends.openrlhf.flags import FLAT
from lab.probes.protocol import Inquiry, ProbeBatch, ProbeTarget
from orchestrator import plugins
from orchestrator.kl.library_semantics import Dialect
from orchestrator.settings import Kl, Loss
from tests.backends import dialects
from tests.backends.environments import contract_python
from tests.backends.prime_rl.conftest import taken

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

ASKED = {"verl": (3, 200), "skyrl": (3, 100), "openrlhf": (4, 19), "prime_rl": (1, 200)}
"""Library -> each so-manieth cell is asked about, and more comparisons than so many."""
RELEASES = [(name, version) for name in ASKED for version in plugins.load(name).versions]
RELEASES.remove(("prime_rl", "0.8.0"))  # its loss takes other arguments


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_the_dialect_trains_as_the_library_would(
    library: str, version: str, tmp_path: Path
) -> None:
    """Prime-RL where a checkout is pointed to: its source is on no package index."""
    if library == "prime_rl":
        where = ProbeTarget(Path(sys.executable), taken(version, tmp_path, "src") / "prime_rl")
    else:
        where = dialects.beside(contract_python(library, version), library)
    every, least = ASKED[library]
    found = dialects.gaps(library, version, where, seeds=1, every=every)
    assert found["count"] > least
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found


def test_micro_batches_of_openrlhf_are_averaged_over_their_own_tokens() -> None:
    """0.10.1.post2 is asked about each micro-batch by itself; the optimizer takes their mean."""
    whole: Any = dialects.rollouts(0, fresh=True)
    told = plugins.load("openrlhf").semantics(FLAT).dialect
    gains = torch.linspace(-1, 1, 8)[:, None].expand(8, dialects.TOKENS)
    inquiry, asked = Inquiry("openrlhf", FLAT), []
    first = next(iter(dialects.cells("openrlhf", FLAT)))
    kl = Kl(estimator="k3", placement="loss", beta=0.3)
    for loss, size in ((Loss(aggregation="sequence_mean"), 1), (Loss(), 2)):
        cell = first.but(settings=first.settings.but(loss=loss, kl=kl))
        launch = inquiry.add_launch(plugins.load("openrlhf").translate(cell, dialects.PLACE))
        parts = range(0, 8, size)
        for at in parts:
            part: Any = {name: rows[at : at + size] for name, rows in whole.items()}
            part["advantages"] = gains[at : at + size].tolist()
            inquiry.add_batch(f"{size} {at}", part)
            inquiry.add_question((size, at), "loss", launch, f"{size} {at}")
        asked.append((cell.settings, size, parts))
    found, _ = inquiry.send(dialects.beside(contract_python("openrlhf", FLAT), "openrlhf"))
    for settings, size, parts in asked:
        rows = [row for at in parts for row in found[size, at]["gradient"]]
        theirs = torch.tensor(rows) * size / 8
        dialect = told.model_copy(update={"micro_batch": size})
        mine = _gradient(whole, gains, settings.kl, settings.loss, dialect)
        assert dialects.relative(mine, theirs) <= dialects.TOLERANCE


def _gradient(batch: ProbeBatch, gains: Any, kl: Kl, loss: Loss, told: Dialect) -> Any:
    shape = (dialects.GROUPS, dialects.SIZE, dialects.TOKENS)
    logp, ref, old, mask = (
        torch.tensor(batch[name]).view(shape)  # type: ignore[literal-required]  # a key of the TypedDict, from the tuple below
        for name in ("logp", "ref", "old", "mask")
    )
    none = torch.zeros(shape[:2])
    made = Experience(mask, mask, mask, old, ref, none, none, gains.reshape(shape))
    logp.requires_grad_()
    value = objective(loss, kl, logp, made, told).loss
    return (torch.autograd.grad(value, logp)[0] * mask).view(-1, dialects.TOKENS)
