"""What a report's numbers rest on: read from disk, MLflow and git, and shown as sections.

`read_context` reads it. The sections are on limits, failures, methods, and provenance.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from orchestrator import plugins
from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.libraries import LibrarySide, read_sides
from orchestrator.analysis.runs import MeasuredRun
from orchestrator.analysis.stats import ALPHA, LEVEL, PLANNED, POWER
from orchestrator.analysis.text import counted, listed, number_text
from orchestrator.errors import EnvironmentFault, OrchError, SelectionError
from orchestrator.evaluate import ScoredBaseline
from orchestrator.evaluate.baselines import scored_baselines
from orchestrator.files import read_json, read_tail
from orchestrator.launch.provenance import CHANGED, git_answers
from orchestrator.library import neighbour
from orchestrator.library.neighbour import library_name
from orchestrator.metrics.names import is_divergence
from orchestrator.records import Baseline, Record, Score, Spec
from orchestrator.report.model import Entry, Link, ReportTable, ReportText, Section
from orchestrator.report.words import limit, methods, section
from orchestrator.runs.experiment import Experiment
from orchestrator.settings import Settings
from orchestrator.tracking.links import CellRuns, cell_runs
from orchestrator.version import __version__


@dataclass(frozen=True)
class Origin:
    """The facts about a cell's last attempt that are not in its record."""

    job: str = ""
    """The scheduler's job id, or the process."""
    orch: str = ""
    """orch's version at launch."""
    commit: str = ""
    """The commit of orch's source at launch, with `+changes` if the checkout had changes."""
    library: str = ""
    """The library and release that trained the cell, from its plan."""
    versions: str = ""
    """The versions of Python and its packages, if training ran in orch's environment."""
    mlflow: str = ""
    mlflow_url: str = ""


@dataclass(frozen=True)
class Context:
    """The content of the page that is not part of the comparison. `read_context` reads it."""

    baselines: Sequence[ScoredBaseline] = ()
    sides: Sequence[LibrarySide] = ()
    """The libraries of a comparison; empty for one library."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Cell id -> the facts about its last attempt."""
    faults: Sequence[str] = ()
    """One sentence for each evaluation that could not be read, averaged or compared."""
    home: str = ""
    """The folder of the page, for relative links."""
    written: str = ""


_TAIL_BYTES = 65_536


def read_context(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    home: Path,
    faults: Sequence[str],
    say: Callable[[str], None],
) -> Context:
    """Return the baselines, the other libraries, and the origin of each cell.

    `home`: the folder of the page. `faults`: the faults of the scores, from `score_index`. `say`
    prints a sentence if MLflow cannot be reached.
    """
    sides = _sides(experiment, records, scores)
    return Context(
        baselines=scored_baselines(experiment.spec.evaluation, experiment.cells, experiment.folder),
        sides=sides,
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
            versions=_versions_text(job.get("versions")),
            mlflow=run,
            mlflow_url=f"{links.address}/{run}" if links.address and run else "",
        )
    return origins


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


# The sections.


def limits_section(
    comparison: Comparison,
    scores: Sequence[Score],
    spec: Spec,
    baselines: Sequence[ScoredBaseline],
) -> Section:
    """Return a section on the limits of the experiment, the most important first."""
    points = (
        *_scale_limits(comparison.runs),
        *_seed_limits(comparison),
        *_unfinished_limits(comparison),
        *_evaluation_limits(scores, spec),
        *_baseline_limits(spec, [one.baseline for one in baselines if one.scores]),
        limit("uncorrected"),
    )
    return section("limits", points=points)


def _scale_limits(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    if not is_micro(runs):
        return
    yield limit("micro")
    libraries = {name for run in runs for name in run.traits.get("backend", "").split(" | ")}
    if named := sorted(libraries - {"", "micro"}):
        yield limit("dialect", libraries=listed(named))


def _baseline_limits(spec: Spec, scored: Sequence[Baseline]) -> Iterator[str]:
    known = {(one.model, one.chat_template) for one in scored}
    missing = [
        f"{one.model} (chat template: {one.chat_template})"
        for one in spec.evaluation.baselines
        if (one.model, one.chat_template) not in known
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        yield limit("baselines", baselines=f"{listed(missing)} {verb}")


def is_micro(runs: Sequence[MeasuredRun]) -> bool:
    """Return True if these runs are rehearsals at micro scale."""
    return any(run.record.cell.scale == "micro" for run in runs)


def _seed_limits(comparison: Comparison) -> Iterator[str]:
    counts = sorted({c.num_finished for c in comparison.configurations})
    if not counts:
        return
    spread = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else counted(counts[0], "seed")
    spread = f"{spread} finished"
    finals = [c.finals.get(comparison.in_domain or "") for c in comparison.configurations]
    widths = [one.half_width for one in finals if one is not None and one.half_width is not None]
    if not widths:
        yield limit("no_intervals", spread=spread)
        return
    yield limit("width", spread=spread, width=number_text(median(widths)))
    yield limit("seeds")


def _unfinished_limits(comparison: Comparison) -> Iterator[str]:
    states = Counter(r.record.state for r in comparison.runs if r.record.state != "succeeded")
    if states:
        named = listed(f"{count} {state}" for state, count in sorted(states.items()))
        yield limit("unfinished", total=counted(len(comparison.runs), "cell"), states=named)


def _evaluation_limits(scores: Sequence[Score], spec: Spec) -> Iterator[str]:
    if not scores:
        yield limit("unscored")
        return
    tasks = {score.task: score for score in scores if not is_divergence(score.metric)}
    sizes = (f"{name} ({one.num_items} × {one.repeats})" for name, one in sorted(tasks.items()))
    yield limit("sizes", sizes=listed(sizes))
    if any(score.metric.startswith("unboxed@") for score in scores):
        yield limit("unboxed")
    if spec.evaluation.sampling.min_p == 1.0 or any(s.sampling.min_p == 1.0 for s in scores):
        yield limit("greedy")


MAX_LINES = 30
MAX_CHARACTERS = 4000
"""Maximum number of lines and characters shown from the end of a failed cell's output."""


def failures_section(records: Sequence[Record], last_lines: Mapping[str, str]) -> Section | None:
    """Return a section on failed cells and unreadable files, or None without any.

    It shows the last lines of each failed cell's output.
    """
    entries = []
    for record in records:
        end = record.last
        if record.state in ("failed", "timed_out"):
            why = ": ".join(filter(None, (end.failure, end.message) if end else ()))
            title = f"{record.cell.slug} ({record.cell.id}) {record.state}"
            lines = _tail(last_lines.get(record.cell.id, ""))
            entries.append(
                Entry(title, "\n".join(filter(None, (_tail(why), lines))), record.cell.id)
            )
        if record.faults:
            title = f"{record.cell.slug} ({record.cell.id}): files that could not be read in full"
            entries.append(Entry(title, _tail("\n".join(record.faults)), record.cell.id))
    if not entries:
        return None
    return section("failures", entries=tuple(entries))


def _tail(text: str) -> str:
    lines = "\n".join(text.rstrip().splitlines()[-MAX_LINES:])
    return lines if len(lines) <= MAX_CHARACTERS else f"... {lines[-MAX_CHARACTERS:]}"


def methods_section() -> Section:
    """Return a section on the statistical methods behind the numbers."""
    shown = {
        "level": f"{100 * LEVEL:.0f} %",
        "planned": f"{PLANNED:.0%}",
        "alpha": f"{ALPHA:.2f}",
        "power": f"{POWER:g}",
    }
    return section("methods", points=methods(shown))


def provenance_section(
    records: Sequence[Record],
    scores: Sequence[Score],
    origins: Mapping[str, Origin] | None,
    home: str,
) -> Section:
    """Return a section on each cell's run directory, library, versions and attempts.

    home: the folder of the page, for links to run directories.
    """
    if not records:
        nothing = ("Nothing was launched yet.",)
        return Section("provenance", "Provenance", nothing, folded=True)
    evaluated: dict[str, list[Score]] = {}
    for score in scores:
        evaluated.setdefault(score.cell_id, []).append(score)
    root = os.path.commonpath([r.directory.parent for r in records])
    known = origins or {}
    every = [
        _cell_fields(r, evaluated.get(r.cell.id, []), known.get(r.cell.id, Origin()), root, home)
        for r in records
    ]
    keep = [name for name in every[0] if any(row[name] for row in every)]
    table = ReportTable(
        "Every cell",
        tuple(keep),
        tuple(tuple(row[name] for name in keep) for row in every),
        searchable=True,
        anchors=tuple(f"cell-{record.cell.id}" for record in records),
    )
    return section("provenance", {"root": root}, tables=(table,))


def _cell_fields(
    record: Record,
    scores: Sequence[Score],
    came: Origin,
    root: str,
    home: str,
) -> dict[str, ReportText]:
    """Return column -> field. A column that is empty for all cells is not shown."""
    cell, outcome = record.cell, record.outcome
    last = record.checkpoints[-1] if record.checkpoints else None
    ending: str = record.state
    if outcome is not None:
        ending = outcome.word
        if outcome.kind == "collapsed":
            at = "" if outcome.step is None else f" at step {outcome.step}"
            ending = f"collapsed ({outcome.cause or 'unknown cause'}{at})"
    relative = os.path.relpath(record.directory, root)
    directory: ReportText = relative
    if home and record.attempts:
        below = os.path.relpath(record.directory, home)
        directory = (Link(relative, quote(below) + "/"),)
    host = f" on {record.last.host}" if record.last is not None and record.last.host else ""
    scorers = ", ".join(sorted({score.harness for score in scores} - {""}))
    return {
        "cell": cell.id,
        "study": ", ".join(cell.studies),
        "seed": str((cell.declared or cell.settings).seed),
        "outcome": ending,
        "attempts": str(len(record.attempts)),
        "trained by": (came.library or _version(cell.settings)) + host,
        "declared for": _version(cell.declared) if cell.declared else "",
        "job": came.job,
        "orch": came.orch,
        "commit": came.commit[:12] + (" (changed)" if came.commit.endswith(CHANGED) else ""),
        "versions": came.versions,
        "MLflow run": (Link(came.mlflow[:8], came.mlflow_url),) if came.mlflow_url else came.mlflow,
        "directory": directory,
        "checkpoint": "" if last is None else f"step {last.step}",
        "scores": f"{len(scores)} by {scorers}" if scorers else str(len(scores)),
    }


def _version(settings: Settings) -> str:
    library = settings.backend
    try:
        return neighbour.shown_release(plugins.load(library.name), library.version)
    except EnvironmentFault:  # it is not part of this orch
        return " ".join(filter(None, (library.name, library.version)))
