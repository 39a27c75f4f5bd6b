"""A library's own function is the policy loss of the table that its ledger calls exact.

Each cell is translated; the library's own functions, as `lab/probes` runs them, get its launch and
random rollouts. The gradient is that of the table, of the advantages that the library computed.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
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
NEAR, BOTH = {"low": 0.1, "high": 0.3}, ("sequence_mean", "token_mean")
CASES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "openrlhf": [
        {"policy": policy, "aggregation": aggregation, **bounds}
        for policy, aggregations in (("ppo", BOTH), ("gspo", ("sequence_mean",)))
        for aggregation in aggregations
        for bounds in ({}, {"clip": NEAR}, {"clip": {**NEAR, "dual": 1.4}})
    ],
    "skyrl": [
        {"policy": policy, "aggregation": aggregation, **more}
        for policy, mores in (
            (
                "ppo",
                (
                    {},
                    {"clip": {**NEAR, "dual": 1.4}},
                    {"clip": {**NEAR, "dual": 1.4}, "max_staleness_steps": 2},
                ),
            ),
            ("gspo", ({}, {"clip": NEAR})),
            ("cispo", ({}, {"clip": NEAR}, {"clip": NEAR, "max_staleness_steps": 2})),
            ("sapo", ({},)),
            ("rollout_is", ({}, {"clip": NEAR}, {"clip": NEAR, "max_staleness_steps": 2})),
            ("dppo_tv", ({}, {"clip": NEAR}, {"clip": NEAR, "max_staleness_steps": 2})),
            ("dppo_kl", ({}, {"clip": NEAR}, {"clip": NEAR, "max_staleness_steps": 2})),
        )
        for aggregation in BOTH
        for more in mores
    ]
    + [
        {"policy": policy, "correction": correction, **bounds}
        for policy, bounds in (
            ("ppo", {}),
            ("gspo", {"clip": {"low": 0.4, "high": 0.6}}),
            ("cispo", {}),
            ("sapo", {}),
        )
        for correction in CORRECTIONS
    ],
    "trl": [
        {"policy": policy, "aggregation": aggregation, **bounds}
        for policy, aggregations, boundses in (
            ("ppo", BOTH, ({}, {"clip": {**NEAR, "dual": 1.4}})),
            ("gspo", BOTH, ({}, {"clip": NEAR}, {"clip": {**NEAR, "dual": 1.4}})),
            ("cispo", ("token_mean",), ({}, {"clip": {"low": 1.0, "high": 0.3}})),
            ("sapo", ("sequence_mean",), ({},)),
            ("vespo", ("token_mean",), ({},)),
        )
        for aggregation in aggregations
        for bounds in boundses
    ],
    "verl": [
        {"policy": policy, "aggregation": aggregation, **bounds}
        for policy, aggregations, boundses in (
            ("ppo", BOTH, ({}, {"clip": {**NEAR, "dual": 1.3}})),
            ("reinforce", BOTH, ({},)),
            ("gspo", BOTH, ({}, {"clip": NEAR})),
            ("cispo", BOTH, ({}, {"clip": NEAR})),
            ("sapo", ("sequence_mean",), ({},)),
            ("gmpo", ("sequence_mean",), ({}, {"clip": NEAR})),
            ("dppo_tv", BOTH, ({}, {"clip": {**NEAR, "dual": 1.3}})),
            ("dppo_kl", BOTH, ({}, {"clip": {**NEAR, "dual": 1.3}})),
        )
        for aggregation in aggregations
        for bounds in boundses
    ]
    + [
        {"policy": policy, "aggregation": aggregation, "correction": correction, **bounds}
        for policy, aggregation, bounds in (
            ("ppo", "token_mean", {}),
            ("ppo", "sequence_mean", {}),
            ("gspo", "sequence_mean", {"clip": {"low": 0.4, "high": 0.6}}),
            ("cispo", "token_mean", {}),
            ("dppo_tv", "token_mean", {"clip": {**NEAR, "dual": 1.3}}),
        )
        for correction in CORRECTIONS
        if (correction["kind"], aggregation) != ("reject_token", "sequence_mean")
    ],
}


def cases(release: str) -> list[Mapping[str, Any]]:
    """Return the cases that a release has."""
    library, _, version = release.partition("@")
    kept = list(CASES[library])
    if library == "skyrl" and version == "0.2.0":  # its asynchronous ppo has no ratio
        kept = [each for each in kept if not each["policy"].startswith("dppo")]
        kept = [each for each in kept if (each["policy"], len(each)) != ("ppo", 4)]
    if library == "skyrl" and version != "0.4.0":
        kept = [each for each in kept if (each["policy"], len(each)) != ("cispo", 4)]
    return kept


def cell_of(release: str, case: Mapping[str, Any]) -> Cell:
    library, _, version = release.partition("@")
    loss = {name: value for name, value in case.items() if name in Loss.model_fields}
    more = {name: value for name, value in case.items() if name not in loss}
    if library == "trl":  # with one update a batch its ratio is 1, whatever `old` is
        more["batch"] = {"num_prompts": real.PROMPTS, "num_minibatches": 2}
    changes = {"kl": {"estimator": "none"}, **more}
    asked = real.cell(library, version, Path("/models/m"), Path("d.jsonl"), changes)
    settings = asked.settings.model_copy(update={"loss": Loss.model_validate(loss)})
    return asked.model_copy(update={"settings": settings})


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
    ("release", "at"), [(name, at) for name in RELEASES for at in range(len(cases(name)))]
)
def test_the_librarys_own_function_is_the_loss_of_the_table(release: str, at: int) -> None:
    loss = cell_of(release, cases(release)[at]).settings.loss
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


@pytest.mark.parametrize("library", list(CASES))
def test_a_loss_that_is_exact_has_a_case(library: str) -> None:
    """And one without a case is not exact."""
    offered = plugins.load(library).capabilities["loss.policy"]
    assert set(offered) == {case["policy"] for case in CASES[library]}
