"""The mirror: makes MLflow equal to the run directories, through MLflow's public client.

Mirroring twice changes nothing, for two reasons. Timestamps come from the metrics file. And before
any point is logged, the tag `orch.ingesting` records how many points of each metric may exist in
MLflow, and their hash. After logging, `orch.ingested` records the same, and the next mirror logs
only the others.

MLflow cannot delete a point. If the history on disk is another than the logged one (a cell resumed
from a checkpoint and trained some steps again, its directory was removed, its scores were made
again), the run is deleted and created again, so that it has what the run directories have.

Artifacts of the default store have addresses without a folder (`mlflow-artifacts:/<experiment>`):
they stay right if the runs folder is moved, copied, or reached by another path.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import EnvironmentFault
from orchestrator.files import take_lock, telling
from orchestrator.records import Record, Score, Spec
from orchestrator.rundir import RunFolder
from orchestrator.tracking.content import (
    INGESTED,
    INGESTING,
    KEY,
    NOTE,
    Content,
    Marks,
    Point,
)
from orchestrator.tracking.links import runs_page
from orchestrator.tracking.runs import pruned_cells, runs
from orchestrator.tracking.store import Store, connected, every, store_of

_KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow's page opens on curves
ROWS_PER_CALL, PARAMS_PER_CALL = 1000, 100
"""MLflow's limits for one log_batch."""
LOCK = "mirror.lock"
"""Two mirrors of one experiment wait for each other."""


@dataclass
class MirrorReport:
    """The result of a mirror. `view` is the page of a server; for other stores `orch dashboard`
    starts one."""

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
) -> MirrorReport:
    """Make MLflow equal to these records and scores. A second call changes nothing.

    The store is `uri`, else the spec's `site.tracking_uri`, else $MLFLOW_TRACKING_URI, else
    `mlflow.db` in the runs folder. Only launched cells have runs. Runs of pruned cells are deleted.
    Runs of other cells that are not among the records are left unchanged. The files in
    `folder.report` become artifacts of the run `summary`. Raise EnvironmentFault if MLflow does not
    answer, and RunFolderError if the folder cannot be written.
    """
    store = store_of(folder, uri or spec.site.tracking_uri)
    report = MirrorReport(folder.experiment, store.shown)
    every_run = runs(records, scores, spec, folder)
    if not every_run:
        return report
    path = folder.path / LOCK
    with telling(path):
        lock = path.open("a", encoding="utf-8")
    with lock:
        take_lock(lock)
        with connected(store) as client:
            writer = _Writer(client, store, folder, report)
            writer.make(every_run, pruned_cells(folder))
    return report


class _Writer:
    """The runs of one experiment in an open store."""

    def __init__(self, client: Any, store: Store, folder: RunFolder, report: MirrorReport):
        self.client, self.store, self.folder, self.report = client, store, folder, report
        self._experiment: Any = None
        self._present: dict[str, Any] = {}
        """Key -> run."""

    def make(self, contents: Sequence[Content], pruned: Collection[str]) -> None:
        """Make the store equal to the contents of all runs, the summary first. Delete the runs of
        the pruned cells."""
        self._open_experiment(contents[0])
        self._read_runs()
        for key in {f"cell/{id_}" for id_ in pruned} & self._present.keys():
            if not any(content.key == key for content in contents):
                self.client.delete_run(self._present.pop(key).info.run_id)
                self.report.deleted += 1
        for content in contents:
            self._complete(content)

    # -------------------------------------------------------------- the experiment

    def _open_experiment(self, summary: Content) -> None:
        """Read the experiment. Create or restore it."""
        name, where = self.folder.experiment, self.store.artifacts
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        if where is not None:
            where.mkdir(parents=True, exist_ok=True)
        tags = {**_KIND, "scale": summary.tags["scale"], NOTE: summary.tags[NOTE]}
        if experiment is None:
            created = self.client.create_experiment(name, self.store.artifact_location, tags)
            experiment = self.client.get_experiment(created)
        if not experiment.experiment_id:
            raise EnvironmentFault(
                f"what answers at {self.store.shown} is no MLflow. Nothing is lost: `orch report` "
                "mirrors what is missing"
            )
        for key, value in tags.items():
            if experiment.tags.get(key) != value:
                self.client.set_experiment_tag(experiment.experiment_id, key, value)
        self._experiment = experiment
        if self.store.is_server:
            self.report.view = f"{self.store.address}/{runs_page(experiment.experiment_id)}"

    # -------------------------------------------------------------- the runs that are there

    def _read_runs(self) -> None:
        """Read orch's runs by key. Of runs with one key the oldest counts."""
        id_, oldest_first = self._experiment.experiment_id, ["attributes.start_time ASC"]
        for run in list(every(self.client.search_runs, id_, order_by=oldest_first)):
            if key := run.data.tags.get(KEY):
                self._present.setdefault(key, run)

    def _is_held(self, run: Any, content: Content) -> bool:
        """Return True if a run already has its content, including artifacts."""
        before = run.data.tags
        return (
            self._has_artifacts(run, content)
            and before.get(INGESTED) == content.marks.text
            and all(before.get(name) == value for name, value in content.tags.items())
            and run.info.run_name == content.name
            and run.info.status == content.status
            and content.ended in (None, run.info.end_time)
        )

    # -------------------------------------------------------------- one run

    def _complete(self, content: Content) -> None:
        """Give one run its content: tags, artifacts, params, points, status. Its mark comes
        last."""
        run = self._present.get(content.key)
        if run is not None and self._is_held(run, content):
            self.report.unchanged += 1
            return
        if run is not None and content.is_rewritten(run):
            self.client.delete_run(run.info.run_id)
            self.report.replaced += 1
            run = None
        run = self._created(content) if run is None else self._updated(run, content)
        run_id = run.info.run_id
        if not self._has_artifacts(run, content):
            self._upload(run, content)
        params = {k: v for k, v in content.params.items() if k not in run.data.params}
        self._log(run_id, content.lacking(run), params)
        if content.ended is not None:
            self.client.set_terminated(run_id, content.status, content.ended)
        elif run.info.status != content.status:
            self.client.update_run(run_id, status=content.status)
        self.client.set_tag(run_id, INGESTED, content.marks.text)

    def _created(self, content: Content) -> Any:
        """Return a new run."""
        # The intent is written before the points: after a kill the next mirror knows which points
        # may be in MLflow.
        tags = {**content.tags, INGESTING: content.marks.text}
        id_ = self._experiment.experiment_id
        self.report.created += 1
        return self.client.create_run(id_, content.started, tags, content.name)

    def _updated(self, run: Any, content: Content) -> Any:
        """Set the tags and the name of a run, and the intent. Return the run as it was before."""
        from mlflow.entities import RunTag

        run_id, before = run.info.run_id, run.data.tags
        tags = {**content.tags, INGESTING: content.marks.text}
        if run.info.run_name != content.name:
            self.client.update_run(run_id, name=content.name)
        changed = [RunTag(k, v) for k, v in tags.items() if before.get(k) != v]
        self.client.log_batch(run_id, tags=changed)
        for stale in set(Marks.of(run, INGESTED).tags) & before.keys() - tags.keys():
            self.client.delete_tag(run_id, stale)
        self.report.updated += 1
        return run

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
        done = Marks.of(run, INGESTED)
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


def _below(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
