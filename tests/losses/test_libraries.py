"""A library's own function is the policy loss of the table that its ledger calls exact.

Each cell is translated; the library's function gets the bounds and modes of that launch, in the
library's environment, with random log-probabilities. Loss and gradient are those of the table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.verl.overrides import read as read_hydra
from orchestrator import plugins
from orchestrator.losses.table import Bounds, Tokens, policy_loss_entry
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Loss
from tests.backends import real
from tests.backends.child import Imported, forked
from tests.backends.environments import cpu_python

pytestmark = pytest.mark.slow  # runs a library's functions in a process of their own

RNG = np.random.default_rng(11)
LENGTHS = np.array([7, 4, 1, 6, 3, 5])
MASK = (np.arange(7) < LENGTHS[:, None]).astype(float)
OLD = -RNG.exponential(1.2, MASK.shape) - 0.02
LOGP = np.minimum(OLD + RNG.normal(0, 0.5, MASK.shape), -0.01)
ADVANTAGE = np.array([1.0, -0.8, 0.5, -0.5, 0.3, -1.2])[:, None]
LOGP[1] = OLD[1] + 1e-5  # within GSPO's own bounds


@dataclass(frozen=True)
class Library:
    """A library's own loss function, and how a launch's arguments reach it."""

    version: str
    imports: tuple[str, ...]
    program: str
    """Reads the cases and the tokens from its input, and writes loss and gradient of each case."""
    sent: Callable[[LaunchPlan], Mapping[str, object]]
    """Return the arguments of a launch."""


VERL = """
import json, sys
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config.actor import ActorConfig

asked = json.load(sys.stdin)
old, advantage, mask = (torch.tensor(asked[name]) for name in ("old", "advantage", "mask"))
HOME = "actor_rollout_ref.actor."
answers = []
for sent in asked["cases"]:
    own = {key.removeprefix(HOME): value for key, value in sent.items() if key.startswith(HOME)}
    names = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True,
        **{name: own[name] for name in names if name in own},
    )
    logp = torch.tensor(asked["logp"], requires_grad=True)
    loss, _ = get_policy_loss_fn(own["policy_loss.loss_mode"])(
        old_log_prob=old, log_prob=logp, advantages=advantage.expand_as(old).contiguous(),
        response_mask=mask, loss_agg_mode=own["loss_agg_mode"], config=config,
    )
    loss.backward()
    answers.append([loss.item(), logp.grad.tolist()])
print(json.dumps(answers))
"""


def hydra(plan: LaunchPlan) -> Mapping[str, object]:
    return dict(map(read_hydra, plan.argv[3:]))


LIBRARIES: Mapping[str, Library] = {
    "verl": Library("0.9.1", ("torch", "verl.trainer.ppo.core_algos"), VERL, hydra),
}

NEAR, WIDE = {"low": 0.1, "high": 0.3}, {"low": 1.0, "high": 2.0}
CASES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "verl": [
        {"policy": policy, "aggregation": aggregation, **bounds}
        for policy, aggregations, boundses in (
            ("ppo", 2, ({}, {"clip": {**NEAR, "dual": 1.3}})),
            ("reinforce", 2, ({},)),
            ("gspo", 2, ({}, {"clip": NEAR})),
            ("cispo", 2, ({}, {"clip": NEAR})),
            ("sapo", 1, ({},)),
            ("gmpo", 1, ({}, {"clip": NEAR})),
            ("dppo_tv", 2, ({}, {"clip": {**NEAR, "dual": 1.3}})),
            ("dppo_kl", 2, ({}, {"clip": {**NEAR, "dual": 1.3}})),
        )
        for aggregation in ("sequence_mean", "token_mean")[:aggregations]
        for bounds in boundses
    ],
}


def cell_of(library: str, loss: Mapping[str, Any]) -> Cell:
    version = LIBRARIES[library].version
    asked = real.cell(
        library, version, Path("/models/m"), Path("d.jsonl"), {"kl": {"estimator": "none"}}
    )
    settings = asked.settings.model_copy(update={"loss": Loss.model_validate(loss)})
    return asked.model_copy(update={"settings": settings})


@cache
def launches(library: str) -> list[LaunchPlan]:
    place = AttemptPaths(Path("/r/plan"), Path("/r/attempts/1"), Path("/r/checkpoints"))
    translate = plugins.load(library).translate
    return [translate(cell_of(library, loss), place) for loss in CASES[library]]


@cache
def answers(library: str, folder: Path) -> list[tuple[float, list[list[float]]]]:
    """Return the library's loss and gradient of each case, all in one process."""
    of = LIBRARIES[library]
    given = {
        "cases": [dict(of.sent(plan)) for plan in launches(library)],
        "logp": LOGP.tolist(),
        "old": OLD.tolist(),
        "advantage": ADVANTAGE.tolist(),
        "mask": MASK.tolist(),
    }
    parent = Imported(cpu_python(library, of.version), of.imports)
    program = of.program.replace("import torch\n", "import torch\n" + DOUBLE, 1)
    done = forked(parent, program, (), folder, json.dumps(given))
    assert done.returncode == 0, done.stderr[-3000:]
    return [(loss, gradient) for loss, gradient in json.loads(done.stdout.splitlines()[-1])]


DOUBLE = "torch.set_default_dtype(torch.float64)\n"


def of_table(loss: Loss) -> tuple[float, np.ndarray]:
    """Return the loss and its gradient by the table."""
    entry, clip = policy_loss_entry(loss.policy), loss.clip
    bounds = Bounds() if clip is None else Bounds(clip.low, clip.high)
    if clip is not None and clip.dual is not None:
        bounds = bounds._replace(dual=clip.dual)
    share = MASK / MASK.sum()
    if loss.aggregation == "sequence_mean":
        share = MASK / MASK.sum(1, keepdims=True) / len(MASK)
    value, slope = entry.compute(Tokens(LOGP, OLD, ADVANTAGE, MASK, bounds))
    return float((value * share).sum()), slope * share


@pytest.mark.parametrize(
    ("library", "at"), [(name, at) for name in CASES for at in range(len(CASES[name]))]
)
def test_the_librarys_own_function_is_the_loss_of_the_table(
    library: str, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loss = Loss.model_validate(CASES[library][at])
    value, gradient = of_table(loss)
    theirs, slope = answers(library, tmp_path_factory.getbasetemp())[at]
    np.testing.assert_allclose(slope, gradient, atol=1e-7)
    assert np.abs(gradient).sum() > 0
    if loss.policy not in VALUE_DIFFERS or (loss.clip is not None and loss.clip.dual is not None):
        assert theirs == pytest.approx(value, abs=1e-7)


VALUE_DIFFERS = ("dppo_tv", "dppo_kl")
"""Without a bound on the weight the value of verl is r A log pi. Its gradient is that of r A."""


@pytest.mark.parametrize("library", list(CASES))
def test_a_loss_that_is_exact_has_a_case(library: str) -> None:
    """And one without a case is not exact."""
    offered = plugins.load(library).capabilities["loss.policy"]
    assert set(offered) == {case["policy"] for case in CASES[library]}
