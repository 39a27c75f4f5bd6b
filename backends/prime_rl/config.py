"""Translate a cell to Prime-RL 0.5.0's configuration: nested tables of the library's keys."""

from backends.prime_rl.launch import SERVER_HOST
from backends.prime_rl.manifest import ADVANTAGES, HOOKS, NO_CLIP_NORM, schedule_type
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Settings

Table = dict[str, object]

ENVIRONMENT, LAUNCHER = "orch_prime_rl_environment", "orch_prime_rl_launch"
ENVIRONMENT_ID = ENVIRONMENT.replace("_", "-")


def rl(cell: Cell, place: AttemptPaths) -> Table:
    """Return rl.toml: all programs on one node, or those of the training node of two."""
    settings = cell.settings
    steps = {"interval": cell.cadence.checkpoint_every_steps}
    return {
        "output_dir": str(place.checkpoints_dir),
        "max_steps": settings.num_train_steps,
        "max_async_level": settings.max_staleness_steps,
        "seq_len": sequence_tokens(settings),
        "model": {"name": settings.model.path},
        "ckpt": {key: value for key, value in steps.items() if value is not None},
        "weight_broadcast": {"type": "filesystem"},
        "trainer": {
            "model": {"ac": {"freq": 1}},
            # left out it is that of its default model: the name is copied before ours is set
            "tokenizer": {"name": settings.model.path},
            "optim": optimizer(settings),
            "scheduler": schedule(settings),
            "loss": loss(settings),
        },
        "orchestrator": _orchestrator(settings) | _remote(cell),
        **_deployment(cell),
    }


def sequence_tokens(settings: Settings) -> int:
    return settings.data.max_prompt_tokens + settings.rollout.max_response_tokens


def optimizer(settings: Settings) -> Table:
    """Return the optimizer's table. It is the same in every release."""
    chosen = settings.optimizer
    norm = NO_CLIP_NORM if chosen.max_grad_norm is None else chosen.max_grad_norm
    return {
        "type": "adamw",
        "lr": chosen.learning_rate,
        "weight_decay": chosen.weight_decay,
        "betas1": chosen.beta1,
        "betas2": chosen.beta2,
        "max_norm": norm,
    }


def schedule(settings: Settings) -> Table:
    """Return the schedule's table.

    The library's `linear` is warm-up, plateau, decay. Without decay it is orch's `constant` with a
    warm-up.
    """
    kind, warmup = schedule_type(settings), settings.optimizer.num_warmup_steps
    if kind == "cosine":
        return {"type": "cosine", "warmup_steps": warmup, "min_lr": 0.0}
    if kind == "constant":
        return {"type": "constant"}
    decays = settings.optimizer.schedule == "linear"
    decay = settings.num_train_steps - warmup if decays else 0
    return {"type": "linear", "warmup_steps": warmup, "decay_steps": decay, "min_lr": 0.0}


def loss(settings: Settings, **more: object) -> Table:
    """Return the loss table, which always names orch's loss.

    The library's default loss clips no ratio and pulls towards the rollout policy (kl_tau 1e-3).
    """
    kwargs: Table = {}
    if settings.kl.placement is not None:
        kwargs = {
            "estimator": settings.kl.estimator,
            "placement": settings.kl.placement,
            "beta": settings.kl.beta,
        }
    if (clip := settings.loss.clip) is not None:
        kwargs |= {"clip_low": clip.low, "clip_high": clip.high}
        if clip.dual is not None:
            kwargs["clip_dual"] = clip.dual
    return {"type": "custom", "import_path": f"{HOOKS}.loss", "kwargs": kwargs | more}


def _orchestrator(settings: Settings) -> Table:
    advantage = ADVANTAGES[settings.advantage.estimator]
    hook = {"type": "custom", "import_path": f"{HOOKS}.{advantage}"}
    return {
        "batch_size": settings.batch.num_prompts * settings.rollout.group_size,
        "rollouts_per_example": settings.rollout.group_size,
        "max_off_policy_steps": settings.max_staleness_steps,
        "strict_async_level": False,
        "sampling": {
            "temperature": settings.rollout.temperature,
            "max_tokens": settings.rollout.max_response_tokens,
        },
        "buffer": {"seed": settings.seed},
        "advantage": hook if advantage else {"type": "default"},
        "env": [{"id": ENVIRONMENT_ID, "name": "train", "args": environment(settings)}],
    }


def environment(settings: Settings) -> Table:
    """Return the arguments of orch's environment."""
    data = settings.data
    arguments: Table = {
        "path": data.path,
        "split": data.split,
        "reward": data.reward,
        "instruction": data.instruction,
    }
    if data.num_prompts is not None:
        arguments["num_prompts"] = data.num_prompts
    return arguments


def _deployment(cell: Cell) -> Table:
    """Return the number of GPUs for each program.

    One GPU is left for the reference policy even without a KL, so that staleness is comparable.
    """
    gpus = cell.resources.gpus_per_node
    split: Table = {"type": "single_node", "gpus_per_node": gpus}
    if cell.resources.num_nodes == 2:
        return {"deployment": split | {"num_train_gpus": gpus, "num_infer_gpus": 0}}
    served = (gpus - 1) // 2
    split |= {"num_train_gpus": gpus - 1 - served, "num_infer_gpus": served}
    if cell.settings.kl.estimator != "none":
        split["num_teacher_gpus"] = 1
    return {"deployment": split, "inference": server(cell, port=8000, gpus=served)}


def _remote(cell: Cell) -> Table:
    """Return the addresses of the second node's servers; an empty table on one node."""
    if cell.resources.num_nodes == 1:
        return {}
    remote: Table = {
        "client": {
            "base_url": [f"http://{SERVER_HOST}:8000/v1"],
            "dp_rank_count": cell.resources.gpus_per_node - 1,
        }
    }
    if cell.settings.kl.estimator != "none":
        remote["teacher_model"] = {
            "model": {"name": cell.settings.model.path},
            "client": {"base_url": [f"http://{SERVER_HOST}:8001/v1"]},
        }
    return remote


def servers(cell: Cell) -> dict[str, Table]:
    """Return inference.toml and reference.toml of the second node, by name; none on one node."""
    if cell.resources.num_nodes == 1:
        return {}
    name = {"name": cell.settings.model.path}
    found = {"inference.toml": server(cell, port=8000, gpus=cell.resources.gpus_per_node - 1)}
    if cell.settings.kl.estimator != "none":
        found["reference.toml"] = server(cell, port=8001, gpus=1)
    for each in found.values():
        each["model"] = name | {"max_model_len": sequence_tokens(cell.settings)}
    return found


def server(cell: Cell, *, port: int, gpus: int) -> Table:
    return {
        "seed": cell.settings.seed,
        "server": {"port": port},
        "parallel": {"dp": gpus},
        "model": {"max_model_len": sequence_tokens(cell.settings)},
        "weight_broadcast": {"type": "filesystem"},
    }
