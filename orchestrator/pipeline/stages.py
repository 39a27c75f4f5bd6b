"""The stages after launch. Each one starts from the run directories."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import dashboards
from orchestrator import tracking
from orchestrator.analysis.compare import Comparison, compare
from orchestrator.analysis.runs import ItemScores
from orchestrator.evaluate import (
    EvaluationEvent,
    MissingScores,
    ScoredBaseline,
    ScoreIndex,
    UnscoredError,
    baselines,
    engines,
    evaluate,
    missing,
    score_index,
)
from orchestrator.files import write_text
from orchestrator.imports.runs import read_imported
from orchestrator.pipeline.messages import say
from orchestrator.records import Record, Score
from orchestrator.report import Report, markdown, report
from orchestrator.report.model import Section
from orchestrator.report.results import imported_section
from orchestrator.report.sources import last_lines, newest_result, read_context
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.search.section import experiment_section
from orchestrator.tracking import MirrorReport


def collect_records(experiment: Experiment) -> list[Record]:
    """Return the records of the chosen cells. Each record names the files that could not be
    read."""
    return collect(experiment.cells, experiment.folder)


def print_faults(records: Sequence[Record]) -> int:
    """Print the faults of the records. Return the exit code: 1 if there is any fault, else 0."""
    faults = [fault for record in records for fault in record.faults]
    for fault in faults:
        say(fault)
    return int(bool(faults))


def scores_and_faults(experiment: Experiment) -> "ScoreIndex":
    """Return the scores on disk. Print why some of them cannot be averaged or compared."""
    index = score_index(experiment.cells, experiment.spec.evaluation, experiment.folder)
    for fault in index.faults:
        say(fault)
    return index


def read_scores(experiment: Experiment) -> list[Score]:
    """Return the scores that are on disk, with the means over each domain's tasks."""
    return scores_and_faults(experiment).scores


def read_baselines(experiment: Experiment) -> "list[ScoredBaseline]":
    """Return the baselines that the spec declares for these cells, with their scores on disk."""
    return baselines.scored_baselines(
        experiment.spec.evaluation, experiment.cells, experiment.folder
    )


def evaluate_missing(
    experiment: Experiment, records: Sequence[Record], say: Callable[[str], None] = say
) -> int:
    """Make every missing score of these records and of the baselines of their models.

    Return 1 if something could not be scored.
    """
    every, spec = _milestones(), experiment.spec

    def show(event: EvaluationEvent) -> None:
        if event.kind == "started":
            if engines.is_greedy(spec.evaluation.sampling):
                say(engines.GREEDY)
            say(f"evaluating {event.total} checkpoints with lm-evaluation-harness")
        elif event.kind == "scored" and every(event.done, event.total):
            say(f"evaluated {event.done} of {event.total}")

    declared, faults = baselines.declared_baselines(
        spec.evaluation, experiment.cells, experiment.folder
    )
    for fault in faults:
        say(fault)
    try:
        evaluate(
            records,
            spec.evaluation,
            experiment.folder,
            baselines=baselines.records(declared),
            site=spec.site,
            workers=spec.site.workers,
            on_event=show,
        )
    except UnscoredError as error:
        say(str(error))
        return 1
    return int(bool(faults))


def missing_scores(experiment: Experiment, records: Sequence[Record]) -> "list[MissingScores]":
    """Return what `evaluate_missing` would score. Write nothing."""
    spec = experiment.spec
    declared, faults = baselines.declared_baselines(
        spec.evaluation, experiment.cells, experiment.folder
    )
    for fault in faults:
        say(fault)
    return missing(
        records,
        spec.evaluation,
        experiment.folder,
        baselines=baselines.records(declared),
        site=spec.site,
    )


def mirror(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    only: Collection[str] | None = None,
    *,
    quiet: bool = False,
    dry_run: bool = False,
) -> "MirrorReport":
    """Update MLflow (`only`: the runs of these cells). Print the address of the runs, unless
    `quiet`.

    dry_run: only count the changes.
    """
    every = _milestones()

    def show(done: int, total: int) -> None:
        if not quiet and every(done, total):
            say(f"mirrored {done} of {total} runs")

    mirrored = tracking.mirror(
        records,
        scores,
        experiment.spec,
        experiment.folder,
        on_progress=show,
        only=only,
        dry_run=dry_run,
    )
    removed = f", {mirrored.deleted} of pruned cells deleted" if mirrored.deleted else ""
    if dry_run and not quiet:
        say(
            f"MLflow experiment {mirrored.experiment}: {mirrored.created} runs would be made, "
            f"{mirrored.updated} updated, {mirrored.deleted} deleted; {mirrored.unchanged} would "
            "stay as they are"
        )
    elif not quiet:
        say(
            f"MLflow experiment {mirrored.experiment}: {mirrored.created} runs made, "
            f"{mirrored.updated} updated, {mirrored.unchanged} unchanged{removed}\n"
            f"  {mirrored.view}"
        )
    return mirrored


def compare_records(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    items: "ItemScores | None" = None,
) -> "Comparison":
    """Return the statistics of the results on disk. items: from the score index; None: read them
    here."""
    if items is None:
        items = score_index(experiment.cells, experiment.spec.evaluation, experiment.folder).items
    return compare(experiment.spec, records, scores, items)


def write_report(
    experiment: Experiment,
    comparison: "Comparison",
    records: Sequence[Record],
    scores: Sequence[Score],
    target: Path | None = None,
    *,
    faults: Sequence[str] = (),
    figures: bool = False,
    sections: "Sequence[Section]" = (),
    data: Mapping[str, Any] | None = None,
) -> Path:
    """Write index.html and report.md. Return the path of the page.

    figures: also write each figure as PNG and PDF. Without it, remove the figures of an earlier
    page, because they would differ from this page. faults: sentences about scores. sections:
    further sections of the page, with `data` for their figures. The page has the date of the newest
    result, so that the same results give the same page.
    """
    folder = target or experiment.folder.report
    built = build_report(
        experiment,
        comparison,
        records,
        scores,
        home=folder,
        faults=faults,
        sections=sections,
        data=data,
    )
    pictures = dashboards.pictures(built if figures else None, folder / "figures")
    write_text(folder / "index.html", dashboards.html(built, pictures))
    write_text(folder / "report.md", markdown(built))
    return folder / "index.html"


def report_as_markdown(
    experiment: Experiment,
    comparison: "Comparison",
    records: Sequence[Record],
    scores: Sequence[Score],
    faults: Sequence[str] = (),
) -> str:
    """Return the report as Markdown."""
    return markdown(build_report(experiment, comparison, records, scores, faults=faults))


def build_report(
    experiment: Experiment,
    comparison: "Comparison",
    records: Sequence[Record],
    scores: Sequence[Score],
    *,
    home: Path | None = None,
    faults: Sequence[str] = (),
    sections: "Sequence[Section]" = (),
    data: Mapping[str, Any] | None = None,
) -> "Report":
    """Return the report as plain data, dated by the newest result."""
    target = home or experiment.folder.report
    searches, drawn = _searches(experiment)
    imported, curves = imported_section(read_imported(experiment.folder), comparison.configurations)
    own = [*sections, *([] if imported is None else [imported]), *searches]
    return report(
        comparison,
        records,
        scores,
        experiment.spec,
        last_lines=last_lines(records),
        created=newest_result(records),
        context=read_context(experiment, records, scores, target, faults, say),
        sections=own,
        data={**drawn, **curves, **(data or {})},
    )


def _searches(experiment: Experiment) -> "tuple[list[Section], dict[str, Any]]":
    """Return the report's sections on searches, and the data of their figures."""
    if not any((experiment.folder.path / "tune").glob("*/journal.log")):
        return [], {}

    section, drawn, faults = experiment_section(experiment)
    for fault in faults:
        say(fault)
    return ([] if section is None else [section]), drawn


def _milestones(count: int = 10) -> Callable[[int, int], bool]:
    """Return a function that returns True about `count` times while its argument grows from 0 to
    the total, and at the end."""
    last = 0

    def reached(done: int, total: int) -> bool:
        nonlocal last
        milestone = done * count // total if total else 0
        if milestone == last:
            return False
        last = milestone
        return True

    return reached
