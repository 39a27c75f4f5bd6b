"""The report of 100 configurations x 3 seeds x 350 train steps x 12 metrics, and of the largest.

    python -m benchmarks.report [FOLDER]

Bars: 5 CPU s, 500 MiB, 6 MB and a first paint within 1 s for 100; 4 s until the first figure is
drawn for the most cells that a page draws, 2,000. The records are made in this process, and counted
in its memory. The page is opened in a headless Chromium from disk.
"""

import itertools
import math
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

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


class Shape(NamedTuple):
    """The size of an experiment."""

    configurations: int
    seeds: int = SEEDS
    steps: int = STEPS

    @property
    def cells(self) -> int:
        return self.configurations * self.seeds


SMALL, LARGE = Shape(20), Shape(200, 10, 50)
WIDTHS = {1280: 900, 390: 844}
"""Width and height of a screen, in CSS pixels."""


class Opening(NamedTuple):
    """Seconds from the start of the navigation, and what the page took and said."""

    painted: float
    first: float
    """The first figure is drawn."""
    in_view: float
    drawn: float
    """Every figure is drawn."""
    cpu: float
    """CPU seconds of the page's main thread until the first figure is drawn."""
    heap_mib: float
    elements: int
    said: tuple[str, ...]
    """Messages on the console."""

    def __str__(self) -> str:
        return (
            f"painted {self.painted:.2f} s, first figure {self.first:.2f} s "
            f"({self.cpu:.2f} CPU s), in view {self.in_view:.2f} s, all drawn {self.drawn:.2f} s; "
            f"heap {self.heap_mib:.0f} MiB, {self.elements:,} elements, console: {self.said}"
        )


def main() -> None:
    if len(sys.argv) > 2:
        one(Shape(*map(int, sys.argv[1].split("x"))), Path(sys.argv[2]))
        return
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    for shape in (Shape(100), LARGE):
        name = "x".join(map(str, shape))
        page = folder / f"{name}.html"
        subprocess.run([sys.executable, "-m", "benchmarks.report", name, str(page)], check=True)
        for width in WIDTHS if is_there() else ():
            print(f"  {width} px: {opened(page, width)}")


def one(shape: Shape, page: Path) -> None:
    """Build one page in this process and print its cost."""
    import dashboards
    from orchestrator.analysis.compare import compare
    from orchestrator.report import report

    records, scores = experiment_of(shape)
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
        f"{shape.configurations} configurations x {shape.seeds} seeds: "
        f"{marks[-1] - marks[0]:.2f} CPU s "
        f"(compare {spent[0]}, report {spent[1]}, html {spent[2]}), {peak:.0f} MiB of which "
        f"{before:.0f} were the records, {len(text.encode()) / 1e6:.2f} MB"
    )


def is_there() -> bool:
    """Return True if there is a Chromium. Print that the page is not opened if there is none."""
    if shutil.which("chromium") is None:
        print("  the page is not opened: there is no chromium on this machine")
        return False
    return True


def opened(page: Path, width: int = 1280) -> Opening:
    """Open a page in Chromium, and wait until all of it is drawn."""
    from playwright.sync_api import sync_playwright

    flags = ["--headless", "--no-sandbox", "--disable-gpu"]
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        tab = browser.new_page(viewport={"width": width, "height": WIDTHS[width]})
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        meter = tab.context.new_cdp_session(tab)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.goto(page.absolute().as_uri(), wait_until="commit", timeout=120_000)

        def until(mark: str) -> None:  # a selector would be looked up all the time, in the page
            while not tab.evaluate("name => performance.getEntriesByName(name).length", mark):
                time.sleep(0.1)

        until("first figure")
        metrics = meter.send("Performance.getMetrics")["metrics"]
        (cpu,) = (each["value"] for each in metrics if each["name"] == "TaskDuration")
        until("all drawn")
        at = tab.evaluate(
            "() => Object.fromEntries(performance.getEntries().map(e => [e.name, e.startTime]))"
        )
        heap = tab.evaluate("performance.memory.usedJSHeapSize") / 2**20
        elements = tab.evaluate("document.getElementsByTagName('*').length")
        browser.close()
    names = ("first-contentful-paint", "first figure", "in view", "all drawn")
    return Opening(*(at[name] / 1000 for name in names), cpu, heap, elements, tuple(said))


def experiment_of(shape: Shape) -> tuple[list[Record], list[Score]]:
    """Noisy curves of every metric, one seed after another."""
    rng = random.Random(0)  # noqa: S311  (noise for curves)
    records, scores = [], []
    for i in range(shape.configurations):
        estimator, placement = KLS[i % len(KLS)]
        beta = round(0.01 * (1 + i % PER_STUDY // len(KLS)), 2)
        for seed in range(shape.seeds):
            settings = Settings(
                model=Model(name="m", path="org/m"),
                data=Data(name="math", path="org/math"),
                advantage=Advantage(estimator="rloo"),
                loss=Loss(),
                kl=Kl(estimator=estimator, placement=placement, beta=beta),  # type: ignore[arg-type]  # of KLS
                rollout=Rollout(group_size=5, max_response_tokens=1024),
                batch=Batch(num_prompts=256 + i // PER_STUDY),
                optimizer=Optimizer(learning_rate=1e-6),
                num_train_steps=shape.steps,
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
            records.append(_record(cell, rng, shape.steps))
            scores += [
                Score(
                    cell_id=cell.id,
                    step=shape.steps,
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


def _record(cell: Cell, rng: random.Random, steps: int) -> Record:
    points = tuple(
        compact(
            MetricPoint(
                step,
                1e9 + step,
                {name: 1 - math.exp(-3.5 * step / steps) + rng.gauss(0, 0.02) for name in METRICS},
            )
        )
        for step in range(1, steps + 1)
    )
    end = ExitRecord(state="succeeded", started=1e9, ended=1e9 + 60, gpu_hours=8, host="node1")
    folder = Path("/runs/bench/cells") / cell.directory
    return Record(
        cell,
        "succeeded",
        (end,),
        Outcome(kind="trained"),
        points,
        (Checkpoint(steps, folder / f"checkpoints/{steps}"),),
        folder,
    )


if __name__ == "__main__":
    main()
