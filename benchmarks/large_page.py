"""The page of 10,000 finished cells: its size, its cost, and the time until a reader sees a figure.

Ten curves of 50 points and four scored tasks a cell, in five studies of 200 configurations and ten
seeds. `orch report` writes the page from disk; a headless Chromium opens the file. Bar: the first
figure is drawn 4 s after the page was asked for.
    python benchmarks/large_page.py [--cells N] [--keep FOLDER]
"""

import argparse
import json
import math
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import ORCH, axes_of_a_grid, measure
from report import WIDTHS, is_there, opened

from orchestrator.evaluate.scores import Result, ScoreKey
from orchestrator.evaluate.survey import tasks_of
from orchestrator.records import Cell, EvaluationSpec, ExitRecord, Outcome, Sampling, Score
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import open_experiment

CELLS, POINTS = 10_000, 50
STUDIES = ("rloo", "grpo", "dr_grpo", "reinforce", "sequence_mean")
"""Four estimators of advantages; the last study has rloo and another divisor of the loss."""
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
A_SEED = len(STUDIES) * len(RATES) * 2 * 20
"""Configurations, and so cells of a seed."""
METRICS = (
    "train/reward_mean",
    "train/kl_reference",
    "train/entropy",
    "train/grad_norm",
    "train/beta_effective",
    "rollout/response_tokens",
    "eval/accuracy_in_domain",
    "eval/accuracy_out_of_domain",
    "eval/kl_reverse",
    "eval/kl_forward",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        folder.mkdir(exist_ok=True)
        spec = folder / f"large_{given.cells}.yaml"
        if not spec.exists():
            started = time.process_time()
            finished(spec, given.cells)
            print(f"{given.cells} cells on disk after {time.process_time() - started:.0f} CPU s")
        for _ in range(2):  # the first call keeps the curves as columns
            cost = measure([ORCH, "report", spec, "site=local", "--no-figures"], cwd=folder)
        page = next(folder.glob("runs/*/report/index.html"))
        print(
            f"orch report --no-figures: {cost.cpu_seconds:.1f} CPU s, {cost.peak_mib:.0f} MiB; "
            f"{sum(f.stat().st_size for f in page.parent.iterdir()) / 1e6:.1f} MB, "
            f"of which {page.name} {page.stat().st_size / 1e6:.1f}"
        )
        for width in WIDTHS if is_there() else ():
            print(f"  {width} px: {opened(page, width)}")


def finished(spec: Path, cells: int) -> None:
    """Write a spec of so many cells, and all that training and evaluation leave of them."""
    spec.write_text(_spec(spec.stem, max(1, cells // A_SEED)))
    before = Path.cwd()
    os.chdir(spec.parent)
    try:
        experiment = open_experiment(spec, ["site=local"])
    finally:
        os.chdir(before)
    assert len(experiment.cells) == max(cells, A_SEED), len(experiment.cells)
    experiment.folder.open()
    experiment.folder.spec.write_text(experiment.spec.model_dump_json())
    rng = random.Random(0)  # noqa: S311  (noise for curves)
    for cell in experiment.cells:
        _finish(cell, experiment.spec.evaluation, experiment.folder, rng)


def _spec(name: str, seeds: int) -> str:
    studies = "".join(
        f"""
  {study}:
    base:
      advantage: {{estimator: {"rloo" if study == "sequence_mean" else study}}}
      loss: {{aggregation: {"sequence_mean" if study == "sequence_mean" else "token_mean"}}}
    axes:
{axes_of_a_grid(RATES)}"""
        for study in STUDIES
    )
    return f"""
name: {name}
question: Does the page of ten thousand runs open at once?
seeds: [{", ".join(map(str, range(seeds)))}]
base:
  data: {{name: math, path: some/dataset}}
  rollout: {{group_size: 5, max_response_tokens: 1024}}
  batch: {{num_prompts: 256}}
  num_train_steps: 250
  backend: {{name: micro}}
studies:{studies}
claims:
  reward_wins: eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k1.loss]
  same_out: eval/out_of_domain/mean[kl=k1.reward] ~ eval/out_of_domain/mean[kl=k3.reward] +- 0.02
evaluation:
  tasks:
    - {{name: math500, domain: in, repeats: 4}}
    - {{name: math2, domain: in, repeats: 4}}
    - {{name: mmlu_college_physics, domain: out, repeats: 4}}
    - {{name: mmlu_college_biology, domain: out, repeats: 4}}
"""


def _finish(cell: Cell, evaluation: EvaluationSpec, folder: RunFolder, rng: random.Random) -> None:
    cell_dir, settings = folder.cell(cell), (cell.declared or cell.settings)
    cell_dir.make(cell)
    attempt = cell_dir.new_attempt()
    attempt.job.write_text(json.dumps({"started": 1e9}))
    last = cell.settings.num_train_steps
    height = 0.6 - 0.2 * settings.kl.beta + (0.1 if settings.kl.placement == "reward" else 0.0)
    lines = []
    for i in range(POINTS):
        step = i * last // (POINTS - 1)
        values: dict[str, float] = {
            name: height * (1 - math.exp(-4 * i / POINTS)) + rng.gauss(0, 0.02) for name in METRICS
        }
        lines.append(json.dumps({"step": step, "time": 1e9 + step, "values": values}) + "\n")
    attempt.metrics.write_text("".join(lines))
    end = ExitRecord(
        state="succeeded",
        started=1e9,
        ended=1e9 + 60,
        cpu_seconds=55.0,
        host="node1",
        outcome=Outcome(kind="trained"),
    )
    attempt.write_exit(end)
    cell_dir.evaluations.mkdir(exist_ok=True)
    for task in tasks_of(cell, evaluation):
        asked = ScoreKey(
            checkpoint=cell.id,
            step=last,
            task=task,
            task_version="1",
            sampling=Sampling(),
            seed=0,
            chat_template=True,
            harness="lm-eval",
        )
        score = Score(
            cell_id=cell.id,
            step=last,
            task=task.name,
            domain=task.domain,
            metric=f"mean@{task.repeats}",
            value=min(1.0, max(0.0, height + rng.gauss(0, 0.03))),
            stderr=0.01,
            num_items=500,
            repeats=task.repeats,
            harness="lm-eval",
        )
        files: dict[str, Any] = {"model.safetensors": (1, 1)}
        result = Result(asked=asked, files=files, scores=(score,), cpu_seconds=1.0, versions={})
        (cell_dir.evaluations / f"{asked.stem}.json").write_text(result.model_dump_json())


if __name__ == "__main__":
    main()
