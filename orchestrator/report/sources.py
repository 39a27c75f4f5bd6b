"""Read the context of a report from disk, MLflow and git."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.analysis.libraries import LibrarySide, library_name, read_sides
from orchestrator.errors import EnvironmentFault, OrchError, SelectionError
from orchestrator.evaluate.baselines import scored_baselines
from orchestrator.files import read_json, read_tail
from orchestrator.launch.provenance import git_answers
from orchestrator.records import Record, Score
from orchestrator.report import Context
from orchestrator.report.provenance import Origin
from orchestrator.rundir import AttemptDir
from orchestrator.runs.experiment import Experiment
from orchestrator.tracking.links import CellRuns, cell_runs

_TAIL_BYTES = 65_536


def read_context(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    home: Path,
    faults: Sequence[str] = (),
    say: Callable[[str], None] = lambda _sentence: None,
) -> Context:
    """Return the baselines, the other libraries, and the origin of each cell.

    `home`: the folder of the page. `faults`: the faults of the scores, from `score_index`. `say`
    prints a sentence if MLflow cannot be reached.
    """
    sides = _sides(experiment, records, scores)
    return Context(
        baselines=scored_baselines(experiment.spec.evaluation, experiment.cells, experiment.folder),
        sides=sides,
        base=sides[0].libraries[0] if sides else "",
        origins=_origins(experiment, records, say),
        faults=tuple(faults),
        home=str(home.absolute()),
        written=_written_by(experiment.spec.source),
    )


def newest_result(records: Sequence[Record]) -> str:
    """Return the time at which the newest attempt ended (UTC), or an empty text without one.

    The report has this date instead of the current time, so that equal results give equal pages.
    """
    ended = [end.ended for record in records for end in record.attempts if end is not None]
    return datetime.fromtimestamp(max(ended), UTC).strftime("%Y-%m-%d %H:%M UTC") if ended else ""


def last_lines(records: Sequence[Record]) -> dict[str, str]:
    """Return cell id -> the end of stderr of each failed cell."""
    lines = {}
    for record in records:
        if record.state in ("failed", "timed_out") and record.attempts:
            path = record.directory / "attempts" / str(len(record.attempts)) / "stderr"
            with contextlib.suppress(OSError, OrchError):
                text = read_tail(path, _TAIL_BYTES).decode("utf-8", errors="replace")
                lines[record.cell.id] = text
    return lines


def _sides(
    experiment: Experiment, records: Sequence[Record], scores: Sequence[Score]
) -> list[LibrarySide]:
    """Return the sides of a comparison between libraries, or no sides for a single library."""
    declared = experiment.declared
    sides: list[LibrarySide] = []
    if len({library_name(cell.settings.backend) for cell in declared}) > 1:
        with contextlib.suppress(SelectionError):  # no cell is declared for two libraries
            for side in read_sides(experiment, declared, known=(records, scores)):
                # `extend` would lose the first side if the second one raises.
                sides.append(side)  # noqa: PERF402
    return sides


def _origins(
    experiment: Experiment, records: Sequence[Record], say: Callable[[str], None]
) -> dict[str, Origin]:
    try:
        ids = {record.cell.id for record in records}
        links = cell_runs(experiment.folder, experiment.spec.site.tracking_uri, ids)
    except EnvironmentFault as fault:
        say(f"{fault}; the report has no links to MLflow")
        links = CellRuns({})
    origins = {}
    for record in records:
        job = _job(record)
        run = links.runs.get(record.cell.id, "")
        origins[record.cell.id] = Origin(
            job=str(job.get("slurm") or job.get("job") or job.get("submission") or ""),
            orch=str(job.get("orch", "")),
            commit=str(job.get("commit", "")),
            library=str(job.get("library", "")),
            trained_by=_sharer(record),
            versions=_versions_text(job.get("versions")),
            mlflow=run,
            mlflow_url=f"{links.address}/{run}" if links.address and run else "",
        )
    return origins


def _sharer(record: Record) -> str:
    """Return the person who shared a pulled cell and its store, or an empty text if not pulled."""
    if record.last is None or not record.last.origin:
        return ""
    path = AttemptDir(record.directory / "attempts" / str(len(record.attempts)), 1).origin
    with contextlib.suppress(OrchError):
        return f"{(read_json(path) or {}).get('by', 'somebody')}, {record.last.origin}"
    return record.last.origin


def _versions_text(versions: object) -> str:
    """Return the versions as text, such as `python 3.11.7, torch 2.13.0`."""
    by_name = versions if isinstance(versions, dict) else {}
    return ", ".join(f"{name} {version}" for name, version in by_name.items())


def _job(record: Record) -> Mapping[str, Any]:
    """Return job.json of the last attempt, or an empty mapping if it cannot be read.

    `collect` reports an unreadable file.
    """
    if not record.attempts:
        return {}
    path = record.directory / "attempts" / str(len(record.attempts)) / "job.json"
    with contextlib.suppress(OrchError):
        return read_json(path) or {}
    return {}


def _written_by(source: str) -> str:
    """Return `orch 0.1.0, spec at commit abc (the spec has changes that are not committed)`."""
    orch = f"orch {__version__}"
    folder = Path(source).absolute().parent if source else None
    if folder is None or not folder.is_dir():
        return orch
    status = ["status", "--porcelain", "--", source]
    answers = git_answers(folder, (["rev-parse", "--short=12", "HEAD"], status))
    if not answers:
        return orch
    commit, changes = answers
    changed = " (the spec has changes that are not committed)" if changes else ""
    return f"{orch}, spec at commit {commit}{changed}"
