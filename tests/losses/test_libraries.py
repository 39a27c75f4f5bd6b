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
import yaml

from backends.skyrl import manifest as skyrl_manifest
from backends.verl.overrides import read as read_hydra
from orchestrator import plugins
from orchestrator.kl.estimators import EngineWeight, weights
from orchestrator.losses.table import Bounds, Tokens, policy_loss_entry
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Loss
from tests.backends.child import Imported, forked
from tests.backends.environments import cpu_python
from tests.backends.skyrl import library as skyrl
from tests.lab import real

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

    imports: tuple[str, ...]
    program: str
    """Reads the cases and the tokens from its input, and writes loss and gradient of each case."""
    sent: Callable[[LaunchPlan], Mapping[str, object]]
    """Return the arguments of a launch."""


VERL = """
import json, sys
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config.actor import ActorConfig

asked = json.load(sys.stdin)
old, engine, advantage, mask = (
    torch.tensor(asked[name]) for name in ("old", "engine", "advantage", "mask")
)
HOME, CORRECTION = "actor_rollout_ref.actor.", "algorithm.rollout_correction."
answers = []
for sent in asked["cases"]:
    own = {key.removeprefix(HOME): value for key, value in sent.items() if key.startswith(HOME)}
    names = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True,
        **{name: own[name] for name in names if name in own},
    )
    config.global_batch_info.update(batch_num_tokens=mask.sum(), global_batch_size=len(mask))
    weights, kept, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=old, rollout_log_prob=engine, response_mask=mask, **{
            key.removeprefix(CORRECTION): value
            for key, value in sent.items() if key.startswith(CORRECTION + "rollout_")
        },
    )
    logp = torch.tensor(asked["logp"], requires_grad=True)
    loss, _ = get_policy_loss_fn(own["policy_loss.loss_mode"])(
        old_log_prob=old, log_prob=logp, advantages=advantage.expand_as(old).contiguous(),
        response_mask=kept, loss_agg_mode=own["loss_agg_mode"], config=config,
        rollout_is_weights=None if weights is None else weights.batch["rollout_is_weights"],
    )
    loss.backward()
    answers.append([loss.item(), logp.grad.tolist()])
print(json.dumps(answers))
"""


OPENRLHF = """
import importlib.util, json, sys, types
import torch

# Its models need flash_attn, which no CPU has. The loss is a file of its own.
[home] = importlib.util.find_spec("openrlhf").submodule_search_locations
sys.modules["openrlhf.models"] = types.ModuleType("openrlhf.models")
sys.modules["openrlhf.models"].__path__ = [home + "/models"]
from openrlhf.models.loss import PolicyLoss

asked = json.load(sys.stdin)
old, advantage, mask = (torch.tensor(asked[name]) for name in ("old", "advantage", "mask"))
answers = []
for sent in asked["cases"]:
    low, high = map(float, sent["actor.eps_clip_low_high"])
    dual = sent.get("actor.dual_clip")
    function = PolicyLoss(
        clip_eps_low=low, clip_eps_high=high, dual_clip=dual and float(dual[0]),
        token_level_loss=sent["actor.loss_agg_mode"] == ["token-mean"],
        policy_loss_type=sent.get("actor.policy_loss_type", ["ppo"])[0],
    )
    logp = torch.tensor(asked["logp"], requires_grad=True)
    loss = function(logp, old, advantage.expand_as(old), action_mask=mask)[0]
    loss.backward()
    answers.append([loss.item(), logp.grad.tolist()])
print(json.dumps(answers))
"""


def flags(plan: LaunchPlan) -> Mapping[str, object]:
    """Return each flag of a command line and its words."""
    found: dict[str, list[str]] = {}
    for word in plan.argv:
        if word.startswith("--"):
            found[word.removeprefix("--")] = values = []
        elif found:
            values.append(word)
    return found


def hydra(plan: LaunchPlan) -> Mapping[str, object]:
    return dict(map(read_hydra, plan.argv[3:]))


TRL = """
import json, sys
from collections import defaultdict
from types import SimpleNamespace
import torch
from trl import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

asked = json.load(sys.stdin)
old, advantage, mask = (torch.tensor(asked[name]) for name in ("old", "advantage", "mask"))
TAKEN = ("loss_type", "importance_sampling_level", "epsilon", "delta", "sapo_", "vespo_")
answers = []
for sent in asked["cases"]:
    own = {key: value for key, value in sent.items() if key.startswith(TAKEN)}
    args = GRPOConfig(output_dir="out", use_cpu=True, bf16=False, report_to="none", **own)
    logp = torch.tensor(asked["logp"], requires_grad=True)
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    trainer = SimpleNamespace(
        args=args, loss_type=args.loss_type, beta=0.0, epsilon_low=args.epsilon, epsilon_high=high,
        importance_sampling_level=args.importance_sampling_level, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, aux_loss_enabled=False, use_vllm=False,
        _entropy_bonus_enabled=False, current_gradient_accumulation_steps=1,
        max_completion_length=old.shape[1], model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x,
        ),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
    )
    args.steps_per_generation = 1
    ids = torch.zeros_like(old, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1],
            "completion_ids": ids, "completion_mask": mask, "advantages": advantage[:, 0],
            "old_per_token_logps": old, "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    answers.append([loss.item(), logp.grad.tolist()])
print(json.dumps(answers))
"""


def options(plan: LaunchPlan) -> Mapping[str, object]:
    return dict(yaml.safe_load(plan.files["grpo.yaml"]))


ELSEWHERE = OLD - RNG.exponential(0.3, MASK.shape)
"""Log-probabilities of the policy that a loss must not read."""


def of_skyrl(release: str) -> list[tuple[float, list[list[float]]]]:
    """Return loss and gradient of each launch by SkyRL's function, from the configuration that
    SkyRL makes of it. The probabilities that the loss must not read are others."""
    version = release.partition("@")[2]
    made = skyrl.ask(version, [plan.argv[2:] for plan in launches(release)])
    questions = []
    for case, each in zip(cases(release), made, strict=True):
        assert "error" not in each, each
        to_engine = case["policy"] in skyrl_manifest.TO_ENGINE or "max_staleness_steps" in case
        old, engine = (ELSEWHERE, OLD) if to_engine else (OLD, ELSEWHERE)
        questions.append(
            {
                "call": "policy",
                "config": each["values"]["trainer"]["algorithm"],
                "logp": LOGP.tolist(),
                "old": old.tolist(),
                "engine": engine.tolist(),
                "advantages": (ADVANTAGE + 0 * OLD).tolist(),
                "mask": MASK.tolist(),
            }
        )
    return list(skyrl.compute(version, questions))


LIBRARIES: Mapping[str, Library] = {
    "openrlhf@0.11.2": Library(("torch",), OPENRLHF, flags),
    "trl@1.16.0": Library(("torch", "trl.trainer.grpo_trainer"), TRL, options),
    "trl@1.9.2": Library(("torch", "trl.trainer.grpo_trainer"), TRL, options),
    "verl@0.9.1": Library(("torch", "verl.trainer.ppo.core_algos"), VERL, hydra),
}

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
            ("ppo", ({}, {"clip": {**NEAR, "dual": 1.4}})),
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
    if library == "skyrl" and version == "0.2.0":
        kept = [each for each in kept if not each["policy"].startswith("dppo")]
    if library == "skyrl" and version != "0.4.0":
        kept = [each for each in kept if (each["policy"], len(each)) != ("cispo", 4)]
    return kept


def cell_of(release: str, case: Mapping[str, Any]) -> Cell:
    library, _, version = release.partition("@")
    loss = {name: value for name, value in case.items() if name in Loss.model_fields}
    asked = real.cell(
        library,
        version,
        Path("/models/m"),
        Path("d.jsonl"),
        {
            "kl": {"estimator": "none"},
            **{name: value for name, value in case.items() if name not in loss},
        },
    )
    settings = asked.settings.model_copy(update={"loss": Loss.model_validate(loss)})
    return asked.model_copy(update={"settings": settings})


@cache
def launches(release: str) -> list[LaunchPlan]:
    place = AttemptPaths(Path("/r/plan"), Path("/r/attempts/1"), Path("/r/checkpoints"))
    name = release.partition("@")[0]
    translate = plugins.load(name).translate
    return [translate(cell_of(release, case), place) for case in cases(release)]


@cache
def answers(release: str, folder: Path) -> list[tuple[float, list[list[float]]]]:
    """Return the library's loss and gradient of each case, all in one process."""
    if release not in LIBRARIES:
        return of_skyrl(release)
    of = LIBRARIES[release]
    given = {
        "cases": [dict(of.sent(plan)) for plan in launches(release)],
        "logp": LOGP.tolist(),
        "old": OLD.tolist(),
        "engine": ELSEWHERE.tolist(),
        "advantage": ADVANTAGE.tolist(),
        "mask": MASK.tolist(),
    }
    parent = Imported(cpu_python(*release.split("@")), of.imports)
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
    if loss.correction is not None:
        by = loss.correction
        weight = weights(EngineWeight(by.kind, by.least, by.most), OLD - ELSEWHERE, MASK)
        assert np.ptp((weight + 0 * MASK)[MASK > 0]) > 0
        value, slope = value * weight, slope * weight
    return float((value * share).sum()), slope * share


RELEASES = (*LIBRARIES, *(f"skyrl@{version}" for version in skyrl_manifest.VERSIONS))


@pytest.mark.parametrize(
    ("release", "at"), [(name, at) for name in RELEASES for at in range(len(cases(name)))]
)
def test_the_librarys_own_function_is_the_loss_of_the_table(
    release: str, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loss = cell_of(release, cases(release)[at]).settings.loss
    value, gradient = of_table(loss)
    theirs, slope = answers(release, tmp_path_factory.getbasetemp())[at]
    np.testing.assert_allclose(slope, gradient, atol=1e-7)
    assert np.abs(gradient).sum() > 0
    bounded = loss.clip is not None and loss.clip.dual is not None
    if not release.startswith("verl") or loss.policy not in VALUE_DIFFERS or bounded:
        # SkyRL takes ratios as float32, whatever their type (safe_exp_delta).
        assert theirs == pytest.approx(value, abs=1e-7, rel=2e-7)


VALUE_DIFFERS = ("dppo_tv", "dppo_kl")
"""Without a bound on the weight the value of verl is r A log pi. Its gradient is that of r A."""


@pytest.mark.parametrize("library", list(CASES))
def test_a_loss_that_is_exact_has_a_case(library: str) -> None:
    """And one without a case is not exact."""
    offered = plugins.load(library).capabilities["loss.policy"]
    assert set(offered) == {case["policy"] for case in CASES[library]}
