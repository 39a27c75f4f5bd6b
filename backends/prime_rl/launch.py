"""Starts one attempt of Prime-RL in an output directory that earlier attempts may have used.

This file is copied beside each plan and runs in Prime-RL's own environment: standard library only.
Usage: python launch.py ATTEMPT_DIR rl @ rl.toml

Prime-RL resumes at the newest step of each process, which differ where one ran ahead; it takes old
broadcasts for new ones; and it empties its logs. So, before it starts: the newest step that both
processes saved is chosen, what is later than that is removed, and logs are kept in the attempt.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

SERVER_HOST = "orch-server-node"
"""Stands in the files for the host of the second node, known only when the job runs."""


def prepare(output_dir: Path, attempt_dir: Path) -> list[str]:
    """Remove what earlier attempts left half written; return the arguments that resume, if any step
    can.
    """
    logs = output_dir / "logs"
    output_dir.mkdir(parents=True, exist_ok=True)
    (attempt_dir / "logs").mkdir(parents=True, exist_ok=True)
    if logs.is_symlink():
        logs.unlink()
    if not logs.exists():
        logs.symlink_to(attempt_dir / "logs", target_is_directory=True)
    run = output_dir / "run_default"
    broadcasts, saved = run / "broadcasts", run / "checkpoints"
    stable = {n for n in _steps(broadcasts) if (broadcasts / f"step_{n}" / "STABLE").exists()}
    common = _trained(output_dir / "checkpoints") & stable & _generated(saved)
    last = max(common, default=0)
    for folder in (output_dir / "checkpoints", output_dir / "weights", broadcasts, saved):
        for step in _steps(folder):
            if step > last:
                shutil.rmtree(folder / f"step_{step}")
    # control/: the trainer would take the step to begin at from the attempt before, and wait for
    # ever for its batch, wherever it looks before the orchestrator has written its own
    for stale in (output_dir / "rollouts", run / "rollouts", run / "control"):
        shutil.rmtree(stale, ignore_errors=True)
    return ["--ckpt.resume-step", str(last)] if common else []


def _steps(folder: Path) -> set[int]:
    names = (path.name.removeprefix("step_") for path in folder.glob("step_*"))
    return {int(name) for name in names if name.isdecimal()}


def _trained(folder: Path) -> set[int]:
    """Return the steps of the trainer's whole states.

    torch writes `.metadata` last, by a rename. Prime-RL marks these states STABLE only where it
    trains several runs at once.
    """
    return {step for step in _steps(folder) if (folder / f"step_{step}/trainer/.metadata").exists()}


def _generated(folder: Path) -> set[int]:
    """Return the steps of the orchestrator's whole states.

    0.5.0 writes its buffer last, line by line; 0.8.0 has none.
    """
    whole = set()
    for step in _steps(folder):
        state = folder / f"step_{step}" / "orchestrator"
        last = state / "buffer" / "rollout_buffer.jsonl"
        buffered = last.exists() or not last.parent.exists()
        torn = last.exists() and not last.read_bytes().endswith(b"\n") and last.stat().st_size
        if (state / "progress.pt").exists() and buffered and not torn:
            whole.add(step)
    return whole


def with_host(config: Path, attempt_dir: Path) -> Path:
    """Return the configuration with the second node's name filled in.

    A configuration that needs one node is returned as it is. Stop the program if a second node is
    needed and ORCH_SERVER_HOST does not name it.
    """
    text = config.read_text(encoding="utf-8")
    if SERVER_HOST not in text:
        return config
    host = os.environ.get("ORCH_SERVER_HOST")
    if not host:
        raise SystemExit(
            f"{config.name} needs two nodes: set ORCH_SERVER_HOST to the name of the second, and "
            "run the same command there with ORCH_NODE_RANK=1"
        )
    filled = attempt_dir / config.name
    filled.write_text(text.replace(SERVER_HOST, host), encoding="utf-8")
    return filled


def serve(plan_dir: Path) -> int:
    """Run the servers of the second node: the rollout policy's, and the reference policy's on its
    last GPU.

    Return as soon as one of them ends, with its exit code.
    """
    running, first = [], 0
    for name in ("inference.toml", "reference.toml"):
        config = plan_dir / name
        if not config.exists():
            continue
        count = tomllib.loads(config.read_text(encoding="utf-8"))["parallel"]["dp"]
        gpus = ",".join(str(gpu) for gpu in range(first, first + count))
        first += count
        command = ["inference", "@", str(config)]
        running.append(subprocess.Popen(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": gpus}))
    try:
        while all(server.poll() is None for server in running):
            # This waits a second, or less if the first server ends.
            try:
                running[0].wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
    finally:
        for server in running:
            server.terminate()
    return next((server.returncode for server in running if server.returncode), 0)


def main(arguments: Sequence[str]) -> NoReturn:
    """Becomes `rl @ FILE`, or serves where this is the second node."""
    attempt_dir, (program, at, file) = Path(arguments[0]), arguments[1:]
    config = Path(file)
    paths = [str(config.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if os.environ.get("ORCH_NODE_RANK", "0") != "0":
        sys.exit(serve(config.parent))
    output_dir = Path(tomllib.loads(config.read_text(encoding="utf-8"))["output_dir"])
    resume = prepare(output_dir, attempt_dir)
    os.execvp(program, [program, at, str(with_host(config, attempt_dir)), *resume])  # noqa: S606  (an argv, no shell)


if __name__ == "__main__":
    main(sys.argv[1:])
