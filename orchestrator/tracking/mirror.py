"""The mirror: makes MLflow equal to the run directories, and is the only writer to it.

Mirroring twice changes nothing, for two reasons. Timestamps come from the metrics file. And before
any point is logged, the tag `orch.ingesting` records up to which step points may exist in MLflow,
and their hash. After logging, `orch.ingested` records the same, and the next mirror logs only later
points.

MLflow cannot delete a point. A cell that resumed from a checkpoint has trained some steps twice,
and stays one run: MLflow has both values, and the tag `orch.retrained` states this. The run
directories and the report have only the values of the resumed attempt. If the history differs (the
directory was removed and the cell trained again, or its scores were made again), the run is deleted
and created again.
"""

import fcntl
import itertools
import json
import math
import shlex
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.files import telling
from orchestrator.identity import digest
from orchestrator.metrics.points import stretches
from orchestrator.records import MetricPoint, Record, Score, Spec
from orchestrator.rundir import RunFolder
from orchestrator.tracking.backpressure import MOST_AT_ONCE, Gate, PatientClient
from orchestrator.tracking.bulk import (
    Block,
    NewDataset,
    NewModel,
    NewRun,
    Points,
    RunEnd,
    new_run,
    writer_of,
)
from orchestrator.tracking.content import (
    Content,
    Dataset,
    LoggedModel,
    Mark,
    Marks,
    digest_to,
    milliseconds,
)
from orchestrator.tracking.names import allowed_name, tag_text
from orchestrator.tracking.new_store import NewStore, client_of
from orchestrator.tracking.runs import pruned_cells, runs
from orchestrator.tracking.store import Store, connected, every, store_of
from orchestrator.tracking.views import PREFIX, VIEW_TAG, View, resolved, runs_page, views

KEY = "orch.key"
INGESTING = "orch.ingesting"
INGESTED = "orch.ingested"
RETRAINED = "orch.retrained"
MODEL_DIGEST = "orch.digest"
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow's page opens on curves
ROWS_PER_CALL = 1000
"""MLflow's limit for one log_batch."""
ROWS_AT_ONCE = 1_000_000
"""Rows, of many runs, in one transaction of a database."""

RUNS_AT_ONCE = 350
"""Runs that are open at once. A kill leaves at most this number unfinished; the next mirror
completes them."""

MirrorProgress = Callable[[int, int], None]


@dataclass
class MirrorReport:
    """The result of a mirror. `view` is the page to open, or the command that serves it."""

    experiment: str
    store: str
    view: str = ""
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    replaced: int = 0
    """Of the created runs, those whose history on disk was rewritten."""
    deleted: int = 0
    """Runs of cells that were pruned."""
    rows: int = 0
    """Number of metric values logged."""


def mirror(
    records: Sequence[Record],
    scores: Iterable[Score],
    spec: Spec,
    folder: RunFolder,
    uri: str | None = None,
    on_progress: MirrorProgress = lambda _done, _total: None,
    only: Collection[str] | None = None,
    dry_run: bool = False,
) -> MirrorReport:
    """Make MLflow equal to these records and scores. A second call changes nothing.

    The store is `uri`, else the spec's `site.tracking_uri`, else $MLFLOW_TRACKING_URI, else
    `mlflow.db` in the runs folder. Only launched cells have runs. Runs of pruned
    cells are deleted. Runs of other cells that are not among the records, or not among `only`, are
    left unchanged. The files in `folder.report` become artifacts of the run `summary`. Raise
    EnvironmentFault if MLflow does not answer.

    dry_run: count the runs that would be created, updated and deleted, and write nothing.
    """
    store = store_of(folder, uri or spec.site.tracking_uri)
    report = MirrorReport(folder.experiment, store.shown, _command(store))
    wanted = runs(records, scores, spec, folder)
    if only is not None:
        wanted = [run for run in wanted if run.cell_id is None or run.cell_id in only]
    pruned = pruned_cells(folder)
    if not wanted:
        return report
    ready = views(records)
    content = digest([[run.digest for run in wanted], ready, sorted(pruned)])
    if dry_run:
        if noted(folder, store, content):
            report.unchanged = len(wanted)
        else:
            _foresee(wanted, pruned, ready, store, report)
        return report
    with locked_mark(folder, store) as mark:
        if mark.matches(content):
            report.unchanged = len(wanted)
            return report
        with client_of(store) as client:
            patient = PatientClient(client, Gate()) if store.is_server else client
            _Mirror(patient, store, report, ready).make(wanted, pruned, on_progress)
        mark.write(content)
    return report


def _foresee(
    wanted: Sequence[Content],
    pruned: frozenset[str],
    ready: Sequence[View],
    store: Store,
    report: MirrorReport,
) -> None:
    """Count in the report what a mirror would do. Read MLflow, but do not create a missing
    database."""
    if store.database is not None and not store.database.exists():
        report.created = len(wanted)
        return
    with connected(store) as client:
        _Mirror(client, store, report, ready).foresee(wanted, pruned)


class Point(NamedTuple):
    """One value of a metric. It has the field names of mlflow.entities.Metric, which is slow to
    create."""

    key: str
    value: float
    timestamp: int
    step: int
    model_id: str | None = None


class _Opened(NamedTuple):
    """A run with its tags, params and artifacts, and the content that is still to be logged.

    If it is new, a database does not have it yet: it gets all of it at once.
    """

    run: Any
    content: Content
    points: Points = Points()
    params: Mapping[str, str] = {}
    """Params that a database gets together with the points."""
    retrained: str = ""
    """A sentence, if some of its steps were trained again."""
    is_held: bool = False
    """True if nothing is left to do."""
    is_new: bool = False

    @property
    def run_id(self) -> str:
        return str(self.run.info.run_id)


def batches(cells: Sequence[Content]) -> Iterator[list[Content]]:
    """Yield the runs of cells in batches of about ROWS_AT_ONCE points."""
    batch: list[Content] = []
    num_rows = 0
    for content in cells:
        batch.append(content)
        width = len(content.curves[-1].values) if content.curves else 0
        num_rows += len(content.curves) * width
        if num_rows >= ROWS_AT_ONCE or len(batch) >= RUNS_AT_ONCE:
            yield batch
            batch, num_rows = [], 0
    if batch:
        yield batch


class _Mirror:
    """One mirror pass over one experiment."""

    def __init__(self, client: Any, store: Store, report: MirrorReport, ready: Sequence[View]):
        self.client, self.store, self.report, self.ready = client, store, report, ready
        self.experiment_id = self.summary_id = ""
        self.bulk = writer_of(client)
        self._counting = Lock()
        self._naming_dataset = Lock()
        self._named_datasets: set[tuple[str, str]] = set()

    def make(
        self, wanted: Sequence[Content], pruned: frozenset[str], on_progress: MirrorProgress
    ) -> None:
        """Make MLflow equal to the wanted content. Delete the runs of the pruned cells.

        on_progress: called with the number of finished runs and of all runs.
        """
        self.experiment_id = self._experiment(wanted[0])
        self.models = _Models(self.client, self.experiment_id)
        if self.bulk:
            self._home = self.client.get_experiment(self.experiment_id)
        if self.store.is_server:
            self.report.view = f"{self.store.address}/{runs_page(self.experiment_id)}"
        present = self._present(self.experiment_id)
        self._delete(present, pruned, {content.key for content in wanted})
        run_ids: dict[str, str] = {}

        def opened(content: Content) -> _Opened:
            parent = {PARENT: run_ids[content.parent]} if content.parent else {}
            run = self._open(present.get(content.key), content, parent)
            run_ids[content.key] = run.run_id
            return run

        # A run names its parent by MLflow's id, so parents are made first.
        parents = [content for content in wanted if content.cell_id is None]
        cells = [content for content in wanted if content.cell_id is not None]
        for content in parents:
            self._complete([opened(content)])
            if not self.summary_id:
                self.summary_id = run_ids[content.key]
                self._describe(wanted[0])
        done = len(parents)
        if self.store.is_server:
            self.models.read()
            with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
                waiting = [pool.submit(self._complete_one, opened, content) for content in cells]
                try:
                    for future in as_completed(waiting):
                        future.result()
                        on_progress(done, len(wanted))
                        done += 1
                finally:  # after a fault, what has not begun is left
                    pool.shutdown(cancel_futures=True)
        else:
            for batch in batches(cells):
                on_progress(done, len(wanted))
                self._complete([opened(content) for content in batch])
                done += len(batch)
        others = {run.info.run_id for key, run in present.items() if key not in run_ids}
        self.models.tidy(others | set(run_ids.values()))
        on_progress(len(wanted), len(wanted))

    def foresee(self, wanted: Sequence[Content], pruned: frozenset[str]) -> None:
        """Count what `make` would do. Write nothing."""
        experiment = self.client.get_experiment_by_name(self.report.experiment)
        if experiment is None or self._has_moved(experiment):
            self.report.created = len(wanted)
            return
        self.experiment_id = self._id(experiment.experiment_id)
        self.models = _Models(self.client, self.experiment_id)
        present, twins = self._by_key(self.experiment_id)
        keys = {content.key for content in wanted}
        self.report.deleted = len(twins) + sum(
            f"cell/{id_}" in present and f"cell/{id_}" not in keys for id_ in pruned
        )
        run_ids = {key: str(run.info.run_id) for key, run in present.items()}
        self.summary_id = run_ids.get(wanted[0].key, "")
        for content in wanted:
            run = present.get(content.key)
            parent = {PARENT: run_ids.get(content.parent, "")} if content.parent else {}
            if run is None or self._is_another(run, content):
                self.report.created += 1
            elif self._is_held(run, content, self._tags(run, content, parent)):
                self.report.unchanged += 1
            else:
                self.report.updated += 1

    def _experiment(self, summary: Content) -> str:
        """Return the experiment's id. Create it, restore it from the trash or move it if needed."""
        name, where = self.report.experiment, self.store.artifacts
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        location = where.as_uri() if where is not None else None
        if experiment is not None and self._has_moved(experiment):
            # Renamed before the deletion, because MLflow keeps the name of a deleted experiment.
            self.client.rename_experiment(
                experiment.experiment_id, f"{name} (before it moved, {experiment.experiment_id})"
            )
            self.client.delete_experiment(experiment.experiment_id)
            experiment = None
        if where is not None:
            where.mkdir(parents=True, exist_ok=True)
        if experiment is None:
            tags = {**_KIND, "scale": summary.tags["scale"]}
            return self._id(self.client.create_experiment(name, location, tags))
        return self._id(experiment.experiment_id)

    def _has_moved(self, experiment: Any) -> bool:
        """Return True if the runs folder was moved. MLflow would continue to write to the old
        place."""
        where = self.store.artifacts
        location = where.as_uri() if where is not None else None
        return self.store.ours and bool(experiment.artifact_location != location)

    def _id(self, answered: object) -> str:
        """Return an id from an answer of MLflow. Raise EnvironmentFault if it is no id."""
        if not isinstance(answered, str) or not answered:
            raise EnvironmentFault(
                f"MLflow at {self.store.shown} cannot be used: what answers there leaves out the "
                "id of what it was asked for, so it is not MLflow (a proxy, a login page?). "
                "Nothing is lost: the run directories hold everything. Check site.tracking_uri or "
                "MLFLOW_TRACKING_URI, then `orch collect` mirrors what is missing"
            )
        return answered

    def _describe(self, summary: Content) -> None:
        """Set the experiment's own tags: its description, and the views."""
        tags = {
            **_KIND,
            "scale": summary.tags["scale"],
            NOTE: self._noted(summary.tags[NOTE]),
            **dict(view.tag for view in self.ready),
        }
        before = self.client.get_experiment(self.experiment_id).tags
        for key, value in tags.items():
            if before.get(key) != value:
                self.client.set_experiment_tag(self.experiment_id, key, value)
        for key in before.keys() - tags.keys():
            if key.startswith(VIEW_TAG + PREFIX):
                self.client.delete_experiment_tag(self.experiment_id, key)

    def _noted(self, note: str, summary_id: str = "") -> str:
        return tag_text(resolved(note, self.experiment_id, summary_id or self.summary_id))

    def _delete(
        self, present: dict[str, Any], pruned: frozenset[str], wanted: Collection[str]
    ) -> None:
        """Delete the runs of pruned cells, and of studies without other cells."""
        for key in [f"cell/{id_}" for id_ in pruned if f"cell/{id_}" not in wanted]:
            if (run := present.pop(key, None)) is None:
                continue
            self.client.delete_run(run.info.run_id)
            self.report.deleted += 1
            parent = run.data.tags.get(PARENT)
            if any(other.data.tags.get(PARENT) == parent for other in present.values()):
                continue
            for key_ in [k for k, run in present.items() if run.info.run_id == parent]:
                if key_ not in wanted:
                    self.client.delete_run(present.pop(key_).info.run_id)

    def _present(self, experiment_id: str) -> dict[str, Any]:
        """Return orch's runs by key. Delete twins, which another machine created at the same
        time."""
        runs, twins = self._by_key(experiment_id)
        for run in twins:
            self.client.delete_run(run.info.run_id)
        return runs

    def _by_key(self, experiment_id: str) -> tuple[dict[str, Any], list[Any]]:
        """Return orch's runs by key, and the twins. Of several runs with one key, the oldest
        counts."""
        runs: dict[str, Any] = {}
        twins = []
        oldest_first = ["attributes.start_time ASC"]
        for run in list(every(self.client.search_runs, experiment_id, order_by=oldest_first)):
            key = run.data.tags.get(KEY)
            if key in runs:
                twins.append(run)
            elif key is not None:
                runs[key] = run
        return runs, twins

    def _is_another(self, run: Any, content: Content) -> bool:
        """Return True if a run has another history than the disk, and training was not just
        resumed."""
        ingesting = Marks.of(run.data.tags.get(INGESTING))
        return _is_rewritten(run, content) and not is_resumed(run, content, ingesting)

    def _tags(self, run: Any, content: Content, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the tags that a run should have. `run` is None if the run must be created."""
        tags = {**content.tags, **parent}
        own = ""
        if run is not None:
            if RETRAINED in run.data.tags or _is_rewritten(run, content):
                tags[RETRAINED] = run.data.tags.get(RETRAINED, RETRAINED_BEFORE)
            own = run.info.run_id if content.cell_id is None and not content.parent else ""
        tags[NOTE] = self._noted(content.tags[NOTE], self.summary_id or own)
        return tags

    def _is_held(self, run: Any, content: Content, tags: dict[str, str]) -> bool:
        """Return True if a run already has its content, including models and artifacts."""
        return self.models.has(run, content.models) and _is_equal(
            run, content, tags, self._has_artifacts(run, content)
        )

    def _open(self, run: Any, content: Content, parent: Mapping[str, str]) -> "_Opened":
        """Give one run its content, except points and status. Return what is left to log."""
        if run is not None and self._is_another(run, content):
            self.client.delete_run(run.info.run_id)
            self._count("replaced")
            run = None
        tags = self._tags(run, content, parent)
        if run is not None and self._is_held(run, content, tags):
            self._count("unchanged")
            return _Opened(run, content, is_held=True)
        # Written before the points: after a kill the next mirror knows which points may be in
        # MLflow.
        intent = {INGESTING: content.marks.text}
        if run is None:
            self._count("created")
            if self.bulk and content.cell_id is not None:
                run = new_run(self._home, content.started, {**tags, **intent}, content.name)
                return _Opened(run, content, columns(content.curves), content.params, is_new=True)
            run = self.client.create_run(
                self.experiment_id, content.started, {**tags, **intent}, content.name
            )
            self._id(run.info.run_id)
            if not self.summary_id:  # its note links to itself
                note = self._noted(content.tags[NOTE], run.info.run_id)
                self.client.set_tag(run.info.run_id, NOTE, note)
        else:
            self._count("updated")
            self._retag(run, content, {**tags, **intent})
        return self._fill(run, content, resumed=RETRAINED in tags)

    def _count(self, name: str, by: int = 1) -> None:
        with self._counting:
            setattr(self.report, name, getattr(self.report, name) + by)

    def _retag(self, run: Any, content: Content, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        run_id, before = run.info.run_id, run.data.tags
        changed = [RunTag(k, v) for k, v in tags.items() if before.get(k) != v]
        self.client.log_batch(run_id, tags=changed)
        done = Marks.of(before.get(INGESTED)) or Marks()
        for name in set(done.tags) & before.keys() - tags.keys():
            self.client.delete_tag(run_id, name)
        if run.info.run_name != content.name:
            self.client.update_run(run_id, name=content.name)

    def _fill(self, run: Any, content: Content, resumed: bool) -> "_Opened":
        """Log artifacts, params and data set. Return the run with the points that MLflow lacks."""
        run_id = run.info.run_id
        if not self._has_artifacts(run, content):
            self._upload(run, content)  # first: MLflow may read the run before, all of it
        done = Marks.of(run.data.tags.get(INGESTED)) or Marks()
        params = {k: v for k, v in content.params.items() if k not in run.data.params}
        if not self.bulk:
            from mlflow.entities import Param

            self.client.log_batch(run_id, params=[Param(k, v) for k, v in params.items()])
        if content.dataset is not None and not _has_dataset(run, content):
            self._log_dataset(run_id, content.dataset)
        if resumed:
            again = retrained(self.client, run, content.curves)
            return _Opened(run, content, Points.of(again.rows), params, again.sentence)
        step = -1 if done.curves is None else done.curves.step
        lacking = columns(p for p in content.curves if p.step > step)
        return _Opened(run, content, lacking, params)

    def _log_dataset(self, run_id: str, dataset: Dataset) -> None:
        """Log the data set of a run.

        MLflow's store looks for the data set and then inserts it. Of two calls at once both would
        insert it, and one would fail. So the first call with a data set ends before another begins.
        """
        with self._naming_dataset:
            if (dataset.name, dataset.digest) not in self._named_datasets:
                self.client.log_inputs(run_id, datasets=[_input(dataset)])
                self._named_datasets.add((dataset.name, dataset.digest))
                return
        self.client.log_inputs(run_id, datasets=[_input(dataset)])

    def _complete_one(self, opened: Callable[[Content], "_Opened"], content: Content) -> None:
        self._complete([opened(content)])

    def _complete(self, opened: Sequence["_Opened"]) -> None:
        """Log points and models of these runs, then the status of each. Write its mark last."""
        waiting = [each for each in opened if not each.is_held]
        if self.bulk:
            self._send_at_once(waiting)
        else:
            for each in waiting:
                points = itertools.starmap(Point, each.points)
                self._log(each.run_id, list(points))
        for each in waiting:
            if each.is_new:
                self._upload(each.run, each.content)
        ends: list[RunEnd] = []
        for each in waiting:
            run, content = each.run, each.content
            if each.retrained:
                self.client.set_tag(each.run_id, RETRAINED, each.retrained)
            if not self.bulk:
                # A score is logged with the id of its model, so the model comes first.
                models = self.models.link(run, content.models)
                scored = [point for point in content.scores if point.step in models]
                self._log(each.run_id, list(rows(scored, models)))
                self.models.finish(models.values())
            mark = (INGESTED, content.marks.text)
            if self.bulk and content.ended is not None:
                ends.append(RunEnd(each.run_id, content.status, content.ended, mark))
                continue
            if content.ended is not None:
                self.client.set_terminated(each.run_id, content.status, content.ended)
            elif run.info.status != content.status:
                self.client.update_run(each.run_id, status=content.status)
            self.client.set_tag(each.run_id, *mark)
        if self.bulk and ends:
            self.bulk.finish(ends)

    def _send_at_once(self, waiting: Sequence["_Opened"]) -> None:
        """Write new runs, params, points and models into a database, in one transaction."""
        points: dict[str, Points] = {}
        new: list[NewRun] = []
        models: list[NewModel] = []
        for each in waiting:
            content = each.content
            scored = {point.step: point for point in content.scores}
            lacking = self.models.lacking(each.run, content.models)
            models += [
                NewModel(
                    self._home,
                    each.run_id,
                    model.step,
                    model.name,
                    _model_tags(model),
                    model.params,
                    columns([scored[model.step]]),
                )
                for model in lacking
            ]
            scores = columns(scored[model.step] for model in lacking)
            points[each.run_id] = Points([*each.points.blocks, *scores.blocks])
            if each.is_new:
                dataset = None if content.dataset is None else _new_dataset(content.dataset)
                new.append(NewRun(each.run, dataset))
        points = {run_id: of_run for run_id, of_run in points.items() if of_run}
        params = {each.run_id: each.params for each in waiting if each.params}
        if self.bulk and (points or params or new or models):
            self.bulk(points, params, new, models)
            self._count("rows", sum(map(len, points.values())))

    def _log(self, run_id: str, points: Sequence[Point]) -> None:
        """Log points of a run by MLflow's own call."""
        from mlflow.entities import Metric

        for start in range(0, len(points), ROWS_PER_CALL):
            part = points[start : start + ROWS_PER_CALL]
            self.client.log_batch(run_id, metrics=[Metric(*point) for point in part])
        self._count("rows", len(points))

    def _has_artifacts(self, run: Any, content: Content) -> bool:
        done = Marks.of(run.data.tags.get(INGESTED)) or Marks()
        if done.artifacts != content.marks.artifacts:
            return False
        where = self.store.artifacts
        return not done.artifacts or where is None or (where / run.info.run_id).is_dir()

    def _upload(self, run: Any, content: Content) -> None:
        """Upload all artifacts in one call. The staged files are links: MLflow copies their
        targets."""
        if isinstance(self.client, NewStore):
            self.client.copy_artifacts(run, content.texts, content.files)
            return
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        with tempfile.TemporaryDirectory() as staging:
            for name, text in content.texts.items():
                _below(staging, name).write_text(text, encoding="utf-8")
            for name, file in content.files.items():
                if file.is_file():
                    _below(staging, name).symlink_to(file.absolute())
            where = run.info.artifact_uri
            if where.startswith("file:"):  # the client would read the run again to learn it
                get_artifact_repository(where).log_artifacts(staging)
            else:
                self.client.log_artifacts(run.info.run_id, staging)


def holds(points: Sequence[MetricPoint], mark: Mark | None) -> bool:
    """Return True if the points start with the points of a mark."""
    if mark is None:
        return True
    if not points or points[-1].step < mark.step:
        return False
    return digest_to(points, mark.step) == mark.digest


def columns(points: Iterable[MetricPoint]) -> Points:
    """Return the points that MLflow should have, as columns: those of `rows`, without models."""
    import numpy as np

    return Points(
        [
            Block(
                tuple(map(allowed_name, stretch.names)),
                np.where(np.isfinite(stretch.values), stretch.values, np.nan),
                [milliseconds(point.time) for point in stretch.points],
                [point.step for point in stretch.points],
            )
            for stretch in stretches(points)
        ]
    )


def rows(points: Iterable[MetricPoint], models: Mapping[int, str] | None = None) -> Iterator[Point]:
    """Yield the points that MLflow should have, in the order of steps.

    models: step -> id of the model that was scored at this step. Infinities become NaN, because
    MLflow would store the largest float, which no curve can show.
    """
    names: dict[str, str] = {}
    for point in points:
        at, step = milliseconds(point.time), point.step
        model = models.get(step) if models else None
        for name, value in point.values.items():
            if name not in names:
                names[name] = allowed_name(name)
            finite = value if math.isfinite(value) else math.nan
            yield Point(names[name], float(finite), at, step, model)


def _is_rewritten(run: Any, content: Content) -> bool:
    """Return True if points or params that may be in MLflow differ from those on disk."""
    ingesting = Marks.of(run.data.tags.get(INGESTING))
    if ingesting is None:
        return True
    if not (holds(content.curves, ingesting.curves) and holds(content.scores, ingesting.scores)):
        return True
    # MLflow never changes a param that is logged.
    return any(run.data.params.get(k, v) != v for k, v in content.params.items())


def _is_equal(run: Any, content: Content, tags: dict[str, str], has_artifacts: bool) -> bool:
    before = run.data.tags
    return (
        has_artifacts
        and _has_dataset(run, content)
        and before.get(INGESTED) == content.marks.text
        and all(before.get(name) == value for name, value in tags.items())
        and run.info.run_name == content.name
        and run.info.status == content.status
        and content.ended in (None, run.info.end_time)
    )


def _has_dataset(run: Any, content: Content) -> bool:
    known = [logged.dataset for logged in run.inputs.dataset_inputs] if run.inputs else []
    wanted = content.dataset
    return wanted is None or (wanted.name, wanted.digest) in [(d.name, d.digest) for d in known]


_TRAINING = ("mlflow.data.context", "training")


def _input(wanted: Dataset) -> Any:
    """Return MLflow's own data set object, with the role of training data."""
    from mlflow.entities import Dataset as MlflowDataset
    from mlflow.entities import DatasetInput, InputTag

    return DatasetInput(MlflowDataset(*wanted), [InputTag(*_TRAINING)])


def _new_dataset(wanted: Dataset) -> NewDataset:
    return NewDataset(*wanted, tags=[_TRAINING])


def _below(root: str, name: str) -> Path:
    path = Path(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _command(store: Store) -> str:
    if store.is_server:
        return store.address
    return f"mlflow server --backend-store-uri {shlex.quote(store.shown)}"


# ------------------------------------------------------------------ evaluated checkpoints


class _Models:
    """Evaluated checkpoints in MLflow's list of models, each an output of its cell's run.

    Each is an external model of MLflow 3: it has tags, params and metrics, and its weights are not
    copied. A model is identified by its tag `orch.key` and its source run. It is `READY` once its
    metrics are logged. A model that is not ready, or has wrong scores, is deleted and made again.
    MLflow is asked once for all models of an experiment, when they are first needed.
    """

    def __init__(self, client: Any, experiment_id: str):
        self._client, self._experiment_id = client, experiment_id
        self._by_run: dict[str, dict[str, Any]] | None = None

    def has(self, run: Any, wanted: Sequence[LoggedModel]) -> bool:
        """Return True if a run has all these models, and they are ready."""
        known = self._of(run) if wanted else {}
        every = [(known.get(model.key), model) for model in wanted]
        return all(
            _is_finished(mirrored, model) and _has_tags(mirrored, model)
            for mirrored, model in every
        )

    def read(self) -> None:
        """Read the models from MLflow now, before several threads need them."""
        self._all()

    def lacking(self, run: Any, wanted: Sequence[LoggedModel]) -> list[LoggedModel]:
        """Return the models that must be made. Set the tags of the others, and delete wrong
        ones."""
        known = self._of(run) if wanted else {}
        missing = []
        for model in wanted:
            logged = known.get(model.key)
            if logged is not None and _is_finished(logged, model):
                if not _has_tags(logged, model):
                    self._client.set_logged_model_tags(logged.model_id, dict(model.tags))
                continue
            if logged is not None:
                self._client.delete_logged_model(logged.model_id)
            missing.append(model)
        return missing

    def link(self, run: Any, wanted: Sequence[LoggedModel]) -> dict[int, str]:
        """Make missing models outputs of the run.

        Return train step -> id of each model that has no metrics yet. The caller logs them, then
        calls `finish`.
        """
        missing = self.lacking(run, wanted)
        waiting = {model.step: self._make(run.info.run_id, model) for model in missing}
        if waiting:
            from mlflow.entities import LoggedModelOutput

            outputs = [LoggedModelOutput(id_, step) for step, id_ in waiting.items()]
            self._client.log_outputs(run.info.run_id, outputs)
        return waiting

    def finish(self, waiting: Iterable[str]) -> None:
        """Mark models whose metrics are all logged as ready."""
        for id_ in waiting:
            self._client.finalize_logged_model(id_, "READY")

    def tidy(self, run_ids: Collection[str]) -> None:
        """Delete the models whose run is gone."""
        for run_id, models in self._all().items():
            for model in models.values() if run_id not in run_ids else ():
                self._client.delete_logged_model(model.model_id)

    def _make(self, run_id: str, model: LoggedModel) -> str:
        logged = self._client.create_logged_model(
            self._experiment_id,
            model.name,
            run_id,
            _model_tags(model),
            dict(model.params),
            "checkpoint",
        )
        return str(logged.model_id)

    def _of(self, run: Any) -> Mapping[str, Any]:
        return self._all().get(run.info.run_id, {})

    def _all(self) -> dict[str, dict[str, Any]]:
        """Return run id -> key -> model."""
        if self._by_run is None:
            self._by_run = {}
            for model in every(self._client.search_logged_models, self._experiment_id):
                if key := model.tags.get(KEY):
                    self._by_run.setdefault(model.source_run_id, {})[key] = model
        return self._by_run


def _is_finished(logged: Any, wanted: LoggedModel) -> bool:
    if logged is None or str(logged.status) != "READY":
        return False
    return bool(logged.tags.get(MODEL_DIGEST) == _model_digest(wanted))


def _has_tags(logged: Any, wanted: LoggedModel) -> bool:
    return all(logged.tags.get(name) == value for name, value in wanted.tags.items())


def _model_tags(model: LoggedModel) -> dict[str, str]:
    return {**model.tags, MODEL_DIGEST: _model_digest(model)}


def _model_digest(model: LoggedModel) -> str:
    """Return the hash of a model's content without its tags, which a person can change in
    MLflow."""
    return digest(model._replace(tags={}))


# ------------------------------------------------------------------ cells that were resumed

DURATIONS = "time/"
"""Metrics of durations. They are no results, so the first measured values stay."""
RETRAINED_BEFORE = "steps were trained again"


def is_resumed(run: Any, content: Content, ingesting: Marks | None) -> bool:
    """Return True if curves that differ from the logged ones belong to the same training, resumed.

    This holds if the first attempt started at the same time as the run, with the same params, and
    if the scores are unchanged. ingesting: the steps up to which the run was or may have been
    logged.
    """
    return (
        ingesting is not None
        and run.info.start_time == content.started
        and all(run.data.params.get(k, v) == v for k, v in content.params.items())
        and holds(content.scores, ingesting.scores)
    )


class Retrained(NamedTuple):
    """The points to log so that a run has the content of a resumed cell, and a sentence about
    them."""

    rows: list[Point]
    sentence: str


def retrained(client: Any, run: Any, points: Sequence[MetricPoint]) -> Retrained:
    """Compare all curves with the run's whole history, value by value. This needs one call per
    metric.

    Equal values are not logged again, so the earlier time stays. Other values are logged with a
    later time, and the old ones stay too.
    """
    wanted = list(rows(points))
    old_points: dict[tuple[str, int], list[Any]] = defaultdict(list)
    names = {row.key for row in wanted} & run.data.metrics.keys()
    for name in names:
        for old in client.get_metric_history(run.info.run_id, name):
            old_points[name, old.step].append(old)
    twice: set[int] = set()
    other: set[int] = set()
    missing = []
    for row in wanted:
        logged = old_points.pop((row.key, row.step), [])
        if logged and row.key.startswith(DURATIONS):
            continue
        if not any(_equal(old.value, row.value) for old in logged):
            missing.append(row)
        if any(old.timestamp != row.timestamp for old in logged):
            twice.add(row.step)
        if any(not _equal(old.value, row.value) for old in logged):
            other.add(row.step)
    # steps of an earlier attempt that the new one has not reached
    ahead = {step for _, step in old_points}
    return Retrained(missing, _sentence(twice | ahead, other, ahead))


def _sentence(twice: set[int], other: set[int], ahead: set[int]) -> str:
    if not twice:
        return RETRAINED_BEFORE
    sentence = f"steps {min(twice)} to {max(twice)} were trained again from a checkpoint"
    if other:
        return (
            f"{sentence}, with other values from step {min(other)} on: both are here, the later in "
            "time counts, and the report shows it alone"
        )
    if ahead:
        return f"{sentence}; those from step {min(ahead)} on are of the attempt before"
    return f"{sentence}, with the same values"


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


# ------------------------------------------------------------------ the mark of the last mirror


class MirrorMark:
    """mirror.json in the folder of run directories: the store's content after the last mirror.

    With it, a second mirror of the same content does not even import mlflow. It is trusted only
    for an SQLite file that was not written to since, so not for one that was deleted or replaced.
    It is locked while it is open: two mirrors of one experiment wait for each other.
    """

    def __init__(self, file: IO[str], store: Store):
        self._file, self._store = file, store

    def matches(self, content: str) -> bool:
        """Return True if the store still holds this content, by this mark."""
        self._file.seek(0)
        now = self._state(content)
        return now is not None and self._file.read() == now

    def write(self, content: str) -> None:
        """Record that the store now has this content. A note torn by a kill matches nothing."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._state(content) or "{}\n")
        self._file.flush()

    def _state(self, content: str) -> str | None:
        database, artifacts = self._store.database, self._store.artifacts
        try:
            if database is None or artifacts is None or not artifacts.is_dir():
                return None
            stat = database.stat()
        except OSError:
            return None
        plain = {
            "content": content,
            "store": digest(self._store.shown),
            "file": [stat.st_ino, stat.st_size, stat.st_mtime_ns],
        }
        return json.dumps(plain) + "\n"


def noted(folder: RunFolder, store: Store, content: str) -> bool:
    """Return True if the mark of the last mirror states that the store has this content."""
    path: Path = folder.path / "mirror.json"
    if not path.is_file():
        return False
    with telling(path), path.open(encoding="utf-8") as file:
        return MirrorMark(file, store).matches(content)


@contextmanager
def locked_mark(folder: RunFolder, store: Store) -> Iterator[MirrorMark]:
    """Open the mark of this experiment and lock it.

    Raise RunFolderError if it cannot be written.
    """
    path: Path = folder.path / "mirror.json"
    with telling(path):
        # a+ makes a missing file, and empties no file before the lock is held.
        file = path.open("a+", encoding="utf-8")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield MirrorMark(file, store)
