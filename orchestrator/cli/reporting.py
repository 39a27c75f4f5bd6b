"""What the report says beside the comparison, read from disk."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import __version__
from orchestrator.cli.common import say
from orchestrator.errors import EnvironmentFault, OrchError, SelectionError
from orchestrator.files import read_json
from orchestrator.records import Record, Score
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.analysis.libraries import LibrarySide
    from orchestrator.report import Context, Origin


def context(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    home: Path,
    faults: Sequence[str] = (),
) -> "Context":
    """Baselines, the other libraries, and the origin of each cell."""
    from orchestrator.cli.stages import known_baselines
    from orchestrator.report import Context

    sides = _sides(experiment, records, scores)
    return Context(
        baselines=known_baselines(experiment),
        sides=sides,
        base=sides[0].libraries[0] if sides else "",
        origins=_origins(experiment, records),
        faults=tuple(faults),
        home=str(home.absolute()),
        written=_written(experiment.spec.source),
    )


# ---------------------------------------------------------------- other libraries


def _sides(
    experiment: Experiment, records: Sequence[Record], scores: Sequence[Score]
) -> "list[LibrarySide]":
    """Of experiments that ask one cell of several libraries; first the side that runs here."""
    from orchestrator.analysis.libraries import LibraryCell, library_name, library_side
    from orchestrator.rundir import RunFolder
    from orchestrator.spec.rehearse import rehearse

    declared = experiment.declared
    if len({library_name(cell.settings.backend) for cell in declared}) < 2:
        return []
    small = [LibraryCell(cell, rehearse([cell])[0].id) for cell in declared]
    full = [LibraryCell(cell, cell.id) for cell in declared if cell.scale == "full"]
    here: Any = "predicted" if experiment.scale == "micro" else "observed"
    found = []
    with contextlib.suppress(SelectionError):  # no cell is asked of two libraries
        found.append(library_side(here, small if here == "predicted" else full, records, scores))
        spec = experiment.spec
        other: Any = "observed" if here == "predicted" else "predicted"
        scale = "full" if other == "observed" else "micro"
        folder = RunFolder.of(spec.site.runs_dir, spec.name, scale)
        if folder.path.exists():
            cells = [a.cell for a in full] if other == "observed" else list(rehearse(declared))
            theirs, known = _read(experiment, folder, cells)
            found.append(library_side(other, full if other == "observed" else small, theirs, known))
    return found


def _read(experiment: Experiment, folder: Any, cells: Sequence[Any]) -> tuple[Any, Any]:
    from orchestrator.evaluate import score_index
    from orchestrator.runs.collect import collect

    return collect(cells, folder), score_index(cells, experiment.spec.evaluation, folder).scores


# ---------------------------------------------------------------- where cells come from


def _origins(experiment: Experiment, records: Sequence[Record]) -> "dict[str, Origin]":
    from orchestrator.report import Origin

    runs, address = _mlflow(experiment, {record.cell.id for record in records})
    found = {}
    for record in records:
        job = _job(record)
        run = runs.get(record.cell.id, "")
        name = str(job.get("slurm") or job.get("job") or job.get("submission") or "")
        found[record.cell.id] = Origin(
            job=name,
            orch=str(job.get("orch", "")),
            commit=str(job.get("commit", "")),
            library=str(job.get("library", "")),
            versions=_listed(job.get("versions")),
            mlflow=run,
            mlflow_url=f"{address}/{run}" if address and run else "",
        )
    return found


def _listed(versions: object) -> str:
    """`python 3.11.7, torch 2.13.0`."""
    found = versions if isinstance(versions, dict) else {}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _job(record: Record) -> Mapping[str, Any]:
    """job.json of the last attempt; what cannot be read is told elsewhere, by `collect`."""
    if not record.attempts:
        return {}
    path = record.directory / "attempts" / str(len(record.attempts)) / "job.json"
    with contextlib.suppress(OrchError):
        return read_json(path) or {}
    return {}


def _mlflow(experiment: Experiment, cells: Collection[str]) -> tuple[dict[str, str], str]:
    """Cell id -> MLflow run, and the address below which runs have pages (of a server only).

    A store of ours is read as the SQLite file it is: MLflow itself takes ten seconds to start.
    """
    from orchestrator.tracking.store import store_of

    store = store_of(experiment.folder, experiment.spec.site.tracking_uri)
    if store.database is not None:
        return _in_sqlite(store.database, experiment.folder.experiment), ""
    if not store.is_server:
        return {}, ""
    from orchestrator.search.journal import links
    from orchestrator.tracking.store import connected

    try:
        found = links(experiment.folder, experiment.spec.site.tracking_uri, cells)
        with connected(store) as client:
            known = client.get_experiment_by_name(experiment.folder.experiment)
    except EnvironmentFault as fault:
        say(f"{fault}; the report has no links to MLflow")
        return {}, ""
    if known is None:
        return found, ""
    return found, f"{store.address}/#/experiments/{known.experiment_id}/runs"


def _in_sqlite(database: Path, name: str) -> dict[str, str]:
    if not database.exists():
        return {}
    query = (
        "select tags.value, runs.run_uuid from runs join tags on tags.run_uuid = runs.run_uuid "
        "join experiments on experiments.experiment_id = runs.experiment_id "
        "where tags.key = 'orch.cell_id' and experiments.name = ? "
        "and runs.lifecycle_stage = 'active'"
    )
    with contextlib.suppress(sqlite3.Error):  # being made, or of another MLflow: links are extra
        opened = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(opened) as connection:
            return dict(connection.execute(query, (name,)).fetchall())
    return {}


def _written(source: str) -> str:
    """`orch 0.1.0, spec at commit abc (with changes that are not committed)`."""
    told = f"orch {__version__}"
    git, folder = shutil.which("git"), Path(source).absolute().parent if source else None
    if git is None or folder is None or not folder.is_dir():
        return told
    asked = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", source])
    answers = []
    for arguments in asked:
        done = subprocess.run(
            [git, "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
        if done.returncode != 0:
            return told
        answers.append(done.stdout.strip())
    changed = " (the spec has changes that are not committed)" if answers[1] else ""
    return f"{told}, spec at commit {answers[0]}{changed}"
