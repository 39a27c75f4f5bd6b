"""Every shipped cell, resolved by Prime-RL 0.5.0's own classes as its processes read them: what
became of each field, in the trainer, the orchestrator and both servers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.prime_rl import BACKEND
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Settings
from tests.backends.test_resolved import FOREIGN, NAMES_MODELS, leaves

PLACE = AttemptPaths(Path("/runs/plan"), Path("/runs/attempts/1"), Path("/runs/checkpoints"))
SERVED = {None: "auto", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ADVANTAGES = {"rloo": "leave_one_out", "grpo": "standardised", "reinforce": "plain"}


def wanted(settings: Settings) -> dict[str, object]:
    """The library's key -> what the cell says of it."""
    s, tokens = settings, settings.data.max_prompt_tokens + settings.rollout.max_response_tokens
    group, path = s.rollout.group_size, s.model.path
    sampling, optim = "orchestrator.sampling", "trainer.optim"
    keys: dict[str, object] = {
        **dict.fromkeys(("trainer.model.name", "trainer.tokenizer.name"), path),
        **dict.fromkeys(("orchestrator.model.name", "inference.model.name"), path),
        **dict.fromkeys(("trainer.model.seq_len", "orchestrator.seq_len"), tokens),
        "inference.model.max_model_len": tokens,
        "inference.seed": s.seed,
        "orchestrator.buffer.seed": s.seed,
        f"{sampling}.seed": None,
        f"{sampling}.temperature": s.rollout.temperature,
        f"{sampling}.temp_scheduler": None,
        f"{sampling}.max_tokens": s.rollout.max_response_tokens,
        f"{sampling}.min_tokens": 0,
        f"{sampling}.repetition_penalty": 1.0,
        "orchestrator.batch_size": s.batch.num_prompts * group,
        "orchestrator.rollouts_per_example": group,
        **dict.fromkeys(("trainer.max_steps", "orchestrator.max_steps"), s.num_train_steps),
        "trainer.max_async_level": s.max_staleness_steps,
        "orchestrator.max_async_level": s.max_staleness_steps,
        "orchestrator.max_off_policy_steps": s.max_staleness_steps,
        f"{optim}.type": "adamw",
        f"{optim}.lr": s.optimizer.learning_rate,
        f"{optim}.weight_decay": s.optimizer.weight_decay,
        f"{optim}.betas1": s.optimizer.beta1,
        f"{optim}.betas2": s.optimizer.beta2,
        "trainer.scheduler.type": s.optimizer.schedule,
        "trainer.model.optimization_dtype": "float32",
        "trainer.model.reduce_dtype": "float32",
        "trainer.model.lora": None,
        "inference.model.dtype": SERVED[s.precision.rollout],
        "trainer.loss.type": "custom",
        "trainer.loss.import_path": "orch_prime_rl_hooks.loss",
        "trainer.loss.kwargs.estimator": s.kl.estimator if s.kl.placement else None,
        "trainer.loss.kwargs.placement": s.kl.placement,
        "trainer.loss.kwargs.beta": s.kl.beta if s.kl.placement else None,
        "trainer.loss.kwargs.clip_low": s.loss.clip.low if s.loss.clip else None,
        "trainer.loss.kwargs.clip_high": s.loss.clip.high if s.loss.clip else None,
        "environment.args.path": s.data.path,
        "environment.args.reward": s.data.reward,
        "environment.args.num_prompts": s.data.num_prompts,
    }
    if s.optimizer.max_grad_norm is not None:
        keys[f"{optim}.max_norm"] = s.optimizer.max_grad_norm
    if s.advantage.estimator in ADVANTAGES:
        own = f"orch_prime_rl_hooks.{ADVANTAGES[s.advantage.estimator]}"
        keys["orchestrator.advantage.import_path"] = own
    if s.kl.placement:
        keys |= {
            "orchestrator.teacher_model.model.name": path,
            "teacher_inference.model.name": path,
            "teacher_inference.model.max_model_len": tokens,
            "teacher_inference.model.dtype": SERVED[s.precision.rollout],
        }
    return keys


def made(plan: LaunchPlan, answers: Mapping[str, Any]) -> dict[str, Any]:
    """What the library resolved: rl.toml's tables, and the servers' files of a second node."""
    resolved = dict(answers[plan.files["rl.toml"]])
    for name, file in (("inference", "inference.toml"), ("teacher_inference", "reference.toml")):
        if file in plan.files:
            resolved[name] = answers[plan.files[file]]
    [environment] = resolved["orchestrator"]["env"]
    return dict(leaves({**resolved, "environment": environment}))


def test_every_shipped_cell_is_what_its_processes_read(prime_rl: Any, shipped: list[Cell]) -> None:
    plans: list[tuple[Cell, LaunchPlan]] = []
    for cell in shipped:
        try:
            plans.append((cell, BACKEND.translate(cell, PLACE)))
        except UnsupportedSetting:
            continue
    assert len(plans) > 100
    kinds = {"rl.toml": "rl", "inference.toml": "inference", "reference.toml": "inference"}
    texts = sorted(
        {
            (kinds[name], text)
            for _, plan in plans
            for name, text in plan.files.items()
            if name in kinds
        }
    )
    answers = {}
    for (_, text), answer in zip(texts, prime_rl(texts), strict=True):
        assert answer["ok"], f"{answer['error']}\n{text}"
        answers[text] = answer["resolved"]
    for cell, plan in plans:
        resolved = made(plan, answers)
        differs = {
            key: (resolved.get(key), value)
            for key, value in wanted(cell.settings).items()
            if resolved.get(key) != value
        }
        assert not differs, f"{cell.slug}: {differs}"
        others = {
            key: value
            for key, value in resolved.items()
            if key.rpartition(".")[2] in NAMES_MODELS
            and any(word in str(value).lower() for word in FOREIGN)
            and value != cell.settings.model.path
        }
        assert not others, f"{cell.slug}: {others}"


def test_a_key_that_is_left_out_or_wrong_is_found(prime_rl: Any, base: Cell) -> None:
    """The comparison fails where a launch does not say what its cell does."""
    plan = BACKEND.translate(base.model_copy(update={"resources": base.resources}), PLACE)
    text = plan.files["rl.toml"]
    name = f'[trainer.tokenizer]\nname = "{base.settings.model.path}"\n'
    assert name in text
    for old, new, key in (
        (name, "", "trainer.tokenizer.name"),
        ("seed = 0\n", "seed = 1\n", "orchestrator.buffer.seed"),
        ("beta = 0.005", "beta = 0.05", "trainer.loss.kwargs.beta"),
    ):
        broken = text.replace(old, new, 1)
        assert broken != text
        [answer] = prime_rl([("rl", broken)])
        resolved = dict(leaves(answer["resolved"]))
        assert resolved.get(key) != wanted(base.settings)[key], key
