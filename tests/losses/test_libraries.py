"""A library's own function is the policy loss of the table that its ledger calls exact.

Each cell is translated; the library's own functions, as `lab/probes` runs them, get its launch and
random rollouts. The gradient is that of the table, of the advantages that the library computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.skyrl.manifest import TO_ENGINE
from lab.probes.protocol import Answer, AskedRelease, ProbeBatch
from orchestrator import plugins
from orchestrator.kl.estimators import EngineWeight, weights
from orchestrator.losses.table import Bounds, Tokens, policy_loss_entry
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Loss
from tests.backends import dialects
from tests.backends.environments import contract_python
from tests.lab import real

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

RNG = np.random.default_rng(11)
LENGTHS = np.array([7, 4, 1, 6, 3, 5, 2, 7])
MASK = (np.arange(7) < LENGTHS[:, None]).astype(float)
OLD = -RNG.exponential(1.2, MASK.shape) - 0.02
LOGP = np.minimum(OLD + RNG.normal(0, 0.5, MASK.shape), -0.01)
LOGP[1] = OLD[1] + 1e-5  # within GSPO's own bounds
ELSEWHERE = OLD - RNG.exponential(0.3, MASK.shape)
"""Log-probabilities of the policy that a loss must not read, or of the engine that it weighs."""
PLACE = AttemptPaths(Path("/r/plan"), Path("/r/attempts/1"), Path("/r/checkpoints"))


def rollouts(old: np.ndarray, engine: np.ndarray) -> ProbeBatch:
    return ProbeBatch(
        logp=LOGP,
        ref=OLD,
        old=old,
        engine=engine,
        mask=MASK,
        rewards=np.array([1.0, 0.0, 0.5, 0.25, 0.0, 1.0, 0.0, 0.75]),
        groups=[0] * 4 + [1] * 4,
    )


CORRECTIONS: Sequence[Mapping[str, Any]] = [
    {"kind": "tis_token", "most": 1.2},
    {"kind": "tis_sequence", "most": 2.0},
    {"kind": "mis_token", "least": 0.5, "most": 1.4},
    {"kind": "mis_sequence", "least": 0.5, "most": 5.0},
    {"kind": "reject_token", "least": 0.5, "most": 1.4},
    {"kind": "reject_sequence", "least": 0.5, "most": 5.0},
    {"kind": "geometric", "least": 0.5, "most": 1.4},
]
"""Every weight and mask against the engine, with bounds that act on some of the tokens."""
WIDE: Mapping[str, Any] = {"clip": {"low": 0.4, "high": 0.6}}
NEAR: Mapping[str, Any] = {"clip": {"low": 0.1, "high": 0.3}}
CAPPED, HELD = ({"clip": {**NEAR["clip"], "dual": dual}} for dual in (1.4, 1.3))
STALE: Mapping[str, Any] = {"max_staleness_steps": 2}
BY_TOKEN, BY_RESPONSE, BOTH = ("token_mean",), ("sequence_mean",), ("sequence_mean", "token_mean")
LOSSES: Mapping[str, Sequence[tuple[str, Sequence[str], Sequence[Mapping[str, Any]]]]] = {
    "openrlhf": [("ppo", BOTH, ({}, NEAR, CAPPED)), ("gspo", BY_RESPONSE, ({}, NEAR, CAPPED))],
    "skyrl": [
        ("ppo", BOTH, ({}, CAPPED, CAPPED | STALE)),
        ("gspo", BOTH, ({}, NEAR)),
        ("sapo", BOTH, ({},)),
        *(
            (policy, BOTH, ({}, NEAR, {**NEAR, **STALE}))
            for policy in ("cispo", "rollout_is", "dppo_tv", "dppo_kl")
        ),
    ],
    "trl": [
        ("ppo", BOTH, ({}, CAPPED)),
        ("gspo", BOTH, ({}, NEAR, CAPPED)),
        ("cispo", BY_TOKEN, ({}, {"clip": {"low": 1.0, "high": 0.3}})),
        ("sapo", BY_RESPONSE, ({},)),
        ("vespo", BY_TOKEN, ({},)),
    ],
    "verl": [
        ("ppo", BOTH, ({}, HELD)),
        ("reinforce", BOTH, ({},)),
        ("gspo", BOTH, ({}, NEAR)),
        ("cispo", BOTH, ({}, NEAR)),
        ("sapo", BY_RESPONSE, ({},)),
        ("gmpo", BY_RESPONSE, ({}, NEAR)),
        ("dppo_tv", BOTH, ({}, HELD)),
        ("dppo_kl", BOTH, ({}, HELD)),
    ],
}
CORRECTED: Mapping[str, Sequence[tuple[str, Sequence[str], Mapping[str, Any]]]] = {
    "skyrl": [
        ("ppo", BY_TOKEN, {}),
        ("gspo", BY_TOKEN, WIDE),
        ("cispo", BY_TOKEN, {}),
        ("sapo", BY_TOKEN, {}),
    ],
    "verl": [
        ("ppo", BOTH, {}),
        ("gspo", BY_RESPONSE, WIDE),
        ("cispo", BY_TOKEN, {}),
        ("dppo_tv", BY_TOKEN, HELD),
    ],
}
"""Library -> policy losses, their means and their bounds; and those with each of CORRECTIONS."""


def cases(release: str) -> Iterator[Mapping[str, Any]]:
    """Yield the cases that a release has."""
    library, _, version = release.partition("@")
    for policy, means, more in LOSSES[library]:
        for mean, each in product(means, more):
            stale = policy in ("cispo", "ppo") and "max_staleness_steps" in each
            if version == "0.2.0" and (policy.startswith("dppo") or stale):
                continue  # its asynchronous ppo has no ratio
            if version != "0.3.0" or (policy, stale) != ("cispo", True):
                yield {"policy": policy, "aggregation": mean, **each}
    for policy, means, bounds in CORRECTED.get(library, ()):
        for mean, by in product(means, CORRECTIONS):
            if (library, by["kind"], mean) != ("verl", "reject_token", "sequence_mean"):
                yield {"policy": policy, "aggregation": mean, "correction": by, **bounds}


def cell_of(release: str, case: Mapping[str, Any]) -> Cell:
    library, _, version = release.partition("@")
    loss = {name: value for name, value in case.items() if name in Loss.model_fields}
    more = {name: value for name, value in case.items() if name not in loss}
    if library == "trl":  # with one update a batch its ratio is 1, whatever `old` is
        more["batch"] = {"num_prompts": real.PROMPTS, "num_minibatches": 2}
    changes = {"kl": {"estimator": "none"}, "loss": loss, **more}
    return real.cell(library, version, Path("/models/m"), Path("d.jsonl"), changes)


@cache
def answers(release: str) -> Sequence[Answer]:
    """Return advantages, loss and gradient of each case, all in one process."""
    library, _, version = release.partition("@")
    translate, found = plugins.load(library).translate, []
    folder = dialects.beside(contract_python(library, version), library)
    with closing(AskedRelease(library, version, folder)) as asked:
        for case in cases(release):
            to_engine = library == "skyrl" and (
                case["policy"] in TO_ENGINE or "max_staleness_steps" in case
            )
            batch = rollouts(ELSEWHERE, OLD) if to_engine else rollouts(OLD, ELSEWHERE)
            found.append(asked.ask("update", translate(cell_of(release, case), PLACE), batch))
    return found


def of_table(loss: Loss, advantage: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the loss and its gradient by the table."""
    entry, clip = policy_loss_entry(loss.policy), loss.clip
    bounds = Bounds() if clip is None else Bounds(clip.low, clip.high)
    if clip is not None and clip.dual is not None:
        bounds = bounds._replace(dual=clip.dual)
    share = MASK / MASK.sum()
    if loss.aggregation == "sequence_mean":
        share = MASK / MASK.sum(1, keepdims=True) / len(MASK)
    value, slope = entry.compute(Tokens(LOGP, OLD, advantage, MASK, bounds))
    if loss.correction is not None:
        by = loss.correction
        weight = weights(EngineWeight(by.kind, by.least, by.most), OLD - ELSEWHERE, MASK)
        assert np.ptp((weight + 0 * MASK)[MASK > 0]) > 0
        value, slope = value * weight, slope * weight
    return float((value * share).sum()), slope * share


RELEASES = [
    *("openrlhf@0.11.2", "skyrl@0.4.0", "skyrl@0.3.0", "skyrl@0.2.0"),
    *("trl@1.16.0", "trl@1.9.2", "verl@0.9.1"),
]


@pytest.mark.parametrize(
    ("release", "at"), [(name, at) for name in RELEASES for at, _ in enumerate(cases(name))]
)
def test_the_librarys_own_function_is_the_loss_of_the_table(release: str, at: int) -> None:
    loss = cell_of(release, list(cases(release))[at]).settings.loss
    theirs = answers(release)[at]
    value, gradient = of_table(loss, theirs["advantages"])
    np.testing.assert_allclose(theirs["gradient"] * MASK, gradient, atol=1e-7)
    assert np.abs(gradient).sum() > 0
    bounded = loss.clip is not None and loss.clip.dual is not None
    if not release.startswith("verl") or loss.policy not in VALUE_DIFFERS or bounded:
        # SkyRL takes ratios as float32, whatever their type (safe_exp_delta).
        assert theirs["loss"] == pytest.approx(value, abs=1e-7, rel=2e-7)


VALUE_DIFFERS = ("dppo_tv", "dppo_kl")
"""Without a bound on the weight the value of verl is r A log pi. Its gradient is that of r A."""


@pytest.mark.parametrize("library", list(LOSSES))
def test_a_loss_that_is_exact_has_a_case(library: str) -> None:
    """And one without a case is not exact."""
    offered = plugins.load(library).capabilities["loss.policy"]
    assert set(offered) == {policy for policy, *_ in LOSSES[library]}
