"""Translate a cell to Prime-RL 0.8.0's configuration: nested tables of the library's keys.

This release trains on rollouts that are one update old: it generates one batch while it trains on
another. Its group baseline is the mean. A loss with a reward gets no reference log-probabilities.
"""

from backends.prime_rl import config
from backends.prime_rl.config import Table
from backends.prime_rl.launch import SERVER_HOST
from orchestrator.records import AttemptPaths, Cell

PORT, ENGINE_PORT = 8000, 8100
"""The ports of the library's router and of the engine behind it."""


def rl(cell: Cell, place: AttemptPaths) -> Table:
    """Return rl.toml: all programs on one node, or those of the training node of two."""
    settings = cell.settings
    steps = {"interval": cell.cadence.checkpoint_every_steps}
    return {
        "output_dir": str(place.checkpoints_dir),
        "max_steps": settings.num_train_steps,
        "seq_len": config.sequence_tokens(settings),
        "model": {"name": settings.model.path},
        "ckpt": {key: value for key, value in steps.items() if value is not None},
        "weight_broadcast": {"type": "filesystem"},
        "trainer": {
            "model": {"ac": {"freq": 1}},
            "optim": config.optimizer(settings),
            "scheduler": config.schedule(settings),
            "loss": _loss(cell),
            "file_monitor": {"filename": "logs/trainer.jsonl"},
        },
        "orchestrator": _orchestrator(cell),
        **_deployment(cell),
    }


def _loss(cell: Cell) -> Table:
    """Return the table of orch's loss.

    The library's baseline is the mean of the group. For a leave-one-out baseline, scale the
    advantages by n / (n - 1).
    """
    if cell.settings.advantage.estimator != "rloo":
        return config.loss(cell.settings)
    size = cell.settings.rollout.group_size
    return config.loss(cell.settings, advantage_scale=size / (size - 1))


def _orchestrator(cell: Cell) -> Table:
    settings = cell.settings
    source = {
        "name": "train",
        "legacy": {"id": config.ENVIRONMENT_ID, "args": config.environment(settings)},
    }
    table: Table = {
        "batch_size": settings.batch.num_prompts * settings.rollout.group_size,
        "group_size": settings.rollout.group_size,
        "max_off_policy_steps": settings.max_staleness_steps,
        "algo": {"type": "grpo"},
        # its default refuses models it does not know; this one applies their chat template
        "renderer": {"name": "default"},
        # its defaults leave out rollouts without an advantage, and their tokens of the mean
        "pre_batch_filters": [],
        "post_batch_filters": [],
        "file_monitor": {"filename": "../logs/orchestrator.jsonl"},
        "train": {
            "sampling": {
                "temperature": settings.rollout.temperature,
                "max_completion_tokens": settings.rollout.max_response_tokens,
            },
            "source": [source],
        },
    }
    if cell.resources.num_nodes == 2:
        server = f"http://{SERVER_HOST}"
        table["model"] = {
            "client": {
                "base_url": [f"{server}:{PORT}/v1"],
                "admin_base_url": [f"{server}:{ENGINE_PORT}/v1"],
            }
        }
    return table


def _deployment(cell: Cell) -> Table:
    gpus = cell.resources.gpus_per_node
    table: Table = {"type": "single_node", "gpus_per_node": gpus}
    if cell.resources.num_nodes == 2:
        return {"deployment": table | {"num_train_gpus": gpus, "num_infer_gpus": 0}}
    served = gpus // 2
    table |= {"num_train_gpus": gpus - served, "num_infer_gpus": served}
    return {"deployment": table, "inference": config.server(cell, port=PORT, gpus=served)}


def servers(cell: Cell) -> dict[str, Table]:
    """Return inference.toml of the second node, by name; none on one node."""
    if cell.resources.num_nodes == 1:
        return {}
    table = config.server(cell, port=PORT, gpus=cell.resources.gpus_per_node)
    table["backend_port"] = ENGINE_PORT
    table["model"] = {
        "name": cell.settings.model.path,
        "max_model_len": config.sequence_tokens(cell.settings),
    }
    return {"inference.toml": table}
