"""The mirror: makes MLflow equal to the run directories, through MLflow's public client.

Mirroring twice changes nothing, for two reasons. Timestamps come from the metrics file. And before
any point is logged, the tag `orch.ingesting` records up to which step points may exist in MLflow,
and their hash. After logging, `orch.ingested` records the same, and the next mirror logs only later
points.

MLflow cannot delete a point. If the history on disk is another than the logged one (a cell resumed
from a checkpoint and trained some steps again, its directory was removed, its scores were made
again), the run is deleted and created again, so that it has what the run directories have.

Artifacts of the default store have addresses without a folder (`mlflow-artifacts:/<experiment>`):
they stay right if the runs folder is moved, copied, or reached by another path.
"""

import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.identity import digest
from orchestrator.records import Cell, Record, Score, Spec
from orchestrator.rundir import RunFolder
from orchestrator.tracking.backpressure import PatientClient
from orchestrator.tracking.checkpoints import Models
from orchestrator.tracking.content import KEY, NOTE, Content, Dataset, Marks
from orchestrator.tracking.mark import locked_mark, noted
from orchestrator.tracking.names import tag_text
from orchestrator.tracking.points import INGESTED, INGESTING, Point, is_rewritten, lacking, rows
from orchestrator.tracking.runs import SUMMARY, pruned_cells, runs
from orchestrator.tracking.store import Store, connected, every, store_of
from orchestrator.tracking.views import PREFIX, VIEW_TAG, View, resolved, runs_page, views

PARENT = "mlflow.parentRunId"
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow's page opens on curves
ROWS_PER_CALL, PARAMS_PER_CALL = 1000, 100
"""MLflow's limits for one log_batch."""

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


class Wanted(NamedTuple):
    """What MLflow should have of an experiment."""

    runs: Sequence[Content]
    views: Sequence[View]
    pruned: frozenset[str]

    @property
    def digest(self) -> str:
        """Return a digest that changes whenever any of this changes."""
        return digest([[run.digest for run in self.runs], self.views, sorted(self.pruned)])


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
    with Mirror(spec, folder, uri) as opened:
        return opened.complete(records, scores, on_progress, only, dry_run=dry_run)


class Mirror:
    """The mirror of one experiment. MLflow is opened when it is first needed, and once.

    `add` copies some cells, `complete` the whole experiment; each locks mirror.json while it
    works. `report` counts each run once, whatever was done to it.
    """

    def __init__(self, spec: Spec, folder: RunFolder, uri: str | None = None):
        self._spec, self._folder = spec, folder
        self._store = store_of(folder, uri or spec.site.tracking_uri)
        self._stack = ExitStack()
        self._writer: _Writer | None = None
        self._last = ""
        """What the mark said after our last write."""
        self.report = MirrorReport(folder.experiment, self._store.shown, _command(self._store))

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def add(
        self, records: Sequence[Record], scores: Iterable[Score], cells: Sequence[Cell]
    ) -> None:
        """Copy the runs of these records. cells: all cells of the experiment, for their names."""
        some = runs(records, scores, self._spec, self._folder, cells)
        if not some:
            return
        with locked_mark(self._folder, self._store) as mark:
            self._open(is_ours=mark.matches(self._last)).add(some)
            self._last = digest([run.digest for run in some])
            mark.write(self._last)

    def complete(
        self,
        records: Sequence[Record],
        scores: Iterable[Score],
        on_progress: MirrorProgress = lambda _done, _total: None,
        only: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> MirrorReport:
        """Make MLflow equal to these records and scores; see `mirror`."""
        all_runs = runs(records, scores, self._spec, self._folder)
        chosen = [
            run for run in all_runs if only is None or run.cell_id is None or run.cell_id in only
        ]
        wanted = Wanted(chosen, views(records), pruned_cells(self._folder))
        if not chosen:
            return self.report
        if dry_run:
            return self._foresee(wanted)
        with locked_mark(self._folder, self._store) as mark:
            if mark.matches(wanted.digest):
                self.report.unchanged = len(chosen)
                return self.report
            self._open(is_ours=mark.matches(self._last)).make(wanted, on_progress)
            self._last = wanted.digest
            mark.write(self._last)
        return self.report

    def _open(self, *, is_ours: bool) -> "_Writer":
        """Return the writer. is_ours: nobody has written to the store since our last write."""
        if self._writer is None:
            client = self._stack.enter_context(connected(self._store))
            patient = PatientClient(client) if self._store.is_server else client
            self._writer = _Writer(patient, self._store, self._folder, self.report)
        elif not is_ours:
            self._writer.forget()
        return self._writer

    def _foresee(self, wanted: Wanted) -> MirrorReport:
        """Count in the report what `complete` would do. Read MLflow, but do not create a missing
        database."""
        if noted(self._folder, self._store, wanted.digest):
            self.report.unchanged = len(wanted.runs)
        elif self._store.database is not None and not self._store.database.exists():
            self.report.created = len(wanted.runs)
        else:
            self._open(is_ours=True).foresee(wanted)
        return self.report


class _Writer:
    """The runs of one experiment in an open store, and what was written to them."""

    def __init__(self, client: Any, store: Store, folder: RunFolder, report: MirrorReport):
        self.client, self.store, self.folder, self.report = client, store, folder, report
        self._counted: dict[str, str] = {}
        """Key of a run -> as what the report counts it."""
        self.forget()

    def forget(self) -> None:
        """Forget what the store holds: somebody else has written to it."""
        self._experiment: Any = None
        self._present: dict[str, Any] = {}
        """Key -> run, or its id once it was written to."""
        self._written: dict[str, str] = {}
        """Key -> digest of the content that was written."""

    def add(self, some: Sequence[Content]) -> None:
        """Make the store equal to some runs. Their parents come first, if they are missing."""
        self._read(some[0])
        for content in some:
            if content.cell_id is not None or content.key not in self._present:
                self._complete(content)

    def make(self, wanted: Wanted, on_progress: MirrorProgress) -> None:
        """Make the store equal to the wanted runs. Delete the runs of the pruned cells.

        on_progress: called with the number of finished runs and of all runs.
        """
        summary = wanted.runs[0]
        self._read(summary)
        self._delete(wanted)
        # A run names its parent by MLflow's id, so parents are made first.
        parents = [content for content in wanted.runs if content.cell_id is None]
        cells = [content for content in wanted.runs if content.cell_id is not None]
        for content in parents:
            self._complete(content)
        self._describe(summary, wanted.views)
        for done, content in enumerate(cells, start=len(parents)):
            on_progress(done, len(wanted.runs))
            self._complete(content)
        self.models.tidy({self._id_of(key) for key in self._present})
        on_progress(len(wanted.runs), len(wanted.runs))

    def foresee(self, wanted: Wanted) -> None:
        """Count what `make` would do. Write nothing."""
        self._experiment = self.client.get_experiment_by_name(self.folder.experiment)
        if self._experiment is None:
            self.report.created = len(wanted.runs)
            return
        self._read_runs()
        keys = {content.key for content in wanted.runs}
        self.report.deleted = sum(
            f"cell/{id_}" in self._present and f"cell/{id_}" not in keys for id_ in wanted.pruned
        )
        for content in wanted.runs:
            run = self._present.get(content.key)
            if run is None or is_rewritten(run, content):
                self.report.created += 1
            elif self._is_held(run, content):
                self.report.unchanged += 1
            else:
                self.report.updated += 1

    # -------------------------------------------------------------- the experiment

    def _read(self, summary: Content) -> None:
        """Read the experiment and its runs, if they are not known. Create or restore it."""
        if self._experiment is not None:
            return
        name, where = self.folder.experiment, self.store.artifacts
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        if where is not None:
            where.mkdir(parents=True, exist_ok=True)
        if experiment is None:
            tags = {**_KIND, "scale": summary.tags["scale"]}
            created = self.client.create_experiment(name, self.store.artifact_location, tags)
            experiment = self.client.get_experiment(self._checked_id(created))
        self._checked_id(experiment.experiment_id)
        self._experiment = experiment
        page = runs_page(experiment.experiment_id)
        if self.store.is_server:
            self.report.view = f"{self.store.address}/{page}"
        else:
            self.report.view += f"\n  then open http://127.0.0.1:5000/{page}"
        self._read_runs()

    def _checked_id(self, answered: object) -> str:
        """Return an id from an answer of MLflow. Raise EnvironmentFault if it is no id."""
        if not isinstance(answered, str) or not answered:
            raise EnvironmentFault(
                f"MLflow at {self.store.shown} cannot be used: what answers there leaves out the "
                "id of what it was asked for, so it is not MLflow (a proxy, a login page?). "
                "Nothing is lost: the run directories hold everything. Check site.tracking_uri or "
                "MLFLOW_TRACKING_URI, then `orch report` mirrors what is missing"
            )
        return answered

    def _describe(self, summary: Content, ready: Sequence[View]) -> None:
        """Set the experiment's own tags: its description, and the views."""
        id_ = self._experiment.experiment_id
        before = self.client.get_experiment(id_).tags
        note = self._linked(summary.tags[NOTE], self._id_of(summary.key))
        tags = {
            **_KIND,
            "scale": summary.tags["scale"],
            NOTE: note,
            **dict(view.tag for view in ready),
        }
        for key, value in tags.items():
            if before.get(key) != value:
                self.client.set_experiment_tag(id_, key, value)
        for key in before.keys() - tags.keys():
            if key.startswith(VIEW_TAG + PREFIX):
                self.client.delete_experiment_tag(id_, key)

    def _linked(self, note: str, summary_id: str) -> str:
        return tag_text(resolved(note, self._experiment.experiment_id, summary_id))

    # -------------------------------------------------------------- the runs that are there

    def _read_runs(self) -> None:
        """Read orch's runs by key, and the models. Of runs with one key the oldest counts."""
        self.models = Models(self.client, self._experiment.experiment_id)
        id_, oldest_first = self._experiment.experiment_id, ["attributes.start_time ASC"]
        self._present = {}
        for run in list(every(self.client.search_runs, id_, order_by=oldest_first)):
            if key := run.data.tags.get(KEY):
                self._present.setdefault(key, run)

    def _run(self, key: str) -> Any:
        """Return the run of this key, as it is now; None without one."""
        run = self._present.get(key)
        return self.client.get_run(run) if isinstance(run, str) else run

    def _id_of(self, key: str) -> str:
        run = self._present.get(key, "")
        return run if isinstance(run, str) else str(run.info.run_id)

    def _delete(self, wanted: Wanted) -> None:
        """Delete the runs of pruned cells, and of studies without other cells."""
        keys = {content.key for content in wanted.runs}
        for key in [f"cell/{id_}" for id_ in wanted.pruned if f"cell/{id_}" not in keys]:
            if (run := self._run(key)) is None:
                continue
            del self._present[key]
            self.client.delete_run(run.info.run_id)
            self.report.deleted += 1
            parent = run.data.tags.get(PARENT)
            others = [self._run(other) for other in self._present]
            if any(other.data.tags.get(PARENT) == parent for other in others):
                continue
            for other in [k for k in self._present if self._id_of(k) == parent and k not in keys]:
                self.client.delete_run(self._id_of(other))
                del self._present[other]

    def _tags(self, content: Content) -> dict[str, str]:
        """Return the tags that a run should have."""
        tags = dict(content.tags)
        if content.parent:
            tags[PARENT] = self._id_of(content.parent)
        return tags | {NOTE: self._linked(content.tags[NOTE], self._id_of(SUMMARY))}

    def _is_held(self, run: Any, content: Content) -> bool:
        """Return True if a run already has its content, including models and artifacts."""
        before = run.data.tags
        return (
            self.models.has(run, content.models)
            and self._has_artifacts(run, content)
            and _has_dataset(run, content)
            and before.get(INGESTED) == content.marks.text
            and all(before.get(name) == value for name, value in self._tags(content).items())
            and run.info.run_name == content.name
            and run.info.status == content.status
            and content.ended in (None, run.info.end_time)
        )

    # -------------------------------------------------------------- one run

    def _complete(self, content: Content) -> None:
        """Give one run its content: tags, artifacts, params, points, models, status. Its mark
        comes last."""
        if self._written.get(content.key) == content.digest:
            self._count(content.key, "unchanged")
            return
        run = self._run(content.key)
        if run is not None and self._is_held(run, content):
            self._count(content.key, "unchanged")
        else:
            self._write(run, content)
        self._written[content.key] = content.digest

    def _write(self, run: Any, content: Content) -> None:
        run = self._created(run, content) or self._updated(run, content)
        run_id = run.info.run_id
        self._present[content.key] = run_id
        if not self._has_artifacts(run, content):
            self._upload(run, content)
        if content.dataset is not None and not _has_dataset(run, content):
            self._log_dataset(run_id, content.dataset)
        params = {k: v for k, v in content.params.items() if k not in run.data.params}
        points = lacking(content, Marks.of(run.data.tags.get(INGESTED)) or Marks(names=()))
        # A score is logged with the id of its model, so the model comes first.
        models = self.models.link(run, content.models)
        scored = [point for point in content.scores if point.step in models]
        self._log(run_id, [*points, *rows(scored, models=models)], params)
        self.models.finish(run, models.values())
        if content.ended is not None:
            self.client.set_terminated(run_id, content.status, content.ended)
        elif run.info.status != content.status:
            self.client.update_run(run_id, status=content.status)
        self.client.set_tag(run_id, INGESTED, content.marks.text)

    def _created(self, run: Any, content: Content) -> Any:
        """Return a new run, if there is none, or if the present one has another history; else
        None."""
        if run is not None:
            if not is_rewritten(run, content):
                return None
            self.client.delete_run(run.info.run_id)
            self.report.replaced += 1
            del self._present[content.key]
        # The intent is written before the points: after a kill the next mirror knows which points
        # may be in MLflow.
        tags = {**self._tags(content), INGESTING: content.marks.text}
        id_ = self._experiment.experiment_id
        created = self.client.create_run(id_, content.started, tags, content.name)
        run_id = self._checked_id(created.info.run_id)
        if content.key == SUMMARY:  # its note links to itself
            self.client.set_tag(run_id, NOTE, self._linked(content.tags[NOTE], run_id))
        self._count(content.key, "created")
        return created

    def _updated(self, run: Any, content: Content) -> Any:
        """Set the tags and the name of a run, and the intent. Return the run as it was before."""
        from mlflow.entities import RunTag

        run_id, before = run.info.run_id, run.data.tags
        tags = {**self._tags(content), INGESTING: content.marks.text}
        if run.info.run_name != content.name:
            self.client.update_run(run_id, name=content.name)
        changed = [RunTag(k, v) for k, v in tags.items() if before.get(k) != v]
        self.client.log_batch(run_id, tags=changed)
        done = Marks.of(before.get(INGESTED)) or Marks()
        for stale in set(done.tags) & before.keys() - tags.keys():
            self.client.delete_tag(run_id, stale)
        self._count(content.key, "updated")
        return run

    def _count(self, key: str, kind: str) -> None:
        """Count a run in the report as created, updated or unchanged: the first of these that
        holds for it."""
        order = ("created", "updated", "unchanged")
        before = self._counted.get(key)
        if before is None or order.index(kind) < order.index(before):
            self._counted[key] = kind
            for name in order:
                setattr(self.report, name, sum(k == name for k in self._counted.values()))

    def _log_dataset(self, run_id: str, dataset: Dataset) -> None:
        """Log the data set of a run, as its training data."""
        from mlflow.entities import Dataset as MlflowDataset
        from mlflow.entities import DatasetInput, InputTag

        training = [InputTag("mlflow.data.context", "training")]
        datasets = [DatasetInput(MlflowDataset(*dataset), training)]
        self.client.log_inputs(run_id, datasets=datasets)

    def _log(self, run_id: str, points: Sequence[Point], params: dict[str, str]) -> None:
        from mlflow.entities import Metric, Param

        named = [Param(key, value) for key, value in params.items()]
        for start in range(0, len(named), PARAMS_PER_CALL):
            self.client.log_batch(run_id, params=named[start : start + PARAMS_PER_CALL])
        for start in range(0, len(points), ROWS_PER_CALL):
            part = [Metric(*point) for point in points[start : start + ROWS_PER_CALL]]
            self.client.log_batch(run_id, metrics=part)
        self.report.rows += len(points)

    def _has_artifacts(self, run: Any, content: Content) -> bool:
        done = Marks.of(run.data.tags.get(INGESTED)) or Marks()
        if done.artifacts != content.marks.artifacts:
            return False
        where = self.store.artifacts
        return not done.artifacts or where is None or (where / run.info.run_id).is_dir()

    def _upload(self, run: Any, content: Content) -> None:
        """Copy the artifacts: into the folder of the default store, else by MLflow's client."""
        with ExitStack() as stack:
            if self.store.ours and self.store.artifacts is not None:
                target = self.store.artifacts / run.info.run_id / "artifacts"
            else:
                target = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, text in content.texts.items():
                _below(target, name).write_text(text, encoding="utf-8")
            for name, file in content.files.items():
                if file.is_file():
                    shutil.copyfile(file, _below(target, name))
            if not self.store.ours:
                self.client.log_artifacts(run.info.run_id, str(target))


def _has_dataset(run: Any, content: Content) -> bool:
    known = [logged.dataset for logged in run.inputs.dataset_inputs] if run.inputs else []
    wanted = content.dataset
    return wanted is None or (wanted.name, wanted.digest) in [(d.name, d.digest) for d in known]


def _below(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _command(store: Store) -> str:
    if store.is_server:
        return store.address
    command = f"mlflow server --backend-store-uri {shlex.quote(store.shown)}"
    if store.ours and store.artifacts is not None:
        command += f" --artifacts-destination {shlex.quote(str(store.artifacts.parent))}"
    return command
