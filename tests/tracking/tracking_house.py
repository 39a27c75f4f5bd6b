"""Run directories as workers and evaluations leave them, and all that an MLflow holds, as data."""

import json
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from orchestrator.records import Cell, ExitRecord, LaunchPlan, LedgerEntry, Outcome, Score, Spec
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.tracking import MirrorReport, mirror
from orchestrator.tracking.store import store_of

T0 = 1_700_000_000.25
"""When attempts of these tests begin, in Unix seconds."""


class House(NamedTuple):
    """An experiment on disk."""

    folder: RunFolder
    spec: Spec
    cells: list[Cell]
    scores: list[Score]
    migrated: Path
    """A database with its tables and nothing in them: copied, it saves a second of migrations."""

    @property
    def database(self) -> Path:
        return self.folder.path.parent / "mlflow.db"

    def mirror(self, uri: str | None = None) -> MirrorReport:
        """Collects and mirrors what is on disk now."""
        return mirror(collect(self.cells, self.folder), self.scores, self.spec, self.folder, uri)

    def attempt(
        self,
        cell: Cell,
        steps: Iterable[int],
        *,
        state: str | None = "succeeded",
        started: float = T0,
        values: Callable[[int], Mapping[str, float]] | None = None,
    ) -> AttemptDir:
        """One more attempt of a cell; `state` None: it has not ended."""
        cell_dir = self.folder.cell(cell)
        cell_dir.make(cell)
        cell_dir.write(cell, plan_of(cell))
        attempt = cell_dir.new_attempt()
        attempt.job.write_text(json.dumps({"started": started, "pid": 1, "argv": ["x"]}))
        self.folder.append("started", cell.id)
        steps = list(steps)
        grow(attempt, steps, started, values or curve)
        if state is not None:
            outcome = Outcome(kind="trained") if state == "succeeded" else None
            attempt.write_exit(
                ExitRecord.model_validate(
                    {
                        "state": state,
                        "started": started,
                        "ended": started + 100.0,
                        "host": "node1",
                        "outcome": outcome,
                        "message": "" if state == "succeeded" else "boom",
                    }
                )
            )
        return attempt

    def score(self, cell: Cell, step: int, value: float, seed: int = 0) -> None:
        """Scores of two tasks at a checkpoint, with the items of one."""
        items = self.folder.cell(cell).evaluations / f"sort-{step}-{seed}.jsonl"
        items.parent.mkdir(parents=True, exist_ok=True)
        items.write_text(json.dumps({"prompt": "ba", "responses": ["ab"], "value": value}) + "\n")
        for task, domain, path in (("sort", "in", f"eval/{items.name}"), ("copy", "out", "")):
            self.scores.append(
                Score.model_validate(
                    {
                        "cell_id": cell.id,
                        "step": step,
                        "task": task,
                        "domain": domain,
                        "metric": "mean@4",
                        "value": value,
                        "stderr": 0.01,
                        "num_items": 20,
                        "repeats": 4,
                        "eval_seed": seed,
                        "harness": "lm-eval",
                        "items_path": path,
                    }
                )
            )

    def fill(self) -> None:
        """Two finished cells with scores, one that failed, one that was not launched."""
        first, second, third, _ = self.cells
        self.attempt(first, range(5), state="preempted")
        self.attempt(first, range(3, 8), started=T0 + 500)
        self.attempt(second, range(8))
        self.attempt(third, range(2), state="failed")
        for cell in (first, second):
            self.score(cell, 4, 0.25)
            self.score(cell, 7, 0.5, seed=0)
            self.score(cell, 7, 0.75, seed=1)
        self.folder.report.mkdir()
        (self.folder.report / "index.html").write_text("<p>β</p>")

    @property
    def held(self) -> dict[str, Any]:
        """All that the MLflow beside the runs folder holds of it."""
        return dump(store_of(self.folder, None).uri, self.folder.experiment)


def curve(step: int) -> dict[str, float]:
    return {
        "train/reward_mean": step / 10,
        "train/entropy": 1 / (1 + step),
        "eval/accuracy/a": 1 / (2 + step),
    }


def grow(
    attempt: AttemptDir,
    steps: Iterable[int],
    started: float = T0,
    values: Callable[[int], Mapping[str, float]] = curve,
) -> None:
    with attempt.metrics.open("a") as file:
        for step in steps:
            line = {"step": step, "time": started + step, "values": dict(values(step))}
            file.write(json.dumps(line) + "\n")


def plan_of(cell: Cell) -> LaunchPlan:
    return LaunchPlan(
        cell_id=cell.id,
        backend="micro",
        version="1",
        argv=("train", "--api-key", "hush-1"),
        env={"HF_TOKEN": "hush-2", "OMP_NUM_THREADS": "1"},
        files={"go.sh": "export WANDB_API_KEY=hush-3\nexec train\n"},
        ledger=(LedgerEntry(field="kl.beta", status="exact", key="beta", value="0.1"),),
    )


def dump(uri: str, experiment: str) -> dict[str, Any]:
    """All that MLflow holds of an experiment, without the ids it makes up: by orch.key."""
    from mlflow.artifacts import download_artifacts
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    listed = list(client.search_runs([found.experiment_id], max_results=10_000))
    keys = {run.info.run_id: run.data.tags["orch.key"] for run in listed}
    assert len(set(keys.values())) == len(keys), "a run is there twice"
    runs: dict[str, Any] = {"": {"note": found.tags["mlflow.note.content"]}}
    for run in listed:
        points = {
            name: sorted(
                (m.step, m.timestamp, repr(m.value))
                for m in client.get_metric_history(run.info.run_id, name)
            )
            for name in run.data.metrics
        }
        artifacts = {}
        address = run.info.artifact_uri
        if uri.startswith("sqlite") and address.startswith("mlflow-artifacts:"):  # a server's
            folder = Path(unquote(uri.removeprefix("sqlite:///"))).parent / "mlartifacts"
            root = folder / unquote(address.removeprefix("mlflow-artifacts:/"))
        elif client.list_artifacts(run.info.run_id):
            root = Path(download_artifacts(run_id=run.info.run_id, tracking_uri=uri))
        else:
            root = Path()
        if root != Path():
            artifacts = {
                path.relative_to(root).as_posix(): path.read_bytes()
                for path in sorted(root.rglob("*"))
                if path.is_file()
            }
        runs[keys[run.info.run_id]] = {
            "name": run.info.run_name,
            "status": run.info.status,
            "start": run.info.start_time,
            "end": run.info.end_time,
            "tags": dict(run.data.tags),
            "params": dict(run.data.params),
            "latest": {k: repr(v) for k, v in run.data.metrics.items()},
            "points": points,
            "artifacts": artifacts,
        }
    return runs


def dying(real: Callable[..., Any], calls: int, *, after: bool) -> Callable[..., Any]:
    """The same call, killed at its `calls`th time, before or after it is done."""
    left = calls

    def call(*args: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            raise KeyboardInterrupt
        result = real(*args, **more)
        if left == 0:
            raise KeyboardInterrupt
        return result

    return call


def mirror_at_once(house: House, uri: str | None, count: int) -> list[str]:
    """Mirror so many experiments, each in a process of its own, as several `orch run`. Return
    their names."""
    started, folders = [], []
    for number in range(count):
        folder = RunFolder.of(house.folder.path.parent, f"at_once_{number}", "micro")
        own = house._replace(folder=folder)
        folder.open()
        own.attempt(own.cells[0], range(2))
        started.append(get_context("spawn").Process(target=own.mirror, args=(uri,)))
        started[-1].start()
        folders.append(folder)
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * count
    return [folder.experiment for folder in folders]
