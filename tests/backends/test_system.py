"""`system` and `backend.extra` in every library: sent, read back, in or out of the id, refused."""

from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import LaunchPlan
from orchestrator.settings import BackendRef, Settings, System
from tests.backends.openrlhf.cells import PLACE
from tests.backends.test_resolved import cell

LIBRARIES = {
    "verl": ("0.9.1", "loss", {}),
    "trl": ("1.16.0", "loss", {}),
    "openrlhf": ("0.11.2", "loss", {}),
    "skyrl": ("0.4.0", "loss", {}),
    "prime_rl": (
        "0.5.0",
        "reward",
        {"rollout": {"group_size": 4, "max_response_tokens": 222}},
    ),
}
EXTRA: dict[str, tuple[str, Any]] = {
    "verl": ("actor_rollout_ref.rollout.max_num_batched_tokens", 4096),
    "trl": ("top_entropy_quantile", 0.2),
    "openrlhf": ("vllm.enforce_eager", True),
    "skyrl": ("generator.inference_engine.max_num_batched_tokens", 4096),
    "prime_rl": ("trainer.log.level", "debug"),
}
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def launched(
    library: str,
    system: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
    version: str = "",
    **more: Any,
) -> tuple[LaunchPlan, Settings]:
    release, placement, fields = LIBRARIES[library]
    plain = cell(library, version or release, placement, **{**fields, **more})
    backend = BackendRef.model_validate(
        {"name": library, "version": version or release, "extra": extra or {}}
    )
    settings = plain.settings.model_copy(update={"backend": backend})
    asked = plain.model_copy(
        update={"settings": settings, "system": System.model_validate(system or {})}
    )
    return plugins.load(library).translate(asked, PLACE), settings


def refusal(library: str, **asked: Any) -> str:
    with pytest.raises(UnsupportedSetting) as caught:
        launched(library, **asked)
    return str(caught.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_setting_of_the_machine_has_a_row_or_is_refused(library: str) -> None:
    asked: dict[str, Any] = {
        "micro_batch": 2,
        "tokens_per_gpu": 20000,
        "engine_memory": 0.45,
        "engine_sequences": 128,
        "tensor_parallel": 1,
        "offload": True,
        "gradient_checkpointing": False,
    }
    manifest = plugins.load(library).manifest
    assert manifest is not None
    known = {row.field for row in manifest.system}
    before, settings = launched(library)
    assert not any(entry.field.startswith("system.") for entry in before.ledger)
    for name, value in asked.items():
        if name not in known:
            assert f"system.{name}={value}" in refusal(library, system={name: value})
            continue
        plan, same = launched(library, {name: value})
        entry = next(each for each in plan.ledger if each.field == f"system.{name}")
        assert "not part of the cell's id, " in entry.note
        assert fingerprint(same) == fingerprint(settings)
        changed = (plan.argv, plan.files) != (before.argv, before.files)
        assert changed or name == "tensor_parallel"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_key_is_passed_on_read_back_and_part_of_the_id(library: str) -> None:
    key, value = EXTRA[library]
    plain, without = launched(library)
    plan, settings = launched(library, extra={key: value})
    assert fingerprint(settings) != fingerprint(without)
    entry = next(each for each in plan.ledger if each.field == f"backend.extra.{key}")
    assert (entry.status, entry.key, entry.value) == ("not judged", key, str(value))
    text = " ".join([*plan.argv, *plan.files.values()])
    assert key.rpartition(".")[2] in text
    back = plugins.load(library).parse(plan.argv, plan.files)
    assert back.backend == settings.backend
    assert back.model_copy(update={"model": settings.model}) == settings
    assert "extra.json" not in plain.files


@pytest.mark.parametrize(
    ("library", "key", "value", "words"),
    [
        ("verl", f"{ACTOR}.optim.lr", 1e-5, "Set optimizer.learning_rate"),
        ("verl", f"{ROLLOUT}.gpu_memory_utilization", 0.3, "Set system.engine_memory"),
        ("verl", "trainer.save_freq", 3, "Set cadence.checkpoint_every_steps"),
        ("verl", "+trainer.nnodes", 3, "Set resources.num_nodes"),
        ("verl", f"{ACTOR}.ppo_epochs", 2, "the ledger of this cell would be false"),
        ("verl", f"{ACTOR}.ppo_epoch", 1, "did you mean"),
        ("verl", f"{ACTOR}.mine", 1, f"to add it, write +{ACTOR}.mine"),
        ("verl", "+trainer.balance_batch", True, "Hydra refuses to add it"),
        ("trl", "top_entropy_quantil", 0.2, "did you mean 'top_entropy_quantile'"),
        ("trl", "top_entropy_quantile", "many", "is of type float"),
        ("trl", "learning_rate", 1e-5, "Set optimizer.learning_rate"),
        ("openrlhf", "vllm.enforce_eager", False, "It is a switch"),
        ("openrlhf", "vllm.enforce_eagre", True, "has no key"),
        ("skyrl", "+generator.mine", 1, "has no key +generator.mine"),
        ("skyrl", "generator.max_turns", 3, "the ledger of this cell would be false"),
        ("prime_rl", "trainer.log.levle", "debug", "has no key"),
        ("prime_rl", "max_steps", 3, "Set num_train_steps"),
    ],
)
def test_a_key_that_cannot_be_passed_says_why(
    library: str, key: str, value: object, words: str
) -> None:
    assert words in refusal(library, extra={key: value})


def test_a_key_that_the_release_lacks_is_added_as_hydra_adds_it() -> None:
    key = f"+{ROLLOUT}.engine_kwargs.vllm.mine"
    plan, _ = launched("verl", extra={key: 1})
    assert f"{key}=1" in plan.argv


@pytest.mark.parametrize(
    ("library", "version", "own", "more"),
    [
        ("trl", "1.16.0", "per_device_train_batch_size", {"loss": {"entropy_bonus": 0.01}}),
        (
            "skyrl",
            "0.4.0",
            "trainer.micro_train_batch_size_per_gpu",
            {"loss": {"entropy_bonus": 0.01}},
        ),
        ("openrlhf", "0.10.1.post2", "micro_train_batch_size", {"kl": {"estimator": "none"}}),
    ],
)
def test_a_micro_batch_that_is_mathematics_is_part_of_the_id(
    library: str, version: str, own: str, more: dict[str, Any]
) -> None:
    asked = {"version": version, **more}
    assert "it is mathematics here" in refusal(library, system={"micro_batch": 2}, **asked)
    plan, settings = launched(library, extra={own: 2}, **asked)
    _, without = launched(library, **asked)
    assert fingerprint(settings) != fingerprint(without)
    back = plugins.load(library).parse(plan.argv, plan.files)
    assert back.batch == settings.batch


@pytest.mark.parametrize("library", ["verl", "trl", "openrlhf", "skyrl"])
def test_an_entropy_bonus_reaches_the_library(library: str) -> None:
    plan, settings = launched(library, loss={"entropy_bonus": 0.013})
    entry = next(each for each in plan.ledger if each.field == "loss.entropy_bonus")
    assert "0.013" in entry.value
    back = plugins.load(library).parse(plan.argv, plan.files)
    assert back.loss == settings.loss


def test_an_entropy_bonus_is_refused_where_a_library_has_none() -> None:
    assert "loss.entropy_bonus=0.01" in refusal("prime_rl", loss={"entropy_bonus": 0.01})


def test_batches_of_tokens_are_mathematics_where_they_stop_a_shuffle() -> None:
    """OpenRLHF 0.11.2 shuffles a rollout batch before it cuts it, but not with dynamic batches."""
    system, batch = {"tokens_per_gpu": 20000}, {"num_prompts": 16, "num_minibatches": 2}
    plan, _ = launched("openrlhf", system)
    assert "--train.dynamic_batch_enable" in plan.argv
    assert "without shuffling it" in refusal("openrlhf", system=system, batch=batch)


def test_a_size_that_does_not_divide_is_refused() -> None:
    for library in ("verl", "trl", "openrlhf", "skyrl"):
        assert "system.micro_batch=5" in refusal(library, system={"micro_batch": 5})
    assert "system.tokens_per_gpu=300" in refusal("verl", system={"tokens_per_gpu": 300})
