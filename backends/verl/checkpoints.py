"""Find verl's checkpoints on disk.

checkpoints/x<M>/latest_checkpointed_iteration.txt   the newest complete one; written last
checkpoints/x<M>/global_step_<N>/actor/              shards, and huggingface/ (config, tokenizer)

With `lora` a shard holds model and adapter, which verl's merger writes apart; orch merges them.

A step of verl is a rollout batch, that is, M train steps. orch puts M into the directory's name.
"""

import re
from pathlib import Path

from orchestrator.library import lora
from orchestrator.library.checkpoints import numbered
from orchestrator.records import Checkpoint

OPTIMIZER = "optim_world_size_"
OF_ADAPTER = "lora_train_meta.json"
"""What both releases write beside the shards of a model with an adapter, and only there."""
LATEST = "latest_checkpointed_iteration.txt"
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, oldest first. verl's tracker names the newest one."""
    checkpoints = []
    for updates, home in numbered(checkpoints_dir, "x"):
        latest = _latest(home)
        for step, path in numbered(home, "global_step_"):
            if step <= latest and _is_whole(path / "actor"):
                weights = path / "actor" / "huggingface" if has_weights(path) else None
                checkpoints.append(Checkpoint(step * updates, weights or path, weights is None))
    return sorted(checkpoints)


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the folder of every checkpoint, complete or not."""
    return sorted(path for path in checkpoints_dir.glob("x*/global_step_*") if path.is_dir())


def spent_states(checkpoints_dir: Path) -> list[Path]:
    """Return the optimizer shards of checkpoints older than the newest, if that is whole.

    verl resumes from the one that its tracker names, and from no other.
    """
    spent: list[Path] = []
    for _, home in numbered(checkpoints_dir, "x"):
        latest = _latest(home)
        newest = home / f"global_step_{latest}" / "actor"
        weights = (path.name for path in newest.glob("model_world_size_*.pt"))
        wanted = {f"optim{name.removeprefix('model')}" for name in weights}
        states = {path.name for path in newest.glob(f"{OPTIMIZER}*") if path.stat().st_size}
        if not _is_whole(newest) or wanted - states:
            continue
        for step, path in numbered(home, "global_step_"):
            spent += sorted((path / "actor").glob(f"{OPTIMIZER}*")) if step < latest else []
    return spent


def export_command(checkpoint: Checkpoint, target: Path) -> tuple[str, ...]:
    """Return the argv of verl's merger, for verl's environment."""
    actor, apart = checkpoint.path / "actor", target.with_name("apart")
    has_adapter = (actor / OF_ADAPTER).exists()
    command: tuple[str, ...] = ("python", "-m", "verl.model_merger", "merge", "--backend", "fsdp")
    command += ("--local_dir", str(actor), "--target_dir", str(apart if has_adapter else target))
    if not has_adapter:
        return command
    return lora.merge_command(
        apart / "lora_adapter",
        checkpoint.path.parents[1],
        target,
        precision="bf16",
        base=apart,
        first=command,
    )


def has_weights(path: Path) -> bool:
    """Return True if verl saved Hugging Face weights (checkpoint.save_contents has hf_model)."""
    return any((path / "actor" / "huggingface").glob("*.safetensors"))


def _latest(home: Path) -> int:
    try:
        text = (home / LATEST).read_text().strip()
    except (OSError, ValueError):
        return -1
    return int(text) if text.isdecimal() else -1


def _is_whole(actor: Path) -> bool:
    """Return True if the config and the shards of every rank exist and no shard is empty.

    verl's rotation (max_actor_ckpt_to_keep) removes the shards and leaves the directory.
    """
    shards = [
        (int(match[1]), int(match[2]))
        for path in actor.glob("model_world_size_*_rank_*.pt")
        if (match := _SHARD.fullmatch(path.name)) and path.stat().st_size
    ]
    size = max((size for size, _ in shards), default=0)
    ranks = {rank for each, rank in shards if each == size}
    return size > 0 and ranks == set(range(size)) and (actor / "huggingface/config.json").is_file()
