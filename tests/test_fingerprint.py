"""Identity: pinned for ever, changed by what changes the result, and by nothing else."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import scoring
from orchestrator.identity import (
    NOT_IDENTITY,
    _encoded,
    digest,
    drift,
    encode,
    fingerprint,
    fingerprint_by_seed,
    flatten,
    identity,
)
from orchestrator.settings import Settings, without_seed

PLAIN: dict[str, Any] = {
    "model": {"name": "qwen2.5-7b", "path": "Qwen/Qwen2.5-7B"},
    "data": {"name": "math", "path": "some/MATH", "num_prompts": 7500, "instruction": "Think."},
    "advantage": {"estimator": "rloo"},
    "loss": {"aggregation": "token_mean", "clip": {"low": 0.2, "high": 0.28}},
    "kl": {"estimator": "k1", "placement": "reward", "beta": 0.05},
    "rollout": {"group_size": 5, "max_response_tokens": 1024},
    "batch": {"num_prompts": 256},
    "optimizer": {"learning_rate": 1e-6, "weight_decay": 0.01, "schedule": "constant"},
    "num_train_steps": 250,
    "backend": {"name": "verl", "version": "0.9.1"},
    "seed": 0,
}
"""What is left out has its default, which belongs to the pinned ids."""

CHANGES: dict[str, Any] = {
    "model.path": "other",
    "model.chat_template": "none",
    "data.path": "other",
    "data.split": "test",
    "data.instruction": "",
    "data.reward": "exact",
    "data.max_prompt_tokens": 512,
    "advantage.estimator": "grpo",
    "loss.aggregation": "sequence_mean",
    "loss.constant_tokens": 7,
    "loss.clip.low": 0.1,
    "loss.clip.high": 0.2,
    "loss.clip.dual": 3.0,
    "kl.estimator": "k3",
    "kl.placement": "loss",
    "kl.beta": 0.1,
    "kl.reset_reference_every_steps": 50,
    "rollout.group_size": 4,
    "rollout.max_response_tokens": 512,
    "rollout.temperature": 0.9,
    "rollout.top_p": 0.9,
    "batch.num_prompts": 128,
    "batch.num_minibatches": 2,
    "optimizer.learning_rate": 2e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.99,
    "optimizer.epsilon": 1e-6,
    "optimizer.max_grad_norm": None,
    "optimizer.schedule": "cosine",
    "optimizer.num_warmup_steps": 5,
    "num_train_steps": 100,
    "backend.name": "skyrl",
    "backend.version": None,
    "max_staleness_steps": 10,
    "seed": 1,
    "precision.training": "fp32",
    "precision.rollout": "bf16",
    "precision.checkpoint": "fp16",
    "loss.policy": "gspo",
    "loss.ratio_level": "sequence_mean",
    "kl.ratio_level": "sequence",
    "kl.reference": {"kind": "ema", "share": 0.5, "every_steps": 1},
    "kl.controller": {"target": 0.1, "horizon": 1000},
    "loss.correction": {"kind": "tis_token", "most": 2.0},
    "loss.entropy_bonus": 0.01,
    "lora": {"rank": 8, "alpha": 16},
}
"""Another value for every leaf that changes the result."""


def changed(**values: Any) -> dict[str, Any]:
    plain = json.loads(json.dumps(PLAIN))
    for dotted, value in values.items():
        *parents, leaf = dotted.split(".")
        node = plain
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return plain


def settings(**values: Any) -> Settings:
    plain = changed(**values)
    if "constant_tokens" in plain["loss"]:
        plain["loss"]["aggregation"] = "constant"
    if plain["kl"].get("ratio_level", "token") != "token":
        plain["kl"] |= {"estimator": "rho_k1", "placement": "loss"}
    return Settings.model_validate(plain)


@pytest.mark.parametrize(
    ("values", "pinned"),
    [
        ({}, "03207052e9df"),
        ({"kl": {"estimator": "none"}, "loss.clip": None}, "86cbc08ed3d4"),
        ({"kl.beta": 1, "seed": 2, "data.instruction": "boîte \\boxed{}\n"}, "34681ea5e22b"),
    ],
)
def test_ids_never_change(values: dict[str, Any], pinned: str) -> None:
    assert fingerprint(settings(**values)) == pinned


def test_the_encoding_never_changes() -> None:
    value = {"b": [1, 1.0, -0.0, 0.1, 1e-6, 1e22, None, True], "a": {"é": "x\n"}}
    assert encode(value) == '{"a":{"é":"x\\n"},"b":[1,1,0,0.1,1e-06,1e+22,null,true]}'
    assert digest(value) == "e8fde64dcd39"


def test_every_leaf_is_known_here() -> None:
    leaves = {field for field, _ in flatten(settings().model_dump())}
    assert leaves == set(CHANGES) | NOT_IDENTITY


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_every_leaf_that_changes_the_result_changes_the_id(field: str) -> None:
    other = settings(**{field: CHANGES[field]})
    assert fingerprint(other) != fingerprint(settings())
    changes = drift(identity(settings()), identity(other))
    assert any(name == field or name.startswith(f"{field}.") for name in changes)


def test_another_scorer_of_a_reward_is_another_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    before, plain = fingerprint(settings()), identity(settings())
    _encoded.cache_clear()
    monkeypatch.setitem(scoring.VERSIONS, settings().data.reward, 99)
    after = fingerprint(settings())
    assert after == digest(identity(settings())) != before
    assert list(drift(plain, identity(settings()))) == ["data.reward"]
    _encoded.cache_clear()


@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(rng: random.Random) -> None:
    def shuffled(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        items = [(key, shuffled(value)) for key, value in node.items()]
        rng.shuffle(items)
        return dict(items)

    plain = shuffled(PLAIN)
    assert fingerprint(Settings.model_validate(plain)) == fingerprint(settings())
    assert digest(plain) == digest(PLAIN)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, object(), b"x", {1: 2}, {1, 2}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"@ \$\.a\[1\]"):
        encode({"a": [0, value]})


@given(st.integers(min_value=0, max_value=2**70))
def test_another_seed_is_the_same_as_settings_with_that_seed(seed: int) -> None:
    settings = Settings.model_validate(PLAIN)
    other, quick = settings.model_copy(update={"seed": seed}), settings.but(seed=seed)
    assert quick == other
    assert quick.model_dump_json() == other.model_dump_json()
    assert quick.model_fields_set == other.model_fields_set
    assert fingerprint_by_seed(settings)(seed) == fingerprint(other) == digest(identity(quick))
    assert without_seed(quick) == without_seed(settings)
    assert without_seed(settings.but(num_train_steps=1)) != without_seed(settings)
