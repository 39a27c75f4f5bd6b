"""Cells as Prime-RL launches: golden keys, refusals, the ledger, and reading back."""

import time
import tomllib
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import pytest

from backends.prime_rl import BACKEND
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Resources


def config(cell: Cell, place: AttemptPaths) -> Any:
    return tomllib.loads(BACKEND.translate(cell, place).files["rl.toml"])


def test_the_papers_asynchronous_cell(base: Cell, place: AttemptPaths) -> None:
    plan = BACKEND.translate(base, place)
    assert plan.argv[-3:] == ("rl", "@", str(place.plan_dir / "rl.toml"))
    assert dict(flatten(config(base, place))) == {
        "output_dir": str(place.checkpoints_dir),
        "max_steps": 350,
        "max_async_level": 10,
        "seq_len": 5120,
        "model.name": "Qwen/Qwen2.5-7B",
        "ckpt.interval": 50,
        "weight_broadcast.type": "filesystem",
        "trainer.model.ac.freq": 1,
        "trainer.tokenizer.name": "Qwen/Qwen2.5-7B",
        "trainer.optim.type": "adamw",
        "trainer.optim.lr": 1e-6,
        "trainer.optim.weight_decay": 0.01,
        "trainer.optim.betas1": 0.9,
        "trainer.optim.betas2": 0.999,
        "trainer.optim.max_norm": 1.0,
        "trainer.scheduler.type": "constant",
        "trainer.loss.type": "custom",
        "trainer.loss.import_path": "orch_prime_rl_hooks.loss",
        "trainer.loss.kwargs.estimator": "k1",
        "trainer.loss.kwargs.placement": "reward",
        "trainer.loss.kwargs.beta": 0.005,
        "trainer.loss.kwargs.clip_low": 0.2,
        "trainer.loss.kwargs.clip_high": 0.2,
        "orchestrator.batch_size": 512,
        "orchestrator.rollouts_per_example": 16,
        "orchestrator.max_off_policy_steps": 10,
        "orchestrator.strict_async_level": False,
        "orchestrator.sampling.temperature": 1.0,
        "orchestrator.sampling.max_tokens": 4096,
        "orchestrator.buffer.seed": base.settings.seed,
        "orchestrator.advantage.type": "default",
        "orchestrator.env": config(base, place)["orchestrator"]["env"],
        "orchestrator.eval.interval": 10,
        "orchestrator.eval.sampling.temperature": 1.0,
        "orchestrator.eval.sampling.top_p": 1.0,
        "orchestrator.eval.sampling.max_tokens": 4096,
        "orchestrator.eval.env": [
            {
                "name": "validation",
                "id": "orch-prime-rl-environment",
                "args": {
                    "path": "DigitalLearningGmbH/MATH-lighteval",
                    "split": "train",
                    "reward": "math_boxed",
                    "instruction": base.settings.data.instruction,
                    "part": "validation",
                },
            }
        ],
        "deployment.type": "single_node",
        "deployment.gpus_per_node": 4,
        "deployment.num_train_gpus": 2,
        "deployment.num_infer_gpus": 1,
        "deployment.num_teacher_gpus": 1,
        "inference.seed": base.settings.seed,
        "inference.server.port": 8000,
        "inference.parallel.dp": 1,
        "inference.model.max_model_len": 5120,
        "inference.weight_broadcast.type": "filesystem",
    }


def test_without_kl_no_reference_is_served_and_nobody_else_moves(
    changed: Any, place: AttemptPaths
) -> None:
    none = config(changed({"kl": {"estimator": "none"}}), place)
    assert "num_teacher_gpus" not in none["deployment"]
    assert none["deployment"]["num_train_gpus"] == 2
    assert none["trainer"]["loss"]["kwargs"].keys() == {"clip_low", "clip_high"}


REFUSED = [
    ({"backend.version": "0.7.0"}, "backend.version", "prime_rl@0.5.0"),
    ({"model.chat_template": "none"}, "model.chat_template", "chat endpoint"),
    ({"loss": {"aggregation": "sequence_mean"}}, "loss.aggregation", "token_mean"),
    ({"kl.reset_reference_every_steps": 50}, "kl.reset_reference_every_steps", "never change"),
    ({"rollout.top_p": 0.9}, "rollout.top_p", "top_p=1.0"),
    ({"batch.num_minibatches": 2}, "batch.num_minibatches", "one optimizer step"),
    ({"optimizer.epsilon": 1e-6}, "optimizer.epsilon", "1e-8"),
    ({"rollout.temperature": 0.7}, "rollout.temperature", "no KL"),
    ({"advantage.estimator": "grpo"}, "kl.placement", "standard deviation"),
    ({"optimizer.num_warmup_steps": 350}, "optimizer.num_warmup_steps", "after the warm-up"),
    ({"optimizer.max_grad_norm": 1e31}, "optimizer.max_grad_norm", "null"),
    ({"optimizer.schedule": "linear", "num_train_steps": 1}, "optimizer.schedule", "two steps"),
    ({"data.path": "micro:sort"}, "data.path", "backend=micro"),
]


@pytest.mark.parametrize(("replace", "field", "advice"), REFUSED)
def test_what_prime_rl_cannot_do_is_refused_by_field(
    changed: Any, place: AttemptPaths, replace: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(UnsupportedSetting) as caught:
        BACKEND.translate(changed(replace), place)
    assert caught.value.field == field
    assert advice in caught.value.advice
    assert caught.value.offered


@pytest.mark.parametrize(
    ("nodes", "gpus", "field"),
    [
        (3, 8, "resources.num_nodes"),
        (1, 2, "resources.gpus_per_node"),
        (2, 1, "resources.gpus_per_node"),
    ],
)
def test_too_few_gpus(changed: Any, place: AttemptPaths, nodes: int, gpus: int, field: str) -> None:
    cell = changed({}, resources=Resources(num_nodes=nodes, gpus_per_node=gpus))
    with pytest.raises(UnsupportedSetting) as caught:
        BACKEND.translate(cell, place)
    assert caught.value.field == field


def test_the_ledger_says_what_is_ours_and_what_differs(base: Cell, place: AttemptPaths) -> None:
    by_field = {entry.field: entry for entry in BACKEND.translate(base, place).ledger}
    every = by_field.pop("cadence.evaluate_every_steps")
    assert (every.value, every.key) == ("10", "orchestrator.eval.interval")
    assert "one response to each validation prompt, not greedy" in every.note
    assert by_field.keys() == dict(flatten(base.settings.model_dump())).keys()
    status = {field: entry.status for field, entry in by_field.items()}
    assert {f for f, s in status.items() if s == "approximated"} == {
        "data.max_prompt_tokens",
        "loss.aggregation",
        "loss.constant_tokens",
        "max_staleness_steps",
        "seed",
    }
    assert status["kl.estimator"] == status["kl.placement"] == status["kl.beta"] == "extension"
    assert status["advantage.estimator"] == status["num_train_steps"] == "exact"
    emitted = dict(flatten(config(base, place)))
    for entry in by_field.values():
        named = entry.key and not entry.key.startswith("orchestrator.env")
        optional = entry.field in ("loss.clip.dual", "optimizer.num_warmup_steps")
        if named and not optional:
            assert any(key == entry.key or key.startswith(f"{entry.key}.") for key in emitted)


def test_staleness_zero_is_exact(changed: Any, place: AttemptPaths) -> None:
    cell = changed({"max_staleness_steps": 0})
    written = config(cell, place)
    assert written["max_async_level"] == written["orchestrator"]["max_off_policy_steps"] == 0
    [entry] = [e for e in BACKEND.translate(cell, place).ledger if e.field == "max_staleness_steps"]
    assert entry.status == "exact"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("orch_prime_rl_hooks.loss", "theirs.loss", "is not our loss"),
        ('"orch-prime-rl-environment"', '"math-env"', "one environment"),
        ("[orchestrator.buffer]\nseed = 0\n", "", "$.orchestrator.buffer.seed"),
        ("max_steps = 350\n", "", "$.max_steps"),
        ("max_steps = 350", "max_steps = 350 350", "cannot be read"),
        ("batch_size = 512", "batch_size = 513", "multiple of"),
        ("reward = ", "rewrd = ", "did you mean 'reward'"),
        (
            'estimator = "k1"',
            'estimator = "k9"',
            "no kl.estimator for 'k9' (it knows: k1,",
        ),
        ('type = "constant"', 'type = "linear"\ndecay_steps = 3\nwarmup_steps = 2', "plateau"),
        ('type = "adamw"', 'type = "muon"', "adamw"),
    ],
)
def test_a_launch_that_is_no_cell_is_told_apart(
    base: Cell, place: AttemptPaths, old: str, new: str, says: str
) -> None:
    plan = BACKEND.translate(base, place)
    text = plan.files["rl.toml"]
    assert old in text
    files = {**plan.files, "rl.toml": text.replace(old, new, 1)}
    with pytest.raises(SpecError, match=None) as caught:
        BACKEND.parse(plan.argv, files)
    assert says in str(caught.value)


def test_a_launch_without_its_file(base: Cell, place: AttemptPaths) -> None:
    with pytest.raises(SpecError, match=r"no file rl\.toml"):
        BACKEND.parse(BACKEND.translate(base, place).argv, {})


def test_a_changed_key_is_another_cell(base: Cell, place: AttemptPaths) -> None:
    plan = BACKEND.translate(base, place)
    text = plan.files["rl.toml"].replace("beta = 0.005", "beta = 0.05")
    other = BACKEND.parse(plan.argv, {**plan.files, "rl.toml": text})
    assert other.kl.beta == 0.05
    assert fingerprint(other) != base.id


def test_a_translation_costs_no_more_than_reading_its_file_four_times(
    shipped: list[Cell], place: AttemptPaths
) -> None:
    """1.5 times as much where it was measured; both slow down together on a busy machine."""
    cells = [cell for cell in shipped if cell.settings.kl.reset_reference_every_steps is None]
    cells = list(islice(cycle(cells), 200))

    def seconds(work: Callable[[], Any]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    texts = [BACKEND.translate(cell, place).files["rl.toml"] for cell in cells]
    translating, reading = (
        min(seconds(work) for _ in range(3))
        for work in (
            lambda: [BACKEND.translate(cell, place) for cell in cells],
            lambda: [tomllib.loads(text) for text in texts],
        )
    )
    assert translating < 4 * reading
