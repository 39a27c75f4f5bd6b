"""orch tune: search over beta, or over any other field, with Optuna."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import common as options
from orchestrator.cli.common import MICRO_BANNER, say
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.records import Record
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.report import Report
    from orchestrator.search.controller import Controller
    from orchestrator.search.design import Search
    from orchestrator.search.journal import SearchJournal
    from orchestrator.search.results import SearchOutcome


@click.command(short_help="Search over beta, or any other field, with Optuna.")
@options.spec
@options.overrides
@click.option("--name", help="Name of the search; each has a journal of its own.")
@click.option(
    "--space",
    multiple=True,
    metavar="FIELD=RANGE",
    help="What is varied: 'kl.beta=log(0.001, 1)', 'kl.estimator=[k1, k3]'.",
)
@click.option(
    "--each",
    multiple=True,
    metavar="FIELD=[VALUES]",
    help="One search for each of these: 'kl=[k1.reward, k3.loss]'.",
)
@click.option(
    "--maximize",
    multiple=True,
    metavar="FORMULA",
    help="A metric or a sum: 'eval/in_domain/mean - 0.5 * eval/kl_reverse'.",
)
@click.option("--minimize", multiple=True, metavar="FORMULA")
@click.option("--seeds", metavar="[SEEDS]", help="Seeds of each trial: '[0, 1, 2]'.")
@click.option("--trials", type=int, help="Trials of each search.")
@click.option("--parallel", type=int, help="Trials at the same time.")
@click.option("--max-gpu-hours", type=float, help="Budget of each search.")
@click.option("--sampler", help="tpe, gp (needs PyTorch), random or qmc.")
@click.option("--pruner", help="none, hyperband, median or wilcoxon.")
@click.option("--submit", is_flag=True, help="On a cluster: run this command as a small job.")
@click.option(
    "--cancel",
    is_flag=True,
    help="Stop the cells of trials that are under way. End "
    "`orch tune` first: it would ask for others.",
)
@click.option("--report-only", is_flag=True, help="Write the report of what is there, and stop.")
@click.option("--dry-run", is_flag=True, help="Check everything, show the searches, and stop.")
@options.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    submit: bool,
    cancel: bool,
    report_only: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search as the `tune` block of SPEC says; flags replace its entries.

    Trials are ordinary cells: `orch logs ID`, `orch show ID` and MLflow know them. Stop with Ctrl-C
    and go on with the same command; several may run on one folder at once. A front of several
    objectives has no pruning: Optuna prunes for one only.

    On a SLURM cluster trials are jobs, evaluated by jobs; this command asks, follows and tells, and
    has to live while new trials are to be asked: keep it in tmux or screen on a login node, or
    --submit it as a small job of its own. Ctrl-C, a kill or its time limit leave the jobs of trials
    at work; the same command goes on, from this login node or another.
    """
    from orchestrator.runs.experiment import open_experiment
    from orchestrator.search.design import design
    from orchestrator.search.journal import SearchJournal

    experiment = open_experiment(spec, overrides)
    searches = design(experiment, _block(flags))
    block = searches[0].tune.block
    if experiment.scale == "micro":
        say(MICRO_BANNER)
    if dry_run:
        _show(searches)
        return 0
    journal = SearchJournal(experiment.folder, block.name)
    if cancel:
        return _cancel(experiment, searches, journal)
    if submit:
        return _submit(experiment, journal)
    if not report_only:
        search = _search_there if experiment.where == "slurm" else _search_here
        if not search(experiment, searches, journal):
            return 130
    return _review(experiment, searches, journal, as_json)


def _block(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as entries of the block."""
    found = {name: value for name, value in flags.items() if value not in (None, ())}
    for name in ("space", "each"):
        if name in found:
            found[name] = dict(_pair(f"--{name}", text) for text in found[name])
    if "seeds" in found:
        found["seeds"] = _yaml("--seeds", found["seeds"])
    objectives = dict.fromkeys(found.pop("maximize", ()), "maximize")
    objectives |= dict.fromkeys(found.pop("minimize", ()), "minimize")
    return found | ({"objectives": objectives} if objectives else {})


def _pair(flag: str, text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise OrchError(f"{flag} is FIELD=...; got {text!r}")
    return field.strip(), _yaml(flag, value)


def _yaml(flag: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OrchError(f"{flag} cannot be read: {text!r} is no YAML value") from error


def _show(searches: "Sequence[Search]") -> None:
    """What would be searched, and what a trial is expected to cost."""
    from orchestrator.cli.common import print_table
    from orchestrator.runs.cost import bill

    rows = []
    for search in searches:
        space = "; ".join(f"{each.field} in {each}" for each in search.space)
        cells = search.cells(search.corners()[0], search.tune.seeds)
        goals = "; ".join(map(str, search.objectives))
        rows.append((search.name, space, goals, search.tune.block.trials, bill(cells)))
    print_table(("search", "space", "objective", "trials", "a trial costs"), rows)


def _search_here(
    experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal"
) -> bool:
    """Whether it came to its end; after Ctrl-C it did not."""
    from orchestrator.cli.training import keep_spec
    from orchestrator.runs.watch import watch
    from orchestrator.search.controller import Controller
    from orchestrator.search.local import search_here
    from orchestrator.search.scorer import Scorer

    folder, spec = experiment.folder, experiment.spec
    if not folder.spec.exists():
        keep_spec(experiment)
    with Scorer(spec.evaluation, folder, spec.site.workers) as scorer, watch([]) as display:
        controller = Controller(searches, journal, scorer, say)
        _reuse(controller)
        ended = search_here(controller, workers=spec.site.workers, on_event=display.show)
    if not ended:
        say(
            "stopped; nothing is lost. Go on with the same command; --report-only writes the "
            "report of what is there."
        )
    return ended


def _search_there(
    experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal"
) -> bool:
    """The same on a cluster."""
    from orchestrator.cli.training import keep_spec
    from orchestrator.search.controller import Controller
    from orchestrator.search.slurm import JobScorer, on_cluster, search_there
    from orchestrator.spec.site_options import slurm_options

    folder, options = experiment.folder, slurm_options(experiment.spec.site.options)
    keep_spec(experiment)  # evaluation jobs read what is asked there
    objectives = searches[0].objectives
    scorer = JobScorer(objectives, folder, options, say)
    controller = Controller(searches, journal, scorer, say, on_cluster(options, say))
    _reuse(controller)
    ended = search_there(controller, options, evaluate=any(o.is_scored for o in objectives))
    if not ended:
        say(
            "stopped asking; jobs that were submitted go on. Go on with the same command; --cancel "
            "stops them, --report-only writes the report of what is there."
        )
    return ended


def _submit(experiment: Experiment, journal: "SearchJournal") -> int:
    """This command without --submit, as a job."""
    import sys

    from orchestrator.search.slurm import detach
    from orchestrator.spec.site_options import slurm_options

    if experiment.where != "slurm":
        raise OrchError("--submit is for a SLURM site; here the command runs as it is")
    experiment.folder.open()
    arguments = [word for word in sys.argv[1:] if word != "--submit"]
    job, log = detach(arguments, journal, slurm_options(experiment.spec.site.options))
    say(
        f"the controller is job {job}; it says how it gets on in {log}\nWhen its time is over the "
        "same command goes on."
    )
    return 0


def _cancel(experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal") -> int:
    """Stops the cells of open trials; whoever searches next tells those trials as failed."""
    from orchestrator.runs import operations
    from orchestrator.search.results import found

    studies, grid = journal.studies(), {cell.id for cell in experiment.cells}
    cells = {
        cell.id: cell
        for search in searches
        if search.name in studies
        for trial in found(search, studies[search.name]).trials
        if trial.state == "RUNNING" and trial.params
        for cell in search.cells_at(trial.params, search.tune.seeds)
        if cell.id not in grid
    }
    done = operations.cancel(cells.values(), experiment.folder) if cells else []
    for one in done:
        say(f"{one.directory.slug}: {one.note}")
    say(f"{sum(one.done for one in done)} cells of trials cancelled")
    return 0


def _reuse(controller: "Controller") -> None:
    from orchestrator.search.controller import reuse

    for search in controller.searches:
        if not search.tune.block.reuse:
            continue
        if added := reuse(search, controller.journal, controller.studies[search.name]):
            say(f"{search.name}: {added} trials taken from the grid's results")


def _review(
    experiment: Experiment, searches: "Sequence[Search]", journal: "SearchJournal", as_json: bool
) -> int:
    """Reads what was found, mirrors it, writes the page, and says the best."""
    from orchestrator.cli import stages
    from orchestrator.cli.common import print_json, print_table
    from orchestrator.evaluate import read_scores
    from orchestrator.search.results import found
    from orchestrator.search.section import best_table, keep_links, plain, report
    from orchestrator.tracking.links import cell_runs

    studies = journal.studies()
    told = [found(s, studies[s.name]) for s in searches if s.name in studies]
    if not told:
        raise OrchError(f"{journal.path} has no search yet; leave --report-only out to begin one")
    records = _records(experiment, told)
    code, runs = stages.tell_faults(records), {}
    folder, uri = experiment.folder, experiment.spec.site.tracking_uri
    try:
        scores = [s for record in records for s in read_scores(folder.cell(record.cell))]
        stages.mirror(experiment, records, scores)
        runs = cell_runs(folder, uri, {record.cell.id for record in records}).runs
        keep_links(journal, runs)
    except EnvironmentFault as error:
        say(str(error))
        code = 1
    page = _write(journal.path / "report", report(experiment, told, runs))
    if as_json:
        print_json(plain(told, runs))
    else:
        table = best_table(told)
        print_table(table.columns, table.rows)
    say(f"report: {page}\nlive: optuna-dashboard {shlex.quote(str(journal.log))}")
    return code


def _records(experiment: Experiment, told: "Sequence[SearchOutcome]") -> list[Record]:
    """Of the grid's cells and of every cell of a trial, each once."""
    from orchestrator.runs.collect import collect
    from orchestrator.search.results import confirm_cells

    cells = {cell.id: cell for cell in experiment.cells}
    for one in told:
        for trial in one.trials:
            if trial.params:
                for cell in one.search.cells_at(trial.params, one.search.tune.seeds):
                    named = {**cell.axes, "search": one.search.name, "trial": str(trial.number)}
                    cells.setdefault(cell.id, cell.model_copy(update={"axes": named}))
        if one.chosen is not None:
            cells |= {c.id: c for c in confirm_cells(one.search, one.chosen) if c.id not in cells}
    return collect(cells.values(), experiment.folder)


def _write(folder: Path, made: "Report") -> Path:
    import dashboards
    from orchestrator.files import write_text
    from orchestrator.report import markdown

    write_text(folder / "index.html", dashboards.html(made))
    write_text(folder / "report.md", markdown(made))
    return folder / "index.html"
