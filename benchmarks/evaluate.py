"""Evaluating the whole comedy grid at micro scale: 61 checkpoints, 4 tasks, 128 items, 4 repeats.

The peer is lm-evaluation-harness alone, in the same run: `simple_evaluate` of the same task files
with the same batch size, one thread, its task index and its imports paid once.
    python benchmarks/evaluate.py
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.evaluate import evaluate
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, Checkpoint, EvalTask, EvaluationSpec, Record
from orchestrator.rundir import RunFolder
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Rollout,
    Settings,
)

CHECKPOINTS = 61
BAR_CPU_SECONDS = 0.5
"""For each of them, on top of one import of the harness."""
POLICIES = ("elder", "fir", "hazel")
SPEC = EvaluationSpec(tasks=(EvalTask(name="math500", domain="in"),))
"""A rehearsal scores the embedded tasks in the place of any that are declared."""

PLAIN = """
import resource, sys
def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in
               (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
tasks, *paths = sys.argv[1:]
manager = TaskManager(include_path=tasks)
names = ["micro_sort", "micro_reverse", "micro_copy", "micro_increment"]
costs = [cpu()]
for path in paths:
    simple_evaluate(model="hf", model_args={"pretrained": path, "add_bos_token": True},
                    tasks=names, limit=128, batch_size=512, device="cpu", task_manager=manager)
    costs.append(cpu())
print(*costs)
"""


class Costs(NamedTuple):
    """CPU seconds, of orch and of the harness alone."""

    first: float
    """The import and one checkpoint."""
    each: float
    """Every further checkpoint."""
    again: float
    """All checkpoints, when all are scored."""
    harness_import: float
    harness_first: float
    harness_each: float
    wall: float
    """Seconds by the clock of all checkpoints but one."""


def measured() -> Costs:
    """Score checkpoints by orch, then by the harness alone."""
    backend = plugins.load("micro")
    assert backend.tasks_dir is not None
    policies = [backend.tasks_dir.parent / "policies" / name for name in POLICIES]
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder.of(name, "bench", "micro")
        folder.open()
        records = [trained(folder, seed, policies[seed % 3]) for seed in range(CHECKPOINTS)]
        one, _ = cost_of(records[:1], folder)
        rest, wall = cost_of(records, folder)
        again, _ = cost_of(records, folder)
    # the import and 60 checkpoints, less the import and one
    each = (rest - one) / (CHECKPOINTS - 2)
    start, *costs = plain(backend.tasks_dir, [str(path) for path in policies])
    later = (costs[-1] - costs[0]) / (len(costs) - 1)
    return Costs(one, each, again, start, costs[0] - start, later, wall)


def main() -> int:
    costs = measured()
    print(f"import and the first checkpoint  {costs.first:7.2f} CPU s")
    print(
        f"{CHECKPOINTS} checkpoints, without import  {costs.each * CHECKPOINTS:7.2f} CPU s   "
        f"{costs.each:.3f} each, bar {BAR_CPU_SECONDS}   "
        f"({CHECKPOINTS - 1} took {costs.wall:.1f} s of wall)"
    )
    print(f"{CHECKPOINTS} checkpoints, once more       {costs.again:7.2f} CPU s")
    print(f"simple_evaluate, import          {costs.harness_import:7.2f} CPU s")
    print(f"simple_evaluate, first           {costs.harness_first:7.2f} CPU s")
    ratio = costs.harness_each / costs.each
    print(
        f"simple_evaluate, each next       {costs.harness_each:7.3f} CPU s   {ratio:.1f} x orch's"
    )
    return 0 if costs.each <= BAR_CPU_SECONDS else 1


def trained(folder: RunFolder, seed: int, policy: Path) -> Record:
    """Return a cell that has succeeded, with this policy as its last checkpoint."""
    settings = Settings(
        model=Model(name="elder", path="micro:elder"),
        data=Data(name="sort", path="micro:sort"),
        advantage=Advantage(estimator="rloo"),
        loss=Loss(),
        kl=Kl(estimator="none"),
        rollout=Rollout(group_size=5, max_response_tokens=7),
        batch=Batch(num_prompts=16),
        optimizer=Optimizer(learning_rate=1e-3),
        num_train_steps=100,
        backend=BackendRef(name="micro"),
        seed=seed,
    )
    cell = Cell(
        id=fingerprint(settings), slug=f"s{seed}", studies=("bench",), axes={}, settings=settings
    )
    folder.cell(cell).make(cell)
    path = folder.cell(cell).checkpoints / "step-100"
    shutil.copytree(policy, path)
    return Record(cell, "succeeded", checkpoints=(Checkpoint(100, path),))


def cost_of(records: list[Record], folder: RunFolder) -> tuple[float, float]:
    """CPU and wall seconds of evaluating what is not scored yet."""
    before, started = cpu_seconds(), time.perf_counter()
    scores = evaluate(records, SPEC, folder)
    assert len(scores) >= len(records), "nothing was scored, so nothing is measured"
    return cpu_seconds() - before, time.perf_counter() - started


def cpu_seconds() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(w)[:2]) for w in who)


def plain(tasks: Path, policies: list[str]) -> list[float]:
    """CPU seconds of the harness alone: after its import, then after each policy."""
    quiet = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tasks), *policies, *policies],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.strip().split("\n")[-1].split()]


if __name__ == "__main__":
    sys.exit(main())
