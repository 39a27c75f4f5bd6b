"""The sections that let a reader check: staleness, failures, methods, provenance."""

import os
from collections.abc import Mapping, Sequence

from orchestrator.compare import Comparison
from orchestrator.compare.estimates import ALPHA, LEVEL, POWER
from orchestrator.compare.phrases import told
from orchestrator.report.data import setting_names
from orchestrator.report.model import Entry, Section, Table
from orchestrator.types import Record, Score

MAX_LINES = 30
MAX_CHARACTERS = 4000
"""Of what a failed cell printed, from its end."""


STALENESS = (
    "Policy versions between sampling and use, in train steps, averaged over training. What was "
    "asked for is a bound; what counts is what was observed."
)
DIRECTORY = (
    "Each holds cell.json (every setting), plan/ (what was launched, and the ledger of how each "
    "setting got there), attempts/, checkpoints/ and eval/ (scores and single items)."
)
METHODS = (
    (f"Intervals over seeds are {LEVEL:.0%} intervals of the mean by Student's t; one seed has "
    "none. Those of accuracies are cut to [0, 1]. Shares have exact (Clopper-Pearson) intervals."),
    ("Final values are those after the last train step of runs that ended well. Collapsed runs "
    "count with what they reached; a run whose numbers became NaN has no policy left, and counts "
    "with an accuracy of 0."),
    ("A claim is judged on differences within settings (same study, model, data, β, ...), averaged "
    "over settings for each seed, then tested over the seeds that every configuration has. Shares "
    "of collapsed runs are tested exactly (Fisher, binomial), each run counting once."),
    ("p-values are two-sided and corrected by Holm over all testable claims; below "
    f"{ALPHA:.2f} a claim is supported or contradicted. Otherwise it is underpowered, and the "
    f"seeds named would decide it with power {POWER:g} if effect and spread stayed as seen."),
    "Claims with ~ are tests of equivalence: two one-sided tests against the margin.",
)  # fmt: skip


def staleness(comparison: Comparison) -> Section | None:
    """Asked-for bounds beside what was observed."""
    found = comparison.configurations
    rows = [
        (c.study, setting, c.name, c.traits.get("async", ""), told(c.staleness),
         "" if c.max_staleness is None else f"{c.max_staleness:g}")
        for c, setting in zip(found, setting_names(found), strict=True)
        if c.staleness is not None
    ]  # fmt: skip
    if not rows or all(c.traits.get("async", "0") == "0" for c in found if c.staleness):
        return None
    columns = ("study", "setting", "configuration", "largest allowed", "observed mean",
               "observed largest")  # fmt: skip
    table = Table("Staleness in train steps", columns, tuple(rows), searchable=len(rows) > 12)
    return Section("staleness", "Observed staleness", (STALENESS,), tables=(table,))


def failures(records: Sequence[Record], last_lines: Mapping[str, str]) -> Section | None:
    """Cells that failed, with the last lines they printed, and files that could not be read."""
    entries = []
    for record in records:
        end = record.last
        if record.state in ("failed", "timed_out"):
            why = ": ".join(filter(None, (end.failure, end.message) if end else ()))
            title = f"{record.cell.slug} ({record.cell.id}) {record.state}"
            lines = _tail(last_lines.get(record.cell.id, ""))
            entries.append(Entry(title, "\n".join(filter(None, (_tail(why), lines)))))
        if record.faults:
            title = f"{record.cell.slug} ({record.cell.id}): files that could not be read in full"
            entries.append(Entry(title, _tail("\n".join(record.faults))))
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


def provenance(records: Sequence[Record], scores: Sequence[Score]) -> Section:
    """Where each cell's numbers lie, and what made them."""
    evaluated: dict[str, list[Score]] = {}
    for score in scores:
        evaluated.setdefault(score.cell_id, []).append(score)
    root = os.path.commonpath([r.directory.parent for r in records]) if records else ""
    rows = tuple(_row(record, evaluated.get(record.cell.id, []), root) for record in records)
    columns = ("cell", "study", "state", "outcome", "attempts", "trained by", "directory",
               "checkpoint", "scored by", "scores")  # fmt: skip
    text = f"Directories are below {root}. {DIRECTORY}" if records else "Nothing was launched yet."
    return Section("provenance", "Provenance", (text,),
                   tables=(Table("Every cell", columns, rows, searchable=True),))  # fmt: skip


def _row(record: Record, scores: Sequence[Score], root: str) -> tuple[str, ...]:
    cell, outcome = record.cell, record.outcome
    last = record.checkpoints[-1] if record.checkpoints else None
    backend = cell.settings.backend
    ending = "" if outcome is None else str(outcome.kind)
    if outcome is not None and outcome.kind == "collapsed":
        at = "" if outcome.step is None else f" at step {outcome.step}"
        ending = f"collapsed ({outcome.cause or 'unknown cause'}{at})"
    return (
        cell.id,
        ", ".join(cell.studies),
        record.state,
        ending,
        str(len(record.attempts)),
        f"{backend.name} {backend.version or ''}".strip() + _host(record),
        os.path.relpath(record.directory, root) if root else "",
        "" if last is None else f"{last.path.name} (step {last.step})",
        ", ".join(sorted({score.harness for score in scores} - {""})),
        str(len(scores)),
    )


def _host(record: Record) -> str:
    return f" on {record.last.host}" if record.last is not None and record.last.host else ""
