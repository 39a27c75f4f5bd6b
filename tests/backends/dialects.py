"""A dialect held against the library it is of: the embedded trainer's advantages, loss and gradient
beside those of the library's own functions, run from its installed source on the launch that
`translate` makes of the same cell. Random rollouts, float32, past every clamp.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.micro.objective import Experience, objective, penalty, shaped_advantages
from lab.probes.protocol import AskedRelease
from lab.probes.protocol import ProbeBatch as Asked
from lab.probes.runner import LibraryFault
from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.estimators import entry
from orchestrator.identity import fingerprint
from orchestrator.kl.library_semantics import Dialect, relevant
from orchestrator.records import Cell
from orchestrator.settings import (
    Advantage,
    Batch,
    Clip,
    Kl,
    Loss,
    Settings,
)
from tests import golden

PLACE = golden.PLACE
GROUPS, SIZE, TOKENS = 2, 4, 6
TOLERANCE = 1e-5
LOSSES = (
    Loss(clip=Clip(low=0.2, high=0.3)),
    Loss(clip=None),
    Loss(aggregation="sequence_mean", clip=Clip(dual=3.0)),
    Loss(aggregation="constant", constant_tokens=8, clip=Clip()),
)
KLS = (
    Kl(estimator="none"),
    Kl(estimator="k1_to_go", placement="reward", beta=0.3),
    *(
        Kl(estimator=e, placement=p, beta=0.3)  # type: ignore[arg-type]  # one of the literals, from the product
        for e, p in itertools.product(
            ("k1", "k2", "k3", "abs", "rho_k2", "sg_rho_k2", "rho_k3", "k1+", "k3+"),
            ("reward", "loss", "reward_and_loss"),
        )
    ),
)


def cells(library: str, version: str) -> Iterator[Cell]:
    """Every combination of advantage, loss, KL and minibatches that the release can run."""
    backend = plugins.load(library)
    first = golden.cell_of(library, version, {"rollout.group_size": SIZE, "batch.num_prompts": 512})
    for name, loss, kl, minibatches in itertools.product(
        ("rloo", "grpo", "dr_grpo", "reinforce"), LOSSES, KLS, (1, 2)
    ):
        settings = first.settings.but(
            advantage=Advantage(estimator=name),  # type: ignore[arg-type]  # one of the literals, from the product
            loss=loss,
            kl=kl,
            batch=Batch(num_prompts=512, num_minibatches=minibatches),
        )
        cell = first.but(id=fingerprint(settings), settings=settings)
        try:
            backend.translate(cell, PLACE)
        except UnsupportedSetting:
            continue
        if not one_sequence_at_a_time(cell):
            yield cell


def one_sequence_at_a_time(cell: Cell) -> bool:
    """OpenRLHF 0.10.1.post2 takes the mean of sequences by micro-batches of one; asked about a
    whole batch at once it takes another mean. See openrlhf/test_dialect.py."""
    settings, backend = cell.settings, cell.settings.backend
    flat = backend.name == "openrlhf" and (backend.version or "").startswith("0.10.1")
    return flat and settings.loss.aggregation == "sequence_mean"


def rollouts(seed: int, *, fresh: bool) -> Asked:
    """Two groups of four rollouts of 1 to 6 tokens. Log-ratios reach ±15 and importance ratios
    e^±3; `fresh`: the policy is the one that sampled."""
    rng = np.random.default_rng(seed)
    shape = (GROUPS * SIZE, TOKENS)
    old = -rng.exponential(2.0, shape)
    logp = old if fresh else old + rng.normal(0, 0.4, shape)
    ref = old - rng.normal(0, 1.0, shape)
    lengths = rng.integers(1, TOKENS + 1, GROUPS * SIZE)
    ref[0, 0], ref[1, 0], ref[2, 0] = logp[0, 0] - 15, logp[1, 0] + 4, logp[2, 0] + 12
    if not fresh:
        logp[3, 0], logp[4, 0] = old[3, 0] + 3, old[4, 0] - 3
    mask = (np.arange(TOKENS) < lengths[:, None]).astype(float)
    return Asked(
        logp=logp,
        ref=ref,
        old=old,
        mask=mask,
        rewards=rng.choice([0.0, 0.25, 1.0], GROUPS * SIZE),
        groups=[i // SIZE for i in range(GROUPS * SIZE)],
    )


def ours(settings: Settings, dialect: Dialect, batch: Asked) -> dict[str, torch.Tensor]:
    """Advantages, loss and gradient of the embedded trainer's functions in a dialect."""
    shape = (GROUPS, SIZE, TOKENS)
    logp, ref, old, mask = (
        torch.tensor(each, dtype=torch.float32).view(shape)
        for each in (batch.logp, batch.ref, batch.old, batch.mask)
    )
    reward = torch.tensor(batch.rewards, dtype=torch.float32).view(GROUPS, SIZE)
    # A library that estimates the reward's KL inside its loss has the current policy for it, which
    # with one train step a batch is the policy before the batch's updates.
    in_loss = settings.backend.name == "prime_rl"
    at = logp if in_loss else old
    lost = penalty(settings.kl, at, ref, mask, dialect, old)
    credit = entry(settings.kl.estimator).credit if settings.kl.placement else "sequence"
    advantage = shaped_advantages(
        settings.advantage.estimator, reward, settings.kl.beta, lost, dialect, credit=credit
    )
    logp.requires_grad_()
    experience = Experience(mask, mask, mask, old, ref, reward, lost.sum(-1), advantage)
    told = objective(settings.loss, settings.kl, logp, experience, dialect)
    (gradient,) = torch.autograd.grad(told.loss, logp)
    return {
        "advantages": (advantage * mask).detach().view(-1, TOKENS),
        "loss": told.loss.detach(),
        "gradient": (gradient * mask).view(-1, TOKENS),
    }


def gaps(
    library: str, version: str, folder: Path, *, seeds: int = 2, every: int = 1
) -> dict[str, Any]:
    """The largest relative difference of advantages, loss and gradient, over all cells and random
    batches; the cell of the largest; how many were compared; and sentences of what could not be.

    `every`: only each so-manieth cell, where asking a library about one is slow. A loss may cancel
    to nothing: its difference is relative to the mean size of an advantage, if that is larger.
    """
    plans = list(cells(library, version))[::every]
    backend = plugins.load(library)
    dialect = backend.semantics(version).dialect
    worst = {"advantages": 0.0, "loss": 0.0, "gradient": 0.0}
    which, failed = {}, set()
    with closing(AskedRelease(library, version, folder)) as release:
        for cell, seed in itertools.product(plans, range(seeds)):
            settings = cell.settings
            # Stale rollouts reach a library's loss as several minibatches do: through the ratio.
            fresh = settings.batch.num_minibatches == 1 and library != "prime_rl"
            batch = rollouts(seed, fresh=fresh)
            try:
                answer = release.ask("update", backend.translate(cell, PLACE), batch)
            except LibraryFault as fault:
                failed.add(f"{settings.kl.label}: {fault.said[:200]}")
                continue
            if library == "prime_rl":  # its stale rollouts are of an asynchronous cell
                settings = settings.model_copy(update={"max_staleness_steps": 1})
            # What is trained is the relevant part; a value nobody differentiates needs all of it.
            mine = ours(settings, relevant(dialect, settings), batch)
            mine["loss"] = ours(settings, dialect, batch)["loss"]
            mask = torch.tensor(batch.mask)
            for name in worst:
                if name == "advantages" and library == "prime_rl" and settings.kl.placement:
                    continue  # its KL reaches them inside the loss
                theirs = torch.tensor(answer[name])
                if name != "loss":
                    theirs = theirs * mask
                floor = mine["advantages"].abs().sum() / mask.sum() if name == "loss" else 0.0
                gap = relative(mine[name], theirs, float(floor))
                if not gap <= worst[name]:
                    worst[name], which[name] = gap, (settings, seed)
    count = len(plans) * seeds
    return {"worst": worst, "which": which, "count": count, "failed": sorted(failed)}


def relative(mine: torch.Tensor, theirs: torch.Tensor, floor: float = 0.0) -> float:
    """Largest difference, relative to the largest value, or to `floor`."""
    scale = max(theirs.abs().max().item(), floor, 1e-6)
    gap = (mine.double() - theirs.double()).abs().max().item() / scale
    return gap if math.isfinite(gap) else math.inf


def beside(library_python: Path, package: str) -> Path:
    """The source of a library that its environment has installed."""
    (folder,) = library_python.parents[1].glob(f"lib/python*/site-packages/{package}")
    return folder
