"""Each dialect against the library's own KL, rewards, advantages and loss (dialects.py)."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.openrlhf.flags import FLAT
from lab.probes.protocol import AskedRelease, ProbeBatch
from orchestrator import plugins
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
        where = taken(version, tmp_path, "src") / "prime_rl"
    else:
        where = dialects.beside(contract_python(library, version), library)
    every, least = ASKED[library]
    found = dialects.gaps(library, version, where, seeds=1, every=every)
    assert found["count"] > least
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found


def test_micro_batches_of_openrlhf_are_averaged_over_their_own_tokens() -> None:
    """0.10.1.post2 is asked about each micro-batch by itself; the optimizer takes their mean."""
    batch = dialects.rollouts(0, fresh=True)
    told = plugins.load("openrlhf").semantics(FLAT).dialect
    folder = dialects.beside(contract_python("openrlhf", FLAT), "openrlhf")
    first = next(iter(dialects.cells("openrlhf", FLAT)))
    kl = Kl(estimator="k3", placement="loss", beta=0.3)
    with closing(AskedRelease("openrlhf", FLAT, folder)) as release:
        for loss, size in ((Loss(aggregation="sequence_mean"), 1), (Loss(), 2)):
            cell = first.but(settings=first.settings.but(loss=loss, kl=kl))
            launch = plugins.load("openrlhf").translate(cell, dialects.PLACE)
            dialect = told.model_copy(update={"micro_batch": size})
            mine = dialects.ours(cell.settings, dialect, batch)
            whole = batch._replace(advantages=mine["advantages"].numpy())
            given = {name: each for name, each in whole._asdict().items() if each is not None}
            gradients = []
            for at in range(0, 8, size):
                part = {name: each[at : at + size] for name, each in given.items()}
                gradients.append(release.ask("loss", launch, ProbeBatch(**part))["gradient"])
            theirs = torch.tensor(np.concatenate(gradients)) * size / 8
            assert dialects.relative(mine["gradient"], theirs) <= dialects.TOLERANCE
