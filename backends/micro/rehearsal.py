"""Scale a declared cell to the embedded trainer, which trains a tiny policy with its settings.

Estimator, placement, advantage, loss, clip, group size, minibatches, staleness, temperature, seed
and, on policy, beta stay, with the meaning of the declared library (its dialect). A correction and
the format of the rollout engine stay too. Other formats do not: the embedded trainer has fp32.
The rules below scale down the settings of size. A rehearsed cell takes seconds, and its policy
learns.
"""

from math import ceil

from backends.micro.shipped import PREFIX, manifest, names, policy_of, skill_of
from backends.micro.skills import PROMPT_TOKENS, SKILLS, Skill
from backends.micro.version import version_for
from orchestrator.identity import fingerprint
from orchestrator.kl.library_semantics import PLAIN, Dialect
from orchestrator.records import Cell, EvalTask
from orchestrator.settings import (
    BackendRef,
    Batch,
    BetaController,
    Cadence,
    Data,
    EngineFormat,
    Model,
    Precision,
    ReferencePolicy,
    Resources,
    Settings,
)

ROLLOUTS_PER_UPDATE = 80
"""A minibatch has about this many rollouts, whatever the group size ..."""
PROMPTS, MOST_ROLLOUTS = 16, 320
"""... and this many prompts, if it then has no more rollouts than that: of few prompts the reward
is so noisy that no curve can tell whether it fell."""
LEARNING_RATE_FACTOR = 1200.0
"""1e-6 for 7B parameters becomes 1.2e-3 for 50 thousand."""
LARGEST_RATE = 1.2e-3
"""The largest of six at which 95 % of the runs without a KL train stably: docs/decisions.md."""
ASYNC_BETA_FACTOR = 10.0
"""A response of seven tokens ends about 2 nats from the reference policy, one of 4,096 tens of nats
(assumed). So an asynchronous β of 0.005, which could move no reward here, becomes 0.05."""
UPDATES_PER_ROLLOUT_BATCH = 0.4
"""250 declared rollout batches become 100 train steps, however many minibatches a batch has."""
MAX_RESPONSE_TOKENS = 7
"""Six tokens of an answer and one more, so that a response can be too long."""
MAX_EVALUATIONS = 4
"""In-loop evaluations of a cell: with ten they are 41 % of its time."""

POLICY_OF_FAMILY = {"qwen2.5": "elder", "llama": "fir", "qwen3": "hazel"}
DEFAULT_POLICY = "elder"
EVAL_REPEATS, EVAL_ITEMS = 4, 128


def rehearse(cell: Cell, dialect: Dialect = PLAIN) -> Cell:
    """Return the embedded cell for a declared cell, in the dialect of its library.

    Return an embedded cell unchanged.
    """
    declared = cell.settings
    embedded = policy_of(declared.model.path) and skill_of(declared.data.path)
    if declared.backend.name == "micro" and embedded:
        return cell
    settings = scaled(declared, dialect)
    ratio = settings.num_train_steps / declared.num_train_steps
    every = _times(cell.cadence.evaluate_every_steps, ratio)
    return cell.model_copy(
        update={
            "id": fingerprint(settings),
            "settings": settings,
            "declared": declared,
            "resources": Resources(),
            "cadence": Cadence(
                checkpoint_every_steps=_times(cell.cadence.checkpoint_every_steps, ratio),
                evaluate_every_steps=max(
                    every or 1, ceil(settings.num_train_steps / MAX_EVALUATIONS)
                ),
            ),
        }
    )


def scaled(declared: Settings, dialect: Dialect = PLAIN) -> Settings:
    """Return the settings of the rehearsal."""
    minibatches, group = declared.batch.num_minibatches, declared.rollout.group_size
    steps = _train_steps(declared)
    ratio = steps / declared.num_train_steps
    shorter = MAX_RESPONSE_TOKENS / declared.rollout.max_response_tokens
    prompts = max(1, ROLLOUTS_PER_UPDATE // group, min(PROMPTS, MOST_ROLLOUTS // group))
    policy, skill = policy_for(declared.model.name), skill_for(declared.data)
    optimizer, loss, kl = declared.optimizer, declared.loss, declared.kl
    small = declared.model_copy(
        update={
            "model": Model(name=policy, path=PREFIX + policy, chat_template="none"),
            "data": Data(
                name=skill, path=PREFIX + skill, reward="exact", max_prompt_tokens=PROMPT_TOKENS
            ),
            "loss": loss.but(constant_tokens=_times(loss.constant_tokens, shorter)),
            "kl": kl.but(
                beta=kl.beta * (ASYNC_BETA_FACTOR if declared.max_staleness_steps else 1.0),
                reset_reference_every_steps=_times(kl.reset_reference_every_steps, ratio),
                reference=_reference(declared, ratio, policy, skill),
                controller=_controller(declared, prompts * group * steps),
            ),
            "rollout": declared.rollout.but(max_response_tokens=MAX_RESPONSE_TOKENS),
            "batch": Batch(num_prompts=prompts * minibatches, num_minibatches=minibatches),
            "optimizer": optimizer.but(
                # 12 digits: the product of a decimal is that decimal again.
                learning_rate=min(
                    LARGEST_RATE, float(f"{optimizer.learning_rate * LEARNING_RATE_FACTOR:.12g}")
                ),
                num_warmup_steps=round(optimizer.num_warmup_steps * ratio),
            ),
            "num_train_steps": steps,
            "precision": Precision(rollout=_engine_format(declared, dialect)),
            "lora": None,  # the small policy trains whole
        }
    )
    backend = BackendRef(name="micro", version=version_for(dialect, small))
    return small.model_copy(update={"backend": backend})


def _reference(
    declared: Settings, ratio: float, policy: str, skill: Skill
) -> ReferencePolicy | None:
    """Return the reference of the rehearsal.

    A teacher becomes the shipped policy that is best at the skill, except the rehearsed policy."""
    reference = declared.kl.reference
    if reference is None or reference.kind == "sampler":
        return reference
    if reference.kind == "ema":
        return reference.but(every_steps=_times(reference.every_steps, ratio))
    others = [name for name in names() if name != policy]
    return reference.but(path=PREFIX + max(others, key=lambda name: manifest(name).accuracy[skill]))


def _controller(declared: Settings, responses: int) -> BetaController | None:
    """Return the controller, with a horizon that is the same share of a run of `responses`."""
    controller, batch = declared.kl.controller, declared.batch
    if controller is None:
        return None
    batches = declared.num_train_steps / batch.num_minibatches
    ratio = responses / (batches * batch.num_prompts * declared.rollout.group_size)
    return controller.but(horizon=_times(controller.horizon, ratio))


def _engine_format(declared: Settings, dialect: Dialect) -> EngineFormat | None:
    """Return the format in which the rehearsal samples, or None if the policy itself samples.

    A correction needs a mismatch of the engine, so a cell without a format has the library's.
    """
    declared_format, own = declared.precision.rollout, dialect.precision[1]
    if declared_format is not None or declared.loss.correction is None or own == "fp32":
        return declared_format
    return "bf16" if own == "model" else own


def rehearse_tasks(cell: Cell) -> tuple[EvalTask, ...]:
    """Return the evaluation tasks of the four embedded skills; the trained skill is in domain."""
    skill = skill_of(cell.settings.data.path) or skill_for(cell.settings.data)
    return tuple(
        EvalTask(
            name=f"micro_{each}",
            domain="in" if each == skill else "out",
            repeats=EVAL_REPEATS,
            max_items=EVAL_ITEMS,
            chat_template="none",
        )
        for each in SKILLS
    )


def policy_for(model: str) -> str:
    """Return the base policy for a model; the default policy for a model of an unknown family."""
    return next(
        (policy for family, policy in POLICY_OF_FAMILY.items() if family in model.lower()),
        DEFAULT_POLICY,
    )


def skill_for(data: Data) -> Skill:
    """Return the skill for a data set: `reverse` for Countdown, `sort` for all others."""
    return "reverse" if data.reward == "countdown" or "countdown" in data.name else "sort"


def _train_steps(declared: Settings) -> int:
    """Return the number of train steps: a whole number of rollout batches, at least one."""
    minibatches = declared.batch.num_minibatches
    batches = declared.num_train_steps // minibatches
    wanted = batches * UPDATES_PER_ROLLOUT_BATCH
    return minibatches * max(1, round(wanted / minibatches))


def _times(count: int | None, ratio: float) -> int | None:
    return None if count is None else max(1, round(count * ratio))
