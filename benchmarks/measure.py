"""CPU seconds, wall seconds and peak memory of a command and all its children."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ORCH = Path(sys.executable).with_name("orch")


class Cost(NamedTuple):
    """The cost of a process that has ended."""

    cpu_seconds: float
    wall_seconds: float
    peak_mib: float
    """Largest single process."""
    output: str


def measure(argv: Sequence[object], cwd: Path | None = None, codes: Sequence[int] = (0,)) -> Cost:
    """Run argv to its end in a process of its own; any other exit code stops the benchmark."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        started = time.perf_counter()
        done = subprocess.run(
            [str(a) for a in argv], cwd=cwd, capture_output=True, text=True, check=False
        )
        wall = time.perf_counter() - started
        use = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = f"{use.ru_utime + use.ru_stime} {wall} {use.ru_maxrss / 1024} {done.returncode}\n"
        with os.fdopen(write, "w") as pipe:
            pipe.write(report + done.stdout + done.stderr)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        head, _, output = pipe.read().partition("\n")
    os.waitpid(child, 0)
    cpu, wall, peak, code = head.split()
    if int(code) not in codes:
        raise SystemExit(f"{' '.join(map(str, argv))} exited {code}:\n{output[-3000:]}")
    return Cost(float(cpu), float(wall), float(peak), output)


def grid_spec(path: Path, cells: int, *, seeds: bool = True) -> Path:
    """Write a spec of so many cells, declared and rehearsed, and return its path.

    The grid is model x kl x learning rate x seed, so `cells` is a multiple of 200. `seeds` False:
    one seed, and so many learning rates (a multiple of 40).
    """
    repeats = max(1, cells // 200) if seeds else 1
    rates = (
        [1e-4, 3e-4, 1e-3, 3e-3, 1e-2] if seeds else [1e-6 * (i + 1) for i in range(cells // 40)]
    )
    path.write_text(f"""
name: bench_{cells}
seeds: [{", ".join(map(str, range(repeats)))}]
studies:
  grid:
    base:
      data: {{name: math, path: some/dataset}}
      advantage: {{estimator: rloo}}
      loss: {{aggregation: token_mean}}
      rollout: {{group_size: 5, max_response_tokens: 1024}}
      batch: {{num_prompts: 256}}
      num_train_steps: 250
      backend: {{name: micro}}
    axes:
      model:
        - {{name: qwen2.5-7b, path: Qwen/Qwen2.5-7B}}
        - {{name: llama-3.1-8b, path: meta-llama/Llama-3.1-8B}}
      kl:
        product: {{estimator: [k1, k3], placement: [reward, loss],
                   beta: [0.01, 0.03, 0.1, 0.3, 1.0]}}
      optimizer.learning_rate: [{", ".join(f"{rate:.7f}" for rate in rates)}]
      max_staleness_steps: [0]
""")
    return path
