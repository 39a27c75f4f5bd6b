"""A comparison of 100 configurations x 3 seeds, 1,106 items x 32 samples each, claims included.

    python -m benchmarks.compare

The peer is the least any bootstrap over items does: drawing NumPy's indices for each table.
"""

import resource
import time

import numpy as np

from orchestrator.analysis.compare import compare
from orchestrator.analysis.configurations import axis_differences
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, MetricPoint, Outcome, Record, Score, Spec
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

TASKS = {
    "math500": (500, "in"),
    "math2": (210, "in"),
    "mmlu_college_physics": (118, "out"),
    "mmlu_college_chemistry": (113, "out"),
    "mmlu_college_biology": (165, "out"),
}
BETAS = [round(0.01 * (i + 1), 2) for i in range(25)]
KLS = [("k1", "reward"), ("k1", "loss"), ("k3", "reward"), ("k3", "loss")]


def main() -> None:
    records, scores, items = experiment_data()
    spec = Spec(
        name="bench",
        studies=(),
        claims={
            f"c{i}": "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss] "
            f"at beta={beta:g}"
            for i, beta in enumerate(BETAS)
        },
    )
    started = time.process_time()
    comparison = compare(spec, records, scores, items)
    pairs = axis_differences(comparison.configurations, "kl", "eval/in_domain/mean")
    spent = time.process_time() - started
    started = time.process_time()
    rng = np.random.default_rng(0)
    for _ in comparison.configurations:
        for size, _domain in TASKS.values():
            rng.integers(0, size, size=(2000, size))
    peer = time.process_time() - started
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{len(records)} runs, {len(comparison.claims)} claims, {len(pairs)} pairs: "
        f"{spent:.2f} CPU s (bar 10), {largest:.0f} MiB (bar 1024)"
    )
    print(f"  drawing indices alone, a table at a time: {peer:.2f} CPU s; ratio {spent / peer:.2f}")


def experiment_data() -> tuple[list[Record], list[Score], dict[str, dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    records, scores, items = [], [], {}
    for estimator, placement in KLS:
        for beta in BETAS:
            for seed in range(3):
                cell = _cell(estimator, placement, beta, seed)
                metrics = tuple(
                    MetricPoint(s, float(s), {"train/reward_mean": s / 350}) for s in range(350)
                )
                records.append(Record(cell, "succeeded", (), Outcome(kind="trained"), metrics))
                items[cell.id] = {
                    task: rng.binomial(32, 0.5, size) / 32 for task, (size, _) in TASKS.items()
                }
                scores += [
                    Score(
                        cell_id=cell.id,
                        step=349,
                        task=task,
                        domain=domain,
                        metric="mean@32",
                        value=float(items[cell.id][task].mean()),
                        num_items=size,
                        repeats=32,
                    )
                    for task, (size, domain) in TASKS.items()
                ]
    return records, scores, items


def _cell(estimator: str, placement: str, beta: float, seed: int) -> Cell:
    settings = Settings(
        model=Model(name="m", path="o/m"),
        data=Data(name="math", path="o/math"),
        advantage=Advantage(estimator="rloo"),
        loss=Loss(),
        kl=Kl.model_validate({"estimator": estimator, "placement": placement, "beta": beta}),
        rollout=Rollout(group_size=5, max_response_tokens=8),
        batch=Batch(num_prompts=4),
        optimizer=Optimizer(learning_rate=1e-6),
        num_train_steps=350,
        backend=BackendRef(name="verl"),
        seed=seed,
    )
    return Cell(
        id=fingerprint(settings),
        slug=f"{estimator}-{placement}-{beta}-{seed}",
        studies=("a",),
        settings=settings,
        axes={"kl": f"{estimator}.{placement}", "beta": f"{beta:g}", "seed": str(seed)},
    )


if __name__ == "__main__":
    main()
