"""Stands for verl's environment where there is no GPU: `python` and, beside it, `ray`.

What it trains is real: orch's embedded policy, by RL, with the KL term of the cell. What it leaves
is verl's: its file log, sharded checkpoints that only `verl.model_merger` can turn into a Hugging
Face directory, and its tracker file. Its packages can be imported and are empty. Ray is a sleep;
nodes/test_ray.py runs the real one.
"""

import io
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from orchestrator.environments.make import QUESTION

LOGGED = {"train/reward_mean": "critic/score/mean", "train/entropy": "actor/entropy"}


def environment(folder: Path) -> Path:
    """Makes a virtual environment of it."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    packages = folder / "lib" / "python3" / "site-packages"
    for name in ("verl", "vllm", "flash_attn", "math_verify"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    (packages / "verl-0.9.1.dist-info").mkdir()
    (packages / "verl-0.9.1.dist-info" / "METADATA").write_text("Name: verl\nVersion: 0.9.1\n")
    for name, does in (("python", f"'{sys.executable}' '{__file__}' \"$@\""), ("ray", "sleep 900")):
        where = 'export STANDIN_PACKAGES="${0%/*}/../lib/python3/site-packages"'
        (programs / name).write_text(f"#!/bin/sh\n{where}\nexec {does}\n")
        (programs / name).chmod(0o755)
    return folder


def train(told: dict[str, str]) -> None:
    from backends.micro.train import run
    from orchestrator.records import AttemptPaths, Cell
    from orchestrator.spec.rehearse import rehearse

    declared = Cell.model_validate_json(Path("../cell.json").read_text())
    [cell] = rehearse([declared])
    steps = int(told["trainer.total_training_steps"])
    settings = cell.settings.model_copy(update={"num_train_steps": steps})
    log = Path(os.environ["VERL_FILE_LOGGER_PATH"])
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        run(
            cell.model_copy(update={"settings": settings}),
            AttemptPaths(own, own, own / "checkpoints"),
        )
        for line in (own / "metrics.jsonl").read_text().splitlines():
            point = json.loads(line)
            held = point["values"]
            data = {theirs: held[ours] for ours, theirs in LOGGED.items() if ours in held}
            if not data:
                continue
            data |= {"training/global_step": point["step"], "timing_s/step": 0.1}
            with log.open("a") as file:
                file.write(json.dumps({"step": point["step"], "data": data}) + "\n")
        save(
            own / "checkpoints" / f"step-{steps}",
            Path(told["trainer.default_local_dir"]),
            steps,
            int(told["trainer.n_gpus_per_node"]) * int(told["trainer.nnodes"]),
        )


def save(policy: Path, home: Path, step: int, ranks: int) -> None:
    """A policy as shards: a zip of its files, cut in `ranks`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(policy.iterdir()):
            archive.write(path, path.name)
    content, actor = packed.getvalue(), home / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    for rank in range(ranks):
        part = content[rank * len(content) // ranks : (rank + 1) * len(content) // ranks]
        (actor / f"model_world_size_{ranks}_rank_{rank}.pt").write_bytes(part)
    (actor / "huggingface" / "config.json").write_text("{}")
    (home / "latest_checkpointed_iteration.txt").write_text(str(step))


def merge(given: dict[str, str]) -> None:
    """Shards to a Hugging Face directory, as verl's merger does."""
    shards = sorted(
        Path(given["--local_dir"]).glob("model_world_size_*_rank_*.pt"),
        key=lambda path: int(path.stem.rpartition("_")[2]),
    )
    content = b"".join(path.read_bytes() for path in shards)
    target = Path(given["--target_dir"])
    target.mkdir(parents=True)
    zipfile.ZipFile(io.BytesIO(content)).extractall(target)


def main() -> None:
    match sys.argv[1:]:
        case ["-c", code, *modules] if code == QUESTION:  # what it holds, asked by orch doctor
            sys.path.insert(0, os.environ["STANDIN_PACKAGES"])
            sys.argv = ["-c", *modules]
            exec(code, {})  # noqa: S102  (orch's own program)
        case ["-c", _, _, gpus, nodes, _]:  # whether Ray counts so many
            sys.stdout.write(f"{gpus} {nodes}\n")
        case ["-m", "verl.trainer.main_ppo", *overrides]:
            pairs = (word.lstrip("+").partition("=") for word in overrides)
            train({key: value.strip('"') for key, _, value in pairs})
        case ["-m", "verl.model_merger", "merge", *options]:
            merge(dict(zip(options[::2], options[1::2], strict=True)))
        case other:
            sys.exit(f"No module named {other}")


if __name__ == "__main__":
    main()
