"""The report of 100 configurations x 3 seeds x 350 train steps x 12 metrics, and of 1,000.

    python -m benchmarks.report [FOLDER]

Bars: 5 CPU s, 500 MiB, 6 MB and a first paint within 1 s for 100; 25 MB and 4 s until what is in
view is drawn for 1,000. The records are made in this process, and counted in its memory. The page
is opened in a headless Chromium from disk.
"""

import itertools
import json
import math
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.identity import fingerprint
from orchestrator.metrics.points import compact
from orchestrator.records import (
    Cell,
    Checkpoint,
    ExitRecord,
    MetricPoint,
    Outcome,
    Record,
    Score,
    Spec,
)
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

STEPS, SEEDS = 350, 3
METRICS = (
    "train/reward_mean",
    "train/kl_reference",
    "train/entropy",
    "train/grad_norm",
    "rollout/response_tokens",
    "rollout/staleness_mean",
    "eval/accuracy_in_domain",
    "eval/accuracy_out_of_domain",
    "eval/kl_reverse",
    "eval/kl_forward",
    "eval/entropy",
    "train/beta_effective",
)
TASKS = (("math500", "in"), ("math2", "in"), ("mmlu_college_biology", "out"))
KLS = [
    ("k1", "reward"),
    ("k1", "loss"),
    ("k3", "reward"),
    ("k3", "loss"),
    ("k1", "reward_and_loss"),
]
PER_STUDY = 50


def main() -> None:
    if len(sys.argv) > 2:
        return one(int(sys.argv[1]), Path(sys.argv[2]))
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    for configurations in (100, 1000):
        page = folder / f"{configurations}.html"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.report", str(configurations), str(page)], check=True
        )
        print(f"  in Chromium: {opened(page)}")
    return None


def one(configurations: int, page: Path) -> None:
    """Build one page in this process and print its cost."""
    import dashboards
    from orchestrator.analysis.compare import compare
    from orchestrator.report import report

    records, scores = experiment_of(configurations)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spec = Spec(
        name="bench",
        question="Does the page stay small?",
        studies=(),
        claims={"wins": "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"},
    )
    marks = [time.process_time()]
    comparison = compare(spec, records, scores)
    marks.append(time.process_time())
    content = report(comparison, records, scores, spec)
    marks.append(time.process_time())
    text = dashboards.html(content)
    marks.append(time.process_time())
    page.write_text(text, encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent = [f"{b - a:.2f}" for a, b in itertools.pairwise(marks)]
    print(
        f"{configurations} configurations x {SEEDS} seeds: {marks[-1] - marks[0]:.2f} CPU s "
        f"(compare {spent[0]}, report {spent[1]}, html {spent[2]}), {peak:.0f} MiB of which "
        f"{before:.0f} were the records, {len(text.encode()) / 1e6:.2f} MB"
    )


def opened(page: Path) -> str:
    """First contentful paint and the time until every figure is drawn."""
    from playwright.sync_api import sync_playwright

    flags = ["--headless", "--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto(page.absolute().as_uri(), wait_until="commit", timeout=120_000)
        tab.wait_for_selector("html[data-seen=yes]", state="attached", timeout=120_000)
        in_view_ms = tab.evaluate("performance.now()")
        tab.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
        drawn = tab.evaluate("performance.now()")
        paint = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        heap = tab.evaluate("performance.memory.usedJSHeapSize") / 2**20
        browser.close()
    measured = {
        "first paint s": paint / 1000,
        "drawn in view s": in_view_ms / 1000,
        "all drawn s": drawn / 1000,
        "heap MiB": heap,
    }
    return json.dumps({name: round(value, 2) for name, value in measured.items()})


def experiment_of(configurations: int) -> tuple[list[Record], list[Score]]:
    """Noisy curves of every metric, one seed after another."""
    rng = random.Random(0)  # noqa: S311  (noise for curves)
    records, scores = [], []
    for i in range(configurations):
        estimator, placement = KLS[i % len(KLS)]
        beta = round(0.01 * (1 + i % PER_STUDY // len(KLS)), 2)
        for seed in range(SEEDS):
            settings = Settings(
                model=Model(name="m", path="org/m"),
                data=Data(name="math", path="org/math"),
                advantage=Advantage(estimator="rloo"),
                loss=Loss(),
                kl=Kl(estimator=estimator, placement=placement, beta=beta),  # type: ignore[arg-type]  # of KLS
                rollout=Rollout(group_size=5, max_response_tokens=1024),
                batch=Batch(num_prompts=256 + i // PER_STUDY),
                optimizer=Optimizer(learning_rate=1e-6),
                num_train_steps=STEPS,
                backend=BackendRef(name="verl", version="0.9.1"),
                seed=seed,
            )
            cell = Cell(
                id=fingerprint(settings),
                slug=f"m-{estimator}.{placement}-b{beta:g}-{i}-s{seed}",
                studies=(f"study{i // PER_STUDY}",),
                settings=settings,
                axes={
                    "model": "m",
                    "kl": f"{estimator}.{placement}",
                    "beta": f"{beta:g}",
                    "seed": str(seed),
                    "backend": "verl",
                },
            )
            records.append(_record(cell, rng))
            scores += [
                Score(
                    cell_id=cell.id,
                    step=STEPS,
                    task=task,
                    domain=domain,  # type: ignore[arg-type]  # one of two
                    metric="mean@32",
                    value=rng.uniform(0.4, 0.6),
                    num_items=500,
                    repeats=32,
                    stderr=0.01,
                    harness="lm-eval 0.4.13",
                )
                for task, domain in TASKS
            ]
    return records, scores


def _record(cell: Cell, rng: random.Random) -> Record:
    points = tuple(
        compact(
            MetricPoint(
                step,
                1e9 + step,
                {name: 1 - math.exp(-step / 100) + rng.gauss(0, 0.02) for name in METRICS},
            )
        )
        for step in range(1, STEPS + 1)
    )
    end = ExitRecord(state="succeeded", started=1e9, ended=1e9 + 60, gpu_hours=8, host="node1")
    folder = Path("/runs/bench/cells") / cell.directory
    return Record(
        cell,
        "succeeded",
        (end,),
        Outcome(kind="trained"),
        points,
        (Checkpoint(STEPS, folder / "checkpoints/350"),),
        folder,
    )


if __name__ == "__main__":
    main()
