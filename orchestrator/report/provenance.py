"""The sections that let a reader check: staleness, failures, methods, provenance."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from urllib.parse import quote

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.estimates import ALPHA, LEVEL, POWER, estimate
from orchestrator.analysis.phrases import told
from orchestrator.provenance import CHANGED
from orchestrator.records import Record, Score
from orchestrator.report.data import drawn, names_of
from orchestrator.report.model import Entry, Figure, Link, ReportTable, ReportText, Section
from orchestrator.report.results import WHO, cells, who
from orchestrator.settings import Settings

TITLE = "Provenance"
BETA_EFFECTIVE = "train/beta_effective"
MAX_LINES = 30
MAX_CHARACTERS = 4000
"""Of what a failed cell printed, from its end."""


@dataclass(frozen=True)
class Origin:
    """What is known of the last attempt of a cell beside its run directory."""

    job: str = ""
    """The scheduler's id, or the process."""
    orch: str = ""
    """orch's version at launch."""
    commit: str = ""
    """Of orch's source at launch, with `+changes` where the checkout was changed."""
    library: str = ""
    """What trained it, with its release, as the plan names it."""
    versions: str = ""
    """Of Python and the packages that computed, where the training ran in orch's environment."""
    mlflow: str = ""
    mlflow_url: str = ""


EFFECTIVE = (
    "The β that would pull as hard under the objective the spec names. It parts from the β asked "
    "for where a library averages, scales or bounds the KL term otherwise."
)
STALENESS = (
    "Policy versions between sampling and use, in train steps, averaged over training. What was "
    "asked for is a bound; what counts is what was observed."
)
DIRECTORY = (
    "Each holds cell.json (every setting), plan/ (what was launched, and the ledger of how each "
    "setting got there), attempts/, checkpoints/ and eval/ (scores and single items)."
)
METHODS = (
    (
        f"Intervals over seeds are {100 * LEVEL:.0f} % intervals of the mean by Student's t; "
        f"one seed "
        "has none. Those of accuracies are cut to [0, 1]. Shares have exact (Clopper-Pearson) ones."
    ),
    (
        "Over seeds and items: both are resampled (the hierarchical bootstrap), so these intervals "
        "speak of the tasks the items were drawn from, and not of these items only."
    ),
    (
        "Final values are those after the last train step of runs that ended well. Collapsed runs "
        "count with what they reached; a run whose numbers became NaN has no policy left, and "
        "counts "
        "with an accuracy of 0."
    ),
    (
        "A claim is judged on differences within settings (same study, model, data, β, ...), "
        "averaged "
        "over settings for each seed, then tested over the seeds that every configuration has. "
        "Shares "
        "of collapsed runs are tested exactly (Fisher, binomial), each run counting once."
    ),
    (
        "p-values are two-sided and corrected by Holm over all testable claims; below "
        f"{ALPHA:.2f} a claim is supported or contradicted. Otherwise it is underpowered, and the "
        f"seeds named would decide it with power {POWER:g} if effect and spread stayed as seen."
    ),
    (
        "Means are tested by Student's t; where all seeds give the same difference, by the sign "
        "test, "
        "which n seeds bring to 2/2^n at best."
    ),
    (
        "Claims with ~ are tests of equivalence: two one-sided tests against the margin, each "
        "at half "
        f"of {ALPHA:.2f}."
    ),
)


def staleness(comparison: Comparison) -> Section | None:
    """Asked-for bounds beside what was observed, and beta beside what it came to."""
    rows = [
        (
            *who(c, setting),
            c.traits.get("async", ""),
            told(c.staleness),
            "" if c.max_staleness is None else f"{c.max_staleness:g}",
            cells(c),
        )
        for c, setting in names_of(comparison.configurations)
        if c.staleness is not None
    ]
    if not any(
        c.max_staleness or c.traits.get("async", "0") != "0" for c in comparison.configurations
    ):
        return None
    columns = (*WHO, "largest allowed", "observed mean", "observed largest", "cells")
    table = ReportTable("Staleness in train steps", columns, tuple(rows), searchable=len(rows) > 12)
    return Section(
        "staleness",
        "Observed staleness",
        (STALENESS,),
        figures=_curve(
            comparison,
            "staleness",
            "rollout/staleness_mean",
            "Staleness of the rollouts that were trained on",
        ),
        tables=(table,) if rows else (),
    )


def effective(comparison: Comparison) -> Section | None:
    """The beta that was asked for beside the one it came to."""
    rows = []
    for c, setting in names_of(comparison.configurations):
        means = [
            fmean(values)
            for run in c.runs
            if (values := [*run.series.get(BETA_EFFECTIVE, {}).values()])
        ]
        if means and c.beta is not None:
            found = estimate(means)
            rows.append(
                (
                    *who(c, setting),
                    f"{c.beta:g}",
                    told(found),
                    f"{found.mean / c.beta:.3g}" if c.beta else "",
                    cells(c),
                )
            )
    if not rows:
        return None
    columns = (*WHO, "β asked for", "effective β: mean over training", "ratio", "cells")
    table = ReportTable("Effective β of every configuration", columns, tuple(rows), searchable=True)
    return Section(
        "beta",
        "Effective β",
        (EFFECTIVE,),
        figures=_curve(comparison, "beta", BETA_EFFECTIVE, "Effective β"),
        tables=(table,),
    )


def _curve(comparison: Comparison, name: str, metric: str, title: str) -> tuple[Figure, ...]:
    if not any(drawn(c, metric) for c in comparison.configurations):
        return ()
    return (
        Figure(
            name,
            "measures",
            title,
            "Mean over seeds with its 95 % interval as a band.",
            f"Curves of {metric} over train steps; the table holds their means.",
            (metric,),
        ),
    )


def failures(records: Sequence[Record], last_lines: Mapping[str, str]) -> Section | None:
    """Cells that failed, with the last lines they printed, and files that could not be read."""
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
    text = "A failed cell has no result. Run `orch retry` to train it again."
    return Section("failures", "Failures", (text,), entries=tuple(entries))


def _tail(text: str) -> str:
    lines = "\n".join(text.rstrip().splitlines()[-MAX_LINES:])
    return lines if len(lines) <= MAX_CHARACTERS else f"... {lines[-MAX_CHARACTERS:]}"


def methods() -> Section:
    """How each kind of number was made."""
    return Section("methods", "How the numbers were made", points=METHODS)


def provenance(
    records: Sequence[Record],
    scores: Sequence[Score],
    origins: Mapping[str, Origin] | None = None,
    home: str = "",
) -> Section:
    """Where each cell's numbers lie, and what made them.

    `home`: the folder the page will lie in, for links to run directories.
    """
    if not records:
        return Section("provenance", TITLE, ("Nothing was launched yet.",))
    evaluated: dict[str, list[Score]] = {}
    for score in scores:
        evaluated.setdefault(score.cell_id, []).append(score)
    root = os.path.commonpath([r.directory.parent for r in records])
    known = origins or {}
    rows = tuple(
        _row(record, evaluated.get(record.cell.id, []), known.get(record.cell.id), root, home)
        for record in records
    )
    columns = (
        "cell",
        "study",
        "seed",
        "state",
        "outcome",
        "attempts",
        "trained by",
        "versions",
        "declared for",
        "job",
        "orch",
        "commit",
        "MLflow run",
        "directory",
        "checkpoint",
        "scored by",
        "scores",
    )
    keep = [i for i, _ in enumerate(columns) if i < 4 or any(row[i] for row in rows)]
    table = ReportTable(
        "Every cell",
        tuple(columns[i] for i in keep),
        tuple(tuple(row[i] for i in keep) for row in rows),
        searchable=True,
        anchors=tuple(f"cell-{record.cell.id}" for record in records),
    )
    return Section(
        "provenance", TITLE, (f"Directories are below {root}. {DIRECTORY}",), tables=(table,)
    )


def _row(
    record: Record, scores: Sequence[Score], origin: Origin | None, root: str, home: str
) -> tuple[ReportText, ...]:
    cell, outcome = record.cell, record.outcome
    last = record.checkpoints[-1] if record.checkpoints else None
    ending = "" if outcome is None else str(outcome.kind)
    if outcome is not None and outcome.kind == "collapsed":
        at = "" if outcome.step is None else f" at step {outcome.step}"
        ending = f"collapsed ({outcome.cause or 'unknown cause'}{at})"
    directory: ReportText = os.path.relpath(record.directory, root)
    if home and record.attempts and isinstance(directory, str):
        directory = (Link(directory, quote(os.path.relpath(record.directory, home)) + "/"),)
    came = origin or Origin()
    return (
        cell.id,
        ", ".join(cell.studies),
        str((cell.declared or cell.settings).seed),
        record.state,
        ending,
        str(len(record.attempts)),
        (came.library or _version(cell.settings)) + _host(record),
        came.versions,
        _version(cell.declared) if cell.declared else "",
        came.job,
        came.orch,
        came.commit[:12] + (" (changed)" if came.commit.endswith(CHANGED) else ""),
        (Link(came.mlflow[:8], came.mlflow_url),) if came.mlflow_url else came.mlflow,
        directory,
        "" if last is None else f"{last.path.name} (step {last.step})",
        ", ".join(sorted({score.harness for score in scores} - {""})),
        str(len(scores)),
    )


def _version(settings: Settings) -> str:
    return f"{settings.backend.name} {settings.backend.version or ''}".strip()


def _host(record: Record) -> str:
    return f" on {record.last.host}" if record.last is not None and record.last.host else ""
