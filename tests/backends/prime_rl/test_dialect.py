"""Prime-RL's dialect against its compute_loss and compute_advantages, where a checkout is pointed
to: its source is on no package index."""

import sys
from pathlib import Path

import numpy as np
import torch

from backends.prime_rl import dialect
from lab.prime_rl.probes import natives
from lab.probes.protocol import Inquiry, ProbeTarget
from orchestrator.settings import Advantage, Kl, Loss
from tests.backends import dialects


def test_the_dialect_trains_as_the_library_would(source: Path) -> None:
    where = ProbeTarget(Path(sys.executable), source / "prime_rl")
    found = dialects.gaps("prime_rl", "0.5.0", where, seeds=1)
    assert found["count"] > 200
    assert not found["failed"]
    assert max(found["worst"].values()) <= dialects.TOLERANCE, found


def test_its_own_teacher_tau_is_the_native_dialect(source: Path) -> None:
    """Each token's own log-ratio, after the baseline: what no cell of ours is translated into."""
    ((label, launch),) = [item for item in natives("0.5.0").items() if "teacher" in item[0]]
    inquiry = Inquiry("prime_rl", "0.5.0")
    batch = dialects.rollouts(0, fresh=True)
    inquiry.add_batch("rollouts", batch)
    number = inquiry.add_own_launch(launch["groups_of_four"])
    inquiry.add_question(label, "update", number, "rollouts")
    found, _ = inquiry.send(ProbeTarget(Path(sys.executable), source / "prime_rl"))
    (cell, *_) = [
        c for c in dialects.cells("prime_rl", "0.5.0") if c.settings.kl.label == "k1.reward"
    ]
    settings = cell.settings.model_copy(
        update={
            "kl": Kl(estimator="k1", placement="reward", beta=launch["beta"]),
            "advantage": Advantage(estimator="dr_grpo"),
            "loss": Loss(clip=None),
        }
    )
    ours = dialect.SEMANTICS["0.5.0"].dialect
    native = ours.model_copy(update={"kl_reward": "token"})
    mine = dialects.ours(settings, native, batch)
    theirs = torch.tensor(np.asarray(found[label]["gradient"]))
    assert dialects.relative(mine["gradient"], theirs) <= dialects.TOLERANCE
    summed = dialects.ours(settings, ours, batch)
    assert dialects.relative(summed["gradient"], theirs) > 0.01, "what our hooks make of it differs"
