"""The stages after training, each from the run directories; and `run`, which trains and then runs
them all."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import dashboards
from orchestrator import plugins, tracking
from orchestrator.analysis.compare import Comparison, changed_claims, compare, comparison_data
from orchestrator.analysis.runs import ItemScores
from orchestrator.errors import EnvironmentFault, RunFolderError
from orchestrator.evaluate import (
    EvaluationEvent,
    ScoreIndex,
    UnscoredError,
    baselines,
    engines,
    evaluate,
    score_index,
)
from orchestrator.files import read_json, write_text
from orchestrator.pipeline import training
from orchestrator.pipeline.completion import MARK, digest_of
from orchestrator.pipeline.messages import say
from orchestrator.records import (
    DivergenceRequest,
    DivergenceTask,
    Record,
    Score,
)
from orchestrator.report import Report, answer, markdown, report
from orchestrator.report.provenance import last_lines, newest_result, read_context
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import Plan
from orchestrator.runs.plan import plan as plan_cells
from orchestrator.runs.watch import duration
from orchestrator.search.section import experiment_sections
from orchestrator.spec.claims import digests
from orchestrator.tracking import MirrorReport


@dataclass(frozen=True)
class Results:
    """What is on disk of the chosen cells of an experiment."""

    experiment: Experiment
    records: Sequence[Record]
    index: ScoreIndex

    @cached_property
    def comparison(self) -> Comparison:
        """The statistics of these results."""
        return compare_records(self.experiment, self.records, self.index.scores, self.index.items)


def read_results(experiment: Experiment, records: Sequence[Record] | None = None) -> Results:
    """Return the results on disk. Print why some scores cannot be averaged or compared.

    records: those of the experiment, if they were read already.
    """
    if records is None:
        records = collect(experiment.cells, experiment.folder)
    index = score_index(experiment.cells, experiment.spec.evaluation, experiment.folder)
    _print_all(index.faults)
    return Results(experiment, records, index)


def print_faults(records: Sequence[Record]) -> int:
    """Print the faults of the records. Return the exit code: 1 if there is any fault, else 0."""
    return _print_all([fault for record in records for fault in record.faults])


def _print_all(faults: Sequence[str]) -> int:
    for fault in faults:
        say(fault)
    return int(bool(faults))


def evaluate_missing(experiment: Experiment, records: Sequence[Record]) -> int:
    """Make every missing score of these records and of the baselines of their models.

    Return 1 if something could not be scored.
    """
    spec, began = experiment.spec, time.monotonic()

    def show(event: EvaluationEvent) -> None:
        if not event.done:
            if engines.is_greedy(spec.evaluation.sampling):
                say(engines.GREEDY)
            say(f"evaluating {event.total} checkpoints with lm-evaluation-harness")
        elif (event.done * 10) % event.total < 10:  # each tenth
            left = (time.monotonic() - began) / event.done * (event.total - event.done)
            eta = f", about {duration(left)} left" if left > 5 else ""
            say(f"evaluated {event.done} of {event.total}{eta}")

    declared, faults = baselines.declared_baselines(
        spec.evaluation, experiment.cells, experiment.folder
    )
    code = _print_all(faults)
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
    return code


def with_evaluation(experiment: Experiment, *, divergence: bool) -> Experiment:
    """Return the experiment, with the KL to the reference policy to evaluate if its spec does not
    ask for it: on the prompts of the first task of each domain and condition."""
    evaluation = experiment.spec.evaluation
    if not divergence or evaluation.divergence is not None:
        return experiment
    first = {
        (task.domain, task.when): task.model_dump(include={*DivergenceTask.model_fields})
        for task in reversed(evaluation.tasks)
        if task.domain and task.name in plugins.task_names()
    }
    # else the backend's own stand for one of each domain
    tasks = [*first.values()] or [{"name": domain, "domain": domain} for domain in ("in", "out")]
    asked = DivergenceRequest.model_validate({"tasks": tasks})
    wider = evaluation.model_copy(update={"divergence": asked})
    return replace(experiment, spec=experiment.spec.model_copy(update={"evaluation": wider}))


def mirror(
    experiment: Experiment,
    records: Sequence[Record],
    scores: Sequence[Score],
    *,
    quiet: bool = False,
) -> MirrorReport:
    """Update MLflow. Print the address of the runs, unless `quiet`."""
    if not quiet:
        say("copying to MLflow what it does not have")
    done = tracking.mirror(records, scores, experiment.spec, experiment.folder)
    if not quiet:
        count = done.created + done.updated + done.unchanged
        gone = f", {done.deleted} of pruned cells deleted" if done.deleted else ""
        say(f"MLflow experiment {done.experiment}: {count} runs{gone}\n  {done.view}".rstrip())
    return done


def compare_records(
    experiment: Experiment, records: Sequence[Record], scores: Sequence[Score], items: ItemScores
) -> Comparison:
    """Return the statistics of results, with a word on claims that changed."""
    compared = compare(experiment.spec, records, scores, items)
    return replace(compared, claims_changed=_changed_claims(experiment, records))


def _changed_claims(experiment: Experiment, records: Sequence[Record]) -> str:
    """Return which claims were changed after the first run had ended."""
    first = min((e.ended for r in records for e in r.attempts if e is not None), default=math.inf)
    kept = [event for event in experiment.folder.events() if event["event"] == "claims"]
    before = [event for event in kept if event["time"] <= first] or kept[:1]
    spec = experiment.spec
    now = digests(spec.claims, spec.families)
    return changed_claims(before[-1]["digests"], now) if before else ""


def write_report(
    results: Results,
    target: Path | None = None,
    *,
    figures: bool = False,
    on_page: Callable[[Path], None] = lambda _page: None,
) -> Path:
    """Write index.html and report.md. Return the path of the page.

    on_page: called as soon as the page can be read, before figures are drawn. figures: also write
    each figure as PNG and PDF. Without it, remove the figures of an earlier page, because they
    would differ from this page. The page has the date of the newest result, so that the same
    results give the same page.
    """
    folder = target or results.experiment.folder.report
    built = build_report(results, folder)
    page = folder / "index.html"
    write_text(page, dashboards.html(built, dashboards.picture_names(built) if figures else None))
    write_text(folder / "report.md", markdown(built))
    on_page(page)
    dashboards.pictures(built if figures else None, folder / "figures")
    return page


def build_report(results: Results, home: Path) -> Report:
    """Return the report as plain data, dated by the newest result. home: the page's folder."""
    experiment, records, (scores, faults, _) = results.experiment, results.records, results.index
    sections, unshown = experiment_sections(experiment)
    _print_all(unshown)
    return report(
        results.comparison,
        records,
        scores,
        experiment.spec,
        last_lines=last_lines(records),
        created=newest_result(records),
        context=read_context(experiment, records, scores, home, faults, say),
        sections=sections,
    )


# ---------------------------------------------------------------- all of them, in order


class Review(NamedTuple):
    """The results of the stages after training."""

    comparison: Comparison
    page: Path
    """The report's index.html."""
    code: int
    """1 if something could not be read, scored or mirrored; else 0."""

    def data(self) -> dict[str, object]:
        """Return the verdicts on claims, what they come to, and where the report lies."""
        return {
            "answer": answer(self.comparison),
            "claims": comparison_data(self.comparison)["claims"],
            "report": str(self.page),
        }


class PipelineResult(NamedTuple):
    """The result of the pipeline: the stages that ran, and what they returned."""

    code: int
    """The exit code: 130 after Ctrl-C, 1 if something failed, else 0."""
    review: Review | None = None
    """None if training is not over, only training was requested, or nothing had changed."""


def plan_of(experiment: Experiment, chosen: Experiment, where: Sequence[str]) -> Plan:
    """Return the plan of the chosen cells; of all cells if `where` is empty."""
    every = plan_cells(experiment.cells, experiment.folder)
    return every.only({cell.id for cell in chosen.cells}) if where else every


def run(
    experiment: Experiment,
    chosen: Experiment,
    plan: Plan,
    *,
    train_only: bool = False,
    wait: bool = False,
    budget: float | None = None,
) -> PipelineResult:
    """Train the chosen cells that are missing, then evaluate, mirror and report.

    experiment: every cell of the spec; the report shows all of them. plan: the plan of the chosen
    cells. wait: on a cluster, return only when all jobs have ended. budget: the limit of
    GPU-hours of training.
    """
    if budget is not None:
        whole = plan_cells(experiment.cells, experiment.folder)
        say(training.refuse_over_budget(budget, plan, whole, experiment.folder))
    over = True
    if chosen.where == "local":
        code = training.on_this_machine(chosen, plan)
    else:
        code, over = training.on_cluster(chosen, plan, wait=wait)
    if train_only or code == 130 or not over:
        return PipelineResult(code)
    is_everything = len(chosen.cells) == len(experiment.cells)
    begun = any(training.may_run(row) for row in plan.rows if row.cell is not None)
    after = plan
    if begun or not is_everything:
        after = plan_cells(experiment.cells, experiment.folder)
    mark = experiment.folder.path / MARK
    known = None
    with suppress(RunFolderError):  # a kill cut the file: it counts as missing
        known = read_json(mark)
    if known is not None and known.get("digest") == digest_of(experiment, after):
        say(f"nothing to do; the report is {experiment.folder.report / 'index.html'}")
        return PipelineResult(code)
    reviewed = review(experiment, chosen)
    if reviewed.code == 0:
        write_text(mark, json.dumps({"digest": digest_of(experiment, after)}) + "\n")
    return PipelineResult(max(code, reviewed.code), reviewed)


def review(experiment: Experiment, chosen: Experiment) -> Review:
    """Do all stages after training, from disk: score the chosen cells, then report and mirror all
    cells."""
    records = collect(experiment.cells, experiment.folder)
    code = print_faults(records)
    ids = {cell.id for cell in chosen.cells}
    of_cells = [record for record in records if record.cell.id in ids]
    if experiment.where != "local":  # a login node is no place for models of full size
        of_cells = [record for record in of_cells if record.cell.scale == "micro"]
        small = tuple(cell for cell in chosen.cells if cell.scale == "micro")
        chosen = replace(chosen, cells=small)  # nor for their baselines
        if len(of_cells) < len(ids):
            say(
                "checkpoints of full size are scored by jobs, beside their training; `orch eval` "
                "scores where it is called what those left out"
            )
    code = max(code, evaluate_missing(chosen, of_cells))
    results = read_results(experiment, records)
    page = write_report(results)
    try:
        mirror(experiment, records, results.index.scores)
    except EnvironmentFault as fault:
        say(str(fault))
        code = 1
    return Review(results.comparison, page, code)


def run_data(
    experiment: Experiment, chosen: Experiment, where: Sequence[str], result: PipelineResult
) -> dict[str, object]:
    """Return what a run left, as plain data: states of the chosen cells, claims, the page."""
    page = experiment.folder.report / "index.html"
    states = Counter(row.state for row in plan_of(experiment, chosen, where).rows)
    return {
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "directory": str(experiment.folder.path),
        "code": result.code,
        "states": dict(states),
        "report": str(page) if page.exists() else None,
        **({} if result.review is None else result.review.data()),
    }
