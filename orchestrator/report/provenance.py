"""Sections of a report on limits, failures, methods, provenance, and changes since another run."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from urllib.parse import quote

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.runs import MeasuredRun
from orchestrator.analysis.sequential import POWER
from orchestrator.analysis.stats import ALPHA, LEVEL
from orchestrator.analysis.text import counted, estimate_text, listed, number_text
from orchestrator.launch.provenance import CHANGED
from orchestrator.records import Record, Score, Spec
from orchestrator.report.figures import with_setting_names
from orchestrator.report.front import in_short
from orchestrator.report.model import Entry, Link, ReportTable, ReportText, Section
from orchestrator.runs.state import elsewhere
from orchestrator.settings import Settings

UNCORRECTED = (
    "Claims are corrected for their number; the intervals of figures and tables are not. Among "
    "many intervals some exclude the truth."
)


def limits(
    comparison: Comparison, scores: Sequence[Score], spec: Spec, baselines: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the limits of the experiment, one sentence each, the most important first.

    baselines: the names of scored baselines, such as `model (chat template: default)`.
    """
    return (
        *_scale_limits(comparison.runs),
        *_origin_limits(comparison.runs),
        *_seed_limits(comparison),
        *_unfinished_limits(comparison),
        *_evaluation_limits(scores, spec),
        *_baseline_limits(spec, baselines),
        UNCORRECTED,
    )


def _scale_limits(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    if not is_micro(runs):
        return
    yield (
        "Every run is of the embedded trainer: a policy of tens of thousands of parameters on "
        "strings of digits. It shows what a KL configuration does to the gradient and to training; "
        "none of these numbers is the paper's, and none says how large an effect is on a language "
        "model."
    )
    libraries = {name for run in runs for name in run.traits.get("backend", "").split(" | ")}
    if named := sorted(libraries - {"", "micro"}):
        yield (
            f"The cells are declared for {listed(named)}; the embedded trainer trained each in the "
            "dialect of its library, as far as it imitates it. A difference between libraries here "
            "is a prediction; none of their code ran."
        )


def _origin_limits(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    for sentence in elsewhere(run.record.last for run in runs):
        yield (
            f"Of {counted(len(runs), 'run')}, {sentence}: with equal settings, orch, library and "
            "releases. What they show of speed may be another machine's."
        )


def _baseline_limits(spec: Spec, scored: Collection[str]) -> Iterator[str]:
    declared = [f"{b.model} (chat template: {b.chat_template})" for b in spec.evaluation.baselines]
    if missing := [name for name in declared if name not in scored]:
        yield (
            f"Of the baselines the spec declares, {listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not evaluated: `orch eval` does. Curves start "
            "at train step 0, which is the base policy."
        )


def is_micro(runs: Sequence[MeasuredRun]) -> bool:
    """Return True if these runs are rehearsals at micro scale."""
    return any(run.record.cell.scale == "micro" for run in runs)


def _seed_limits(comparison: Comparison) -> Iterator[str]:
    counts = sorted({c.num_finished for c in comparison.configurations})
    if not counts:
        return
    spread = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else counted(counts[0], "seed")
    spread = f"{spread} finished"
    metric = comparison.in_domain
    widths = [
        width
        for c in comparison.configurations
        if metric is not None
        and metric in c.finals
        and (width := c.finals[metric].half_width) is not None
    ]
    if not widths:
        yield f"With {spread} in each there are no intervals: no difference is established."
        return
    yield (
        f"Of each configuration, {spread}. The median 95 % interval of the in-domain result is "
        f"±{number_text(median(widths))}: much smaller differences may be chance."
    )
    yield (
        "Seeds vary the order of prompts, sampling and nothing else: the initial policy and the "
        "hyperparameters are the same, and results may depend on them."
    )


def _unfinished_limits(comparison: Comparison) -> Iterator[str]:
    states: dict[str, int] = {}
    for run in comparison.runs:
        if run.record.state != "succeeded":
            states[run.record.state] = states.get(run.record.state, 0) + 1
    if states:
        named = listed(f"{count} {state}" for state, count in sorted(states.items()))
        total = counted(len(comparison.runs), "cell")
        yield (
            f"Of {total}, {named}: their configurations rest on fewer seeds, and cells that fail "
            "need not be a random choice."
        )


def _evaluation_limits(scores: Sequence[Score], spec: Spec) -> Iterator[str]:
    if not scores:
        yield (
            "No checkpoint was evaluated with the harness; accuracies are the trainer's own, where "
            "it has any."
        )
        return
    tasks = {score.task: score for score in scores}
    sizes = listed(
        f"{name} ({one.num_items} × {one.repeats})" for name, one in sorted(tasks.items())
    )
    yield f"Scores rest on these items × responses: {sizes}."
    if spec.evaluation.sampling.min_p == 1.0 or any(s.sampling.min_p == 1.0 for s in scores):
        yield (
            "Evaluation sampled with min_p = 1.0, which keeps only the likeliest token: it is "
            "greedy decoding, and repeats of an item are the same response."
        )


PROVENANCE_TITLE = "Provenance"
MAX_LINES = 30
MAX_CHARACTERS = 4000
"""Maximum number of lines and characters shown from the end of a failed cell's output."""


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
    trained_by: str = ""
    """The person who shared the cell, and the store that it was pulled from."""
    versions: str = ""
    """The versions of Python and its packages, if training ran in orch's environment."""
    mlflow: str = ""
    mlflow_url: str = ""


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
        "In tests of shares of collapsed runs, each run counts once. A claim that says `over "
        "items` is tested with the spread between items too, and speaks of the tasks they were "
        "drawn from; any other speaks of the items that were asked."
    ),
    (
        "p-values are two-sided and corrected by Holm over all testable claims; below "
        f"{ALPHA:.2f} a claim is supported or contradicted. Otherwise it is underpowered, and the "
        f"seeds named would decide it with power {POWER:g} if effect and spread stayed as seen."
    ),
    (
        "Verdicts hold at every look: however often one looked before, and whatever made one add "
        "seeds, the chance that a true nothing is ever claimed stays below the level. Means are "
        "tested by the mixture t martingale, shares by the Beta mixture of the binomial; where all "
        "seeds give the same difference, the sign test, which n seeds bring to 2/2^n at best. The "
        "price is about twice the seeds of a test that is allowed one look. Intervals in tables "
        "and figures are those of a single look."
    ),
    (
        "Claims with ~ are tests of equivalence: two one-sided tests against the margin, each "
        "at half "
        f"of {ALPHA:.2f}."
    ),
)


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
    text = "A failed cell has no result. Run `orch retry` to train it again."
    return Section("failures", "Failures", (text,), entries=tuple(entries))


def _tail(text: str) -> str:
    lines = "\n".join(text.rstrip().splitlines()[-MAX_LINES:])
    return lines if len(lines) <= MAX_CHARACTERS else f"... {lines[-MAX_CHARACTERS:]}"


def methods_section() -> Section:
    """Return a section on the statistical methods behind the numbers."""
    return Section("methods", "How the numbers were made", points=METHODS)


def provenance_section(
    records: Sequence[Record],
    scores: Sequence[Score],
    origins: Mapping[str, Origin] | None = None,
    home: str = "",
) -> Section:
    """Return a section on each cell's run directory, library, versions and attempts.

    home: the folder of the page, for links to run directories.
    """
    if not records:
        return Section("provenance", PROVENANCE_TITLE, ("Nothing was launched yet.",))
    evaluated: dict[str, list[Score]] = {}
    for score in scores:
        evaluated.setdefault(score.cell_id, []).append(score)
    root = os.path.commonpath([r.directory.parent for r in records])
    known = origins or {}
    rows = tuple(
        _cell_row(record, evaluated.get(record.cell.id, []), known.get(record.cell.id), root, home)
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
        "trained elsewhere",
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
        "provenance",
        PROVENANCE_TITLE,
        (f"Directories are below {root}. {DIRECTORY}",),
        tables=(table,),
    )


def _cell_row(
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
        came.trained_by,
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


CHANGES_TEXT = (
    "The same cells in the run directories of {other} and here. What changed may be seeds, "
    "versions or machines: nothing is tested."
)


def changes_section(before: Comparison, now: Comparison, other: str) -> Section:
    """Return a section on the changes since `before`. `other`: its folder of run directories."""
    earlier = {f.name: f for f in before.claims}
    claims = tuple(
        (f.name, earlier[f.name].verdict, in_short(earlier[f.name]), f.verdict, in_short(f))
        for f in now.claims
        if f.name in earlier
        and (earlier[f.name].verdict, in_short(earlier[f.name])) != (f.verdict, in_short(f))
    )
    turned = sum(row[1] != row[3] for row in claims)
    rows = tuple(_changed_finals(before, now))
    verdicts = f"{counted(turned, 'verdict')} of {counted(len(now.claims), 'claim')} changed"
    changed = counted(len(now.configurations), "configuration")
    points = (
        f"{verdicts}; {counted(len(claims), 'effect')} did.",
        f"{len(rows)} of {changed} have another final value, or other seeds.",
    )
    tables = (
        ReportTable("Claims", ("claim", "was", "with", "is", "with"), claims),
        ReportTable(
            "Final values",
            ("study", "setting", "configuration", "was", "seeds", "is", "seeds", "change"),
            rows,
            searchable=len(rows) > 12,
        ),
    )
    return Section(
        "changed",
        "What changed",
        (CHANGES_TEXT.format(other=other),),
        points,
        tables=tuple(table for table in tables if table.rows),
    )


def _changed_finals(before: Comparison, now: Comparison) -> list[tuple[str, ...]]:
    metric = now.in_domain or before.in_domain
    earlier = {_configuration_key(c): c for c in before.configurations}
    rows: list[tuple[float, tuple[str, ...]]] = []
    for c, setting in with_setting_names(now.configurations):
        old = earlier.get(_configuration_key(c))
        if metric is None or old is None or old.by_seed(metric) == c.by_seed(metric):
            continue
        was, value = old.finals.get(metric), c.finals.get(metric)
        change = value.mean - was.mean if was and value else None
        rows.append(
            (
                -abs(change or 0.0),
                (
                    c.study,
                    setting,
                    c.name,
                    estimate_text(was) if was else "none",
                    str(old.num_finished),
                    estimate_text(value) if value else "none",
                    str(c.num_finished),
                    "" if change is None else f"{change:+.3f}".replace("-", "−"),
                ),
            )
        )
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _configuration_key(c: Configuration) -> tuple[object, ...]:
    return c.study, tuple(sorted(c.traits.items())), c.name
