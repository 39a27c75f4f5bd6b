"""Prime-RL's dialect against its compute_loss and compute_advantages, where a checkout is pointed
to: its source is on no package index."""

from contextlib import closing
from pathlib import Path

import torch

from backends.prime_rl import dialect
from lab.prime_rl.probes import natives
from lab.probes.protocol import AskedRelease
from orchestrator.settings import Advantage, Kl, Loss
from tests.backends import dialects


def test_the_dialect_trains_as_the_library_would(source: Path) -> None:
    found = dialects.gaps("prime_rl", "0.5.0", source / "prime_rl", seeds=1)
    assert found["count"] > 200
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found


def test_its_own_teacher_tau_is_the_native_dialect(source: Path) -> None:
    """Each token's own log-ratio, after the baseline: what no cell of ours is translated into."""
    term = natives("0.5.0")["teacher_tau"]
    batch = dialects.rollouts(0, fresh=True)
    with closing(AskedRelease("prime_rl", "0.5.0", source / "prime_rl")) as release:
        found = release.ask("update", term.of_four, batch)
    (cell, *_) = [
        c for c in dialects.cells("prime_rl", "0.5.0") if c.settings.kl.label == "k1.reward"
    ]
    settings = cell.settings.model_copy(
        update={
            "kl": Kl(estimator="k1", placement="reward", beta=term.beta),
            "advantage": Advantage(estimator="dr_grpo"),
            "loss": Loss(clip=None),
        }
    )
    ours = dialect.SEMANTICS["0.5.0"].dialect
    native = ours.model_copy(update={"kl_reward": "token"})
    mine = dialects.ours(settings, native, batch)
    theirs = torch.tensor(found["gradient"])
    assert dialects.relative(mine["gradient"], theirs) <= dialects.TOLERANCE
    summed = dialects.ours(settings, ours, batch)
    assert dialects.relative(summed["gradient"], theirs) > 0.01, "what our hooks make of it differs"
