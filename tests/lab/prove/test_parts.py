"""A proof sees each part of a dialect: a run of a planted dialect fails under one other part.

The rollouts are the proofs' own: sampled from their policy, which ends responses anywhere. A run is
what the replay does with them in the planted dialect, so the truth is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.cpu.orch_cpu_sampler import Sampler
from lab.cpu.orch_rollout_dump import RolloutBatch
from lab.micro.replay import replay
from lab.prove.proof import NotReplayed, Proof, prove, read_run
from lab.prove.scaled_down import RESPONSE_TOKENS, cell_of, policy
from orchestrator.kl.library_semantics import PLAIN, Dialect, parse, relevant
from orchestrator.rundir import CellDir
from orchestrator.settings import Settings

K3 = {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.5}}
RHO_K3 = {"kl": {"estimator": "rho_k3", "placement": "loss", "beta": 0.5}}
K1 = {"kl": {"estimator": "k1", "placement": "reward", "beta": 0.5}}
TWO = {"batch": {"num_prompts": 4, "num_minibatches": 2}}
WARM = {"optimizer": {"learning_rate": 1e-3, "num_warmup_steps": 4}}
STALE = {"max_staleness_steps": 1}
CONSTANT = {"loss": {"aggregation": "constant", "constant_tokens": 6}}

PARTS: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    ("kl_clamp=0.01/0.01", "", K3 | TWO),
    ("kl_clamp=0.01/0.01+kl_clamp_of=k3", "kl_clamp=0.01/0.01+kl_clamp_of=k1", K3 | TWO),
    ("kl_ratio_max=1.001", "", RHO_K3 | TWO),
    ("kl_reward=outside", "", K1),
    ("kl_reward=to_go", "", K1),
    ("kl_reward=token", "", K1),
    ("kl_reward_policy=batch_start", "", K1 | STALE),
    ("reference_temperature=one", "", K3 | {"rollout": {"temperature": 0.8}}),
    ("kl_loss_mean=sequence_mean", "", K3),
    ("kl_loss_mean=token_mean", "", K3 | {"loss": {"aggregation": "sequence_mean"}}),
    ("ratio_to=batch_start", "", K3 | STALE),
    ("ratio_level=sequence_if_kl_reward", "", K1 | TWO),
    ("ratio_bound=0.001", "", K3 | TWO),
    ("std_epsilon=0.1", "", K3 | {"advantage": {"estimator": "grpo"}}),
    ("micro_batch=1", "", K3),
    ("micro_batch=2", "micro_batch=4", K3),
    ("mean_over=batch", "", K3 | TWO),
    ("constant_is_tokens=true", "", K3 | CONSTANT),
    (
        "decay_of=matrices",
        "",
        K3 | {"optimizer": {"learning_rate": 1e-3, "weight_decay": 1.0}},
    ),
    ("warmup_from_zero=true", "", K3 | TWO | WARM),
    ("schedule_per_batch=true", "", K3 | TWO | WARM),
)
"""A planted part, what is said instead, and the sections of Settings that it needs."""
UNSEEN = {
    "staleness": "how stale a batch is, is what its rollouts say",
    "precision": "the replay computes in fp32; the tolerance is that of the format",
}
"""Parts that no proof sees, and why."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy(tmp_path_factory.mktemp("proof") / "policy")


@cache
def sampled(start: Path, stale: bool, temperature: float) -> tuple[RolloutBatch, ...]:
    """Two rollout batches of 4 prompts and 4 responses each, with the sampler's probabilities."""
    sampler = Sampler(start, seed=1)
    if stale:  # another policy has sampled
        sampler.model.lm_head.weight.requires_grad_(False).mul_(0.9)
    batches = []
    for step in (1, 2):
        words = [f"{(31_415 * (4 * step + number)) % 100_000:05d}" for number in range(4)]
        groups = [word for word in words for _ in range(4)]
        prompts = sampler.tokenizer([f"S{word}=" for word in groups])["input_ids"]
        drawn = sampler.sample(prompts, RESPONSE_TOKENS, temperature)
        responses = [each.ids for each in drawn]
        texts = sampler.tokenizer.batch_decode(responses, skip_special_tokens=True)
        batches.append(
            RolloutBatch(
                step,
                prompts,
                responses,
                rewards=[float(len(text) >= 2 and text[0] <= text[1]) for text in texts],
                groups=groups,
                temperature=temperature,
                logp_rollout=[each.logprobs for each in drawn],
            )
        )
    return tuple(batches)


def run(settings: Settings, dialect: Dialect, start: Path) -> list[RolloutBatch]:
    """What a library of this dialect would report of the sampled rollouts."""
    stale = settings.max_staleness_steps > 0
    plain = list(sampled(start, stale, settings.rollout.temperature))
    if settings.batch.num_minibatches == 2:
        halves = [[*range(4), *range(8, 12)], [*range(4, 8), *range(12, 16)]]
        plain = [replace(b, step=2 * b.step, updates=halves) for b in plain]
    found = list(replay(settings, dialect, plain, start))
    return [
        replace(b, advantages=p.advantages, logp_policy=p.logp_policy, observed=dict(p.observed))
        for b, p in zip(plain, found, strict=True)
    ]


def settings_of(sections: Mapping[str, Any]) -> Settings:
    rollout = {"group_size": 4, "max_response_tokens": RESPONSE_TOKENS}
    base: dict[str, Any] = {"batch": {"num_prompts": 4}, "num_train_steps": 2, **sections}
    base["rollout"] = rollout | base.get("rollout", {})
    base["num_train_steps"] *= base["batch"].get("num_minibatches", 1)
    return cell_of("verl", "0.9.1", base).settings


def proved(settings: Settings, true: str, said: str, start: Path) -> Proof:
    return prove(settings, parse(said), run(settings, parse(true), start), start)


@pytest.mark.thorough  # two trainings a part
@pytest.mark.slow
@pytest.mark.parametrize(("planted", "other", "sections"), PARTS, ids=[each[0] for each in PARTS])
def test_a_false_part_fails(
    planted: str, other: str, sections: Mapping[str, Any], start: Path
) -> None:
    settings = settings_of(sections)
    assert relevant(parse(planted), settings) != relevant(parse(other), settings)
    for true, said in ((planted, other), (other, planted)):
        assert proved(settings, true, true, start).holds
        assert not proved(settings, true, said, start).holds, (true, said)


def test_every_part_is_planted_or_is_said_to_be_unseen() -> None:
    named = {part.partition("=")[0] for planted, _, _ in PARTS for part in planted.split("+")}
    assert named | UNSEEN.keys() == set(Dialect.model_fields)
    assert not named & UNSEEN.keys()


@pytest.mark.slow
def test_a_run_that_was_never_rewarded_is_a_sentence(start: Path) -> None:
    """It ended in a ZeroDivisionError."""
    settings = settings_of({"kl": {"estimator": "none"}})
    none = [replace(b, rewards=[0.0] * 16) for b in run(settings, PLAIN, start)]
    predicted = replay(settings, PLAIN, none, start)
    batches = [
        replace(b, advantages=p.advantages, observed=dict(p.observed))
        for b, p in zip(none, predicted, strict=True)
    ]
    with pytest.raises(NotReplayed, match=r"the gradient is 0 in all 2 .*every reward is 0"):
        prove(settings, PLAIN, batches, start)


@pytest.mark.slow
def test_a_run_of_verl_with_unequal_responses_is_told_from_false_averages(start: Path) -> None:
    """With responses of one length both false dialects passed, with the same numbers."""
    recorded = read_run(CellDir(Path(__file__).parent / "recorded" / "uneven"), start)
    assert len({len(row) for batch in recorded.batches for row in batch.responses}) > 3
    assert recorded.proof().holds
    for part in ("kl_loss_mean=sequence_mean", "micro_batch=1"):
        false = recorded.proof(parse(f"{recorded.dialect.text}+{part}"))
        assert "grad_norm" in {each.name for each in false.quantities if not each.holds}, part
