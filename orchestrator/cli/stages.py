"""The stages after launch, as commands call them. Each starts from the run directories."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.common import number, print_table, say
from orchestrator.records import Record, Score
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.analysis.compare import Comparison as Comparison
    from orchestrator.analysis.runs import ItemScores
    from orchestrator.analysis.stats import Estimate
    from orchestrator.evaluate import ScoredBaseline, ScoreIndex
    from orchestrator.report import Report as Report
    from orchestrator.report.model import Section
    from orchestrator.tracking import MirrorReport


def gather(experiment: Experiment) -> list[Record]:
    """Return the records of the chosen cells, each with the faults of what could not be read."""
    from orchestrator.runs.collect import collect

    return collect(experiment.cells, experiment.folder)


def tell_faults(records: Sequence[Record]) -> int:
    """Print what could not be read. Return 1 if there was anything, for the exit code."""
    faults = [fault for record in records for fault in record.faults]
    for fault in faults:
        say(fault)
    return int(bool(faults))


def known(experiment: Experiment) -> "ScoreIndex":
    """Return the scores on disk. Print what keeps them from being averaged or compared."""
    from orchestrator import evaluate

    found = evaluate.score_index(experiment.cells, experiment.spec.evaluation, experiment.folder)
    for fault in found.faults:
        say(fault)
    return found


def known_scores(experiment: Experiment) -> list[Score]:
    """Return the scores that are on disk, with the means over each domain's tasks."""
    return known(experiment).scores


def known_baselines(experiment: Experiment) -> "list[ScoredBaseline]":
    """Return the baselines that the spec declares for these cells, with their scores on disk."""
    from orchestrator.evaluate import baselines

    return baselines.scored_baselines(
        experiment.spec.evaluation, experiment.cells, experiment.folder
    )


def score(
    experiment: Experiment, records: Sequence[Record], say: Callable[[str], None] = say
) -> int:
    """Make every missing score of these records and of the baselines of their models.

    Return 1 if something could not be scored.
    """
    from orchestrator.evaluate import EvaluationEvent, UnscoredError, baselines, engines, evaluate

    every, spec = _milestones(), experiment.spec

    def tell(event: EvaluationEvent) -> None:
        if event.kind == "started":
            if engines.is_greedy(spec.evaluation.sampling):
                say(engines.GREEDY)
            say(f"evaluating {event.total} checkpoints with lm-evaluation-harness")
        elif event.kind == "scored" and every(event.done, event.total):
            say(f"evaluated {event.done} of {event.total}")

    asked, faults = baselines.declared_baselines(
        spec.evaluation, experiment.cells, experiment.folder
    )
    for fault in faults:
        say(fault)
    try:
        evaluate(
            records,
            spec.evaluation,
            experiment.folder,
            baselines=baselines.records(asked),
            site=spec.site,
            workers=spec.site.workers,
            on_event=tell,
        )
    except UnscoredError as error:
        say(str(error))
        return 1
    return int(bool(faults))


def mirror(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    only: Collection[str] | None = None,
    *,
    quiet: bool = False,
) -> "MirrorReport":
    """Bring MLflow up to date (`only`: the runs of these cells). Unless `quiet`, print where to
    look."""
    from orchestrator import tracking

    every = _milestones()

    def tell(done: int, total: int) -> None:
        if not quiet and every(done, total):
            say(f"mirrored {done} of {total} runs")

    done = tracking.mirror(
        records, scores, experiment.spec, experiment.folder, on_progress=tell, only=only
    )
    removed = f", {done.deleted} of pruned cells deleted" if done.deleted else ""
    if not quiet:
        say(
            f"MLflow experiment {done.experiment}: {done.created} runs made, {done.updated} "
            f"updated, {done.unchanged} unchanged{removed}\n  {done.view}"
        )
    return done


def contrast(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    items: "ItemScores | None" = None,
) -> "Comparison":
    """Return the statistics of what is on disk. `items`: of the score index; None: read here."""
    from orchestrator.analysis.compare import compare

    if items is None:
        from orchestrator.evaluate import score_index

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

    With `figures`, also write each figure as PNG and PDF; without, remove those of an earlier
    page, because they would say something else. `faults`: what is wrong with the scores.

    `sections` are the page's own beside the usual ones, with `data` for their figures. The page's
    date is that of the newest result, so that the same results give the same page.
    """
    import dashboards
    from orchestrator.files import write_text
    from orchestrator.report import markdown

    folder = target or experiment.folder.report
    made = build_report(
        experiment,
        comparison,
        records,
        scores,
        home=folder,
        faults=faults,
        sections=sections,
        data=data,
    )
    pictures = dashboards.pictures(made if figures else None, folder / "figures")
    write_text(folder / "index.html", dashboards.html(made, pictures))
    write_text(folder / "report.md", markdown(made))
    return folder / "index.html"


def markdown_of(
    experiment: Experiment,
    comparison: "Comparison",
    records: Sequence[Record],
    scores: Sequence[Score],
    faults: Sequence[str] = (),
) -> str:
    """Return the report as Markdown."""
    from orchestrator.report import markdown

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
    from orchestrator.report import report
    from orchestrator.report.sources import last_lines, newest_result, read_context

    target = home or experiment.folder.report
    searches, drawn = _searches(experiment)
    return report(
        comparison,
        records,
        scores,
        experiment.spec,
        last_lines=last_lines(records),
        created=newest_result(records),
        context=read_context(experiment, records, scores, target, faults, say),
        sections=[*sections, *searches],
        data={**drawn, **(data or {})},
    )


def _searches(experiment: Experiment) -> "tuple[list[Section], dict[str, Any]]":
    """Return the report's sections on searches, and the data of their figures."""
    if not any((experiment.folder.path / "tune").glob("*/journal.log")):
        return [], {}
    from orchestrator.search.section import experiment_section

    section, drawn, faults = experiment_section(experiment)
    for fault in faults:
        say(fault)
    return ([] if section is None else [section]), drawn


def print_claims(comparison: "Comparison") -> None:
    """Print verdict and reason of every claim."""
    from orchestrator.analysis.sentences import reason, statement

    rows = [(f.verdict, statement(f.claim), reason(f)) for f in comparison.claims]
    if rows:
        print_table(("verdict", "claim", "why"), rows)


def print_configurations(comparison: "Comparison") -> None:
    """Print final accuracies of every configuration with their intervals."""
    metrics = [m for m in (comparison.in_domain, comparison.out_of_domain) if m]
    rows = []
    for found in comparison.configurations:
        told = (_interval(found.finals.get(metric)) for metric in metrics)
        where = " ".join(v for k, v in found.traits.items() if k in ("model", "data", "backend"))
        rate = found.collapse
        rows.append(
            (
                found.study,
                where,
                found.name,
                f"{found.num_finished}/{len(found.runs)}",
                *told,
                f"{rate.count}/{rate.n}",
            )
        )
    print_table(("study", "where", "configuration", "seeds", *metrics, "collapsed"), rows)


def _interval(estimate: "Estimate | None") -> str:
    if estimate is None or estimate.half_width is None:
        return number(None if estimate is None else estimate.mean)
    return f"{estimate.mean:.3f} ± {estimate.half_width:.3f}"


def _milestones(count: int = 10) -> Callable[[int, int], bool]:
    """Return a function that is true about `count` times from 0 to the total, and at the end."""
    told = 0

    def reached(done: int, total: int) -> bool:
        nonlocal told
        tenth = done * count // total if total else 0
        if tenth == told:
            return False
        told = tenth
        return True

    return reached
