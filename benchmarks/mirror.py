"""Mirroring 60 runs x 250 steps x 12 metrics to MLflow, beside a bare loop of log_batch.

The peer logs the same points with 1,000 rows a call and nothing else: no tags, params, artifacts,
states. Both write to an SQLite file that has its tables already, in turns, in one process. The
peer runs twice: as a script would, and spared of Python's collector as the mirror spares itself.
    python benchmarks/mirror.py [cells]
"""

import gc
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import grid_spec

from orchestrator.identity import flatten
from orchestrator.metrics.names import METRICS
from orchestrator.records import (
    Cell,
    ExitRecord,
    LaunchPlan,
    LedgerEntry,
    Outcome,
    Record,
    Score,
    Spec,
)
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.tracking import mirror

STEPS, NAMES, ROWS = 250, list(METRICS)[:12], 1000
ROUNDS = 2


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        spec, folder, all_cells = experiment(root, cells)
        imported, _ = cpu(lambda: __import__("mlflow.tracking"))
        empty = root / "empty.db"
        tables, _ = cpu(lambda: open_store(empty))
        print(f"import of mlflow          {imported:7.2f} CPU s   once a process")
        print(f"an empty SQLite store     {tables:7.2f} CPU s   once a runs folder")
        read, records = cpu(lambda: collect(all_cells, folder))
        print(f"collect of {cells} cells       {read:7.2f} CPU s")
        database = folder.path.parent / "mlflow.db"
        bare, spared, ours = [], [], []
        for turn in range(ROUNDS):
            shutil.copy(empty, root / f"bare{turn}.db")
            at = f"sqlite:///{root}/bare{turn}.db"
            bare.append(cpu(lambda at=at: log_all(records, at))[0])
            shutil.copy(empty, root / f"spared{turn}.db")
            at = f"sqlite:///{root}/spared{turn}.db"
            gc.freeze()
            spared.append(cpu(lambda at=at: log_all(records, at))[0])
            gc.unfreeze()
            (folder.path / "mirror.json").unlink(missing_ok=True)
            at = f"sqlite:///{root}/ours{turn}.db"
            shutil.copy(empty, root / f"ours{turn}.db")
            cost, report = cpu(lambda at=at: mirror(records, (), spec, folder, at))
            assert report.rows == cells * STEPS * len(NAMES), report
            ours.append(cost)
        print(f"log_batch, bare           {min(bare):7.2f} CPU s   best of {ROUNDS}")
        print(f"  spared of the collector {min(spared):7.2f} CPU s   best of {ROUNDS}")
        print(f"mirror                    {min(ours):7.2f} CPU s   best of {ROUNDS}")
        print(f"ratio                     {min(ours) / min(bare):7.2f}")
        print(f"  to the spared one       {min(ours) / min(spared):7.2f}")
        scores = [score for cell in all_cells for score in scores_of(cell)]
        (folder.path / "mirror.json").unlink()
        cost, report = cpu(lambda: mirror(records, scores, spec, folder, at))
        assert report.updated >= cells, report
        print(
            f"their scores, as models   {cost:7.2f} CPU s   {len(scores)} scores of {cells} "
            f"checkpoints; mirror and these {(min(ours) + cost) / min(ours):.2f} of mirror"
        )
        shutil.copy(empty, root / "last.db")
        at = f"sqlite:///{root}/last.db"
        mirror(records, (), spec, folder, at)
        shutil.copy(root / "last.db", database)
        noted = cpu(lambda: mirror(records, (), spec, folder, at))
        (folder.path / "mirror.json").unlink()
        asked = cpu(lambda: mirror(records, (), spec, folder, at))
        for title, (cost, report) in (("by its note", noted), ("asking MLflow", asked)):
            assert report.rows == report.created == report.updated == 0, report
            print(f"again, {title:18} {cost:7.2f} CPU s   nothing changed")


def cpu(action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process, and what it gave."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = action()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def experiment(root: Path, cells: int) -> tuple[Spec, RunFolder, list[Cell]]:
    """Finished cells on disk, as the embedded trainer leaves them."""
    spec = load(grid_spec(root / "bench.yaml", -(-cells // 200) * 200))
    folder = RunFolder.of(root / "runs", spec.name, "micro")
    folder.open()
    all_cells = expand(spec)[:cells]
    for number, cell in enumerate(all_cells):
        cell_dir = folder.cell(cell)
        cell_dir.make(cell)
        attempt = cell_dir.new_attempt()
        cell_dir.write(cell, plan_of(cell))
        attempt.job.write_text(json.dumps({"started": 1e9}))
        lines = (
            {
                "step": step,
                "time": 1e9 + step,
                "values": {name: number + step * (i + 1) / 7 for i, name in enumerate(NAMES)},
            }
            for step in range(STEPS)
        )
        attempt.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        attempt.write_exit(
            ExitRecord(
                state="succeeded", started=1e9, ended=1e9 + STEPS, outcome=Outcome(kind="trained")
            )
        )
    return spec, folder, all_cells


def scores_of(cell: Cell) -> list[Score]:
    """Those of an evaluated checkpoint: five tasks, four numbers each."""
    return [
        Score(
            cell_id=cell.id,
            step=STEPS - 1,
            task=f"task{i}",
            domain="in",
            metric=f"{kind}@32",
            value=0.5,
            num_items=500,
            repeats=32,
        )
        for i in range(5)
        for kind in ("mean", "pass", "maj", "distinct")
    ]


def plan_of(cell: Cell) -> LaunchPlan:
    """Return a plan with a ledger entry for every leaf, as backends write them."""
    ledger = tuple(
        LedgerEntry(field=leaf, status="exact", key=leaf, value=str(value))
        for leaf, value in flatten(cell.settings.model_dump())
    )
    return LaunchPlan(cell_id=cell.id, backend="micro", version="1", argv=("x",), ledger=ledger)


def open_store(path: Path) -> None:
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()


def log_all(records: list[Record], uri: str) -> None:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.create_experiment("bare")
    for record in records:
        run_id = client.create_run(experiment_id).info.run_id
        rows = [
            Metric(name, value, int(point.time * 1000), point.step)
            for point in record.metrics
            for name, value in point.values.items()
        ]
        for start in range(0, len(rows), ROWS):
            client.log_batch(run_id, metrics=rows[start : start + ROWS])


if __name__ == "__main__":
    main()
