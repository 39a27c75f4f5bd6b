"""orch plan: what would run, why, what it costs, and what each KL term really optimises."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from orchestrator.cli import common
from orchestrator.cli.common import MICRO_BANNER, CellChoice, print_json, say
from orchestrator.cli.manners import WOULD_CHANGE
from orchestrator.environments.extras import lacking
from orchestrator.errors import OrchError
from orchestrator.launch.check import translations
from orchestrator.launch.launchers import launcher_of
from orchestrator.pipeline.messages import counted
from orchestrator.runs.cost import bill, cost, measure
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.plan import plan as plan_of
from orchestrator.runs.status import counted_faults
from orchestrator.settings import without_seed
from orchestrator.site.forecast import containers, ray_shortages, time_limit_warnings
from orchestrator.spec.expand import how
from orchestrator.spec.rehearse import replaced_tasks, verdict_on
from orchestrator.spec.site_options import slurm_options

if TYPE_CHECKING:
    from orchestrator.records import Cell
    from orchestrator.runs.cost import Cost
    from orchestrator.runs.plan import Plan, PlanRow


@click.command(short_help="Show what would run, why, and what its KL term really optimises.")
@common.cells
@common.as_json
def command(choice: CellChoice, as_json: bool) -> int:
    """Show what `orch run` would do, but do not do it. This needs no GPU, cluster or trainer.

    Exit code 0: nothing would run; 3: something would run; 1: an error.
    """
    everything = choice.experiment()
    run_plan = plan_of(everything.cells, everything.folder)
    experiment = everything.chosen(choice.where)
    if choice.where:
        run_plan = run_plan.only({cell.id for cell in experiment.cells})
    _check_translations(run_plan, experiment)
    if as_json:
        print_json(plan_data(experiment, run_plan))
    else:
        if experiment.scale == "micro":
            say(MICRO_BANNER)
        print_plan(experiment, run_plan)
    if run_plan.pending and experiment.scale == "micro" and (sentence := lacking()) is not None:
        say(sentence)
    return WOULD_CHANGE if run_plan.pending else 0


def print_plan(experiment: Experiment, plan: "Plan") -> None:
    """Print studies, configurations with their verdicts, reasons, and the cost."""

    spec = experiment.spec
    click.echo(_filled(f"{spec.name}: {spec.question}" if spec.question else spec.name) + "\n")
    formulas = how(spec)
    for study in spec.studies:
        figure = f" ({study.figure})" if study.figure else ""
        click.echo(_filled(f"{study.name}{figure}: {formulas.get(study.name, '')}"))
    if len(experiment.cells) < len(experiment.declared):
        click.echo(f"\n{len(experiment.declared)} declared cells are {len(experiment.cells)} here.")
    click.echo()
    _print_configurations(_configurations(plan.rows))
    _print_details(plan.rows)
    _print_evaluation(experiment)
    for fault in counted_faults(plan):
        say(fault)
    for shortage in ray_shortages(experiment.declared, experiment.folder, spec.site.options):
        say(str(shortage))
    counts = ", ".join(f"{count} {reason}" for reason, count in plan.counts().items())
    click.echo(f"\n{len(experiment.cells)} cells: {counts or 'none'}")
    unfinished = [row.cell for row in plan.pending if row.cell is not None]
    if experiment.where == "slurm":
        _print_jobs(experiment, unfinished)
    click.echo(
        f"still to spend: {bill(unfinished, measure(plan.rows))}" if unfinished else "nothing to do"
    )
    if experiment.scale == "micro" and experiment.declared:
        click.echo(
            _filled(f"the same grid on its cluster, as declared: {bill(experiment.declared)}")
        )


def _print_configurations(groups: Iterable["_Group"]) -> None:
    """Print configurations under their study, and each verdict once, in 80 columns."""
    numbers: dict[str, int] = {}
    heading = ("", "")
    for group in groups:
        if heading != (group.study, group.where):
            heading = (group.study, group.where)
            click.echo(_filled(f"{group.study}: {group.where}"))
            click.echo(f"  {'KL':<15} {'beta':<20} {'cells':>5}  {'would be':<24}  KL does")
        number = numbers.setdefault(group.verdict, len(numbers) + 1)
        betas = ", ".join(group.betas)
        click.echo(
            f"  {group.kl:<15} {betas:<20} {group.cells:>5}  {group.reasons:<24}  ({number})"
        )
    click.echo("\nwhat the KL term optimises:" if numbers else "")
    for text, number in numbers.items():
        click.echo(_filled(f"{f'({number})':>4} {text}", 5))


def _filled(text: str, indent: int = 4) -> str:
    return textwrap.fill(
        text, 79, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _print_evaluation(experiment: Experiment) -> None:
    """Print which tasks are scored in the place of the declared ones, if any are."""
    scored = replaced_tasks(experiment.cells, experiment.spec.evaluation)
    if not scored:
        return
    declared = ", ".join(task.name for task in experiment.spec.evaluation.tasks)
    by_domain = {
        domain: sorted({task.name for task in scored if task.domain == domain})
        for domain in ("in", "out")
    }
    click.echo(
        "\n"
        + _filled(
            f"evaluation  declared: {declared}. A rehearsal cannot run these. In their place:", 12
        )
    )
    for domain, names in by_domain.items():
        if names:
            click.echo(f"            {domain} of domain: {', '.join(names)}")
    sizes = sorted({(task.repeats, task.max_items) for task in scored}, key=str)
    for repeats, items in sizes:
        each = "every item" if items is None else f"each of {items} items"
        click.echo(f"            {repeats} responses to {each}")


def _print_jobs(experiment: Experiment, cells: "Sequence[Cell]") -> None:
    """Print the resources of the jobs of cells that would run, and warnings about their time
    limit.
    """
    site = experiment.spec.site
    options = slurm_options(site.options)
    for job in launcher_of(site, experiment.where, experiment.folder).resources(cells):
        click.echo(f"jobs of {counted(job.cells, 'cell')}: {job}")
    for release, words in containers(cells, experiment.folder, options).items():
        click.echo(f"{release} runs in an image: {words}")
    for sentence in time_limit_warnings([c for c in cells if c.scale == "full"], options):
        say(sentence)


class _Group(NamedTuple):
    """Configurations that differ in nothing but beta and seed."""

    study: str
    where: str
    kl: str
    betas: tuple[str, ...]
    cells: int
    reasons: str
    verdict: str


def _configurations(rows: Iterable["PlanRow"]) -> list[_Group]:
    """Return what is planned, in the order of the spec."""
    titles: dict[tuple[object, ...], tuple[str, str, str, str]] = {}
    groups: dict[tuple[str, str, str, str], list[PlanRow]] = {}
    for row in rows:
        if (cell := row.cell) is None:
            continue
        axes = [axis for axis in cell.axes.items() if axis[0] != "seed"]
        key = (without_seed(cell.settings), cell.studies, *axes)
        title = titles.get(key)
        if title is None:
            title = titles[key] = _title(cell)
        groups.setdefault(title, []).append(row)
    grids = []
    for (study, where, kl, verdict), same in groups.items():
        betas = dict.fromkeys(row.cell.axes.get("beta", "") for row in same if row.cell)
        shown = () if kl == "none" else tuple(beta for beta in betas if beta)
        grids.append(_Group(study, where, kl, shown, len(same), _reasons(same), verdict))
    return sorted(
        grids, key=lambda g: [(m.study, m.where) for m in grids].index((g.study, g.where))
    )


def _title(cell: "Cell") -> tuple[str, str, str, str]:
    """Return study, place in the grid, KL term and verdict of a cell, the same for all seeds."""
    axes = {k: v for k, v in cell.axes.items() if k not in ("seed", "beta")}
    kl = axes.pop("kl", "")
    where = " ".join(f"{k}={v}" if k not in _PLAIN_AXES else v for k, v in _released(axes).items())
    return "+".join(cell.studies), where, kl, verdict_on(cell.settings).summary


_PLAIN_AXES = ("model", "data", "backend")


def _released(axes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the axes with each library's release beside its name, where both vary."""
    names, releases = (axes.get(k, "").split(" | ") for k in ("backend", "backend.version"))
    if len(names) != len(releases) or releases == [""]:
        return axes
    both = [n if r == "none" else f"{n}@{r}" for n, r in zip(names, releases, strict=True)]
    rest = {k: v for k, v in axes.items() if k != "backend.version"}
    return {**rest, "backend": " | ".join(both)}


def _reasons(rows: Sequence["PlanRow"]) -> str:
    reasons = [row.reason for row in rows]
    return ", ".join(
        reason if len(set(reasons)) == 1 else f"{reasons.count(reason)} {reason}"
        for reason in dict.fromkeys(reasons)
    )


def _print_details(rows: Iterable["PlanRow"], most: int = 20) -> None:
    """Print why cells are not simply new or unchanged, one by one."""
    detailed = [row for row in rows if row.detail and row.reason not in ("new", "unchanged")]
    if detailed:
        click.echo()
    for row in detailed[:most]:
        click.echo(f"{row.reason}  {row.directory.path.name}: {row.detail}")
    if len(detailed) > most:
        click.echo(f"... and {len(detailed) - most} more (--json lists all)")


def _check_translations(plan: "Plan", experiment: Experiment) -> None:
    """Raise, with all of them, for cells that would run and cannot be expressed."""

    refused: dict[str, list[str]] = {}
    pending = [row.cell for row in plan.pending if row.cell is not None]
    for cell, launch in translations(pending, experiment.folder):
        if isinstance(launch, OrchError):
            refused.setdefault(str(launch), []).append(cell.slug)
    if refused:
        count = sum(map(len, refused.values()))
        lines = [f"  {error}\n    {_some(slugs)}" for error, slugs in refused.items()]
        raise OrchError("\n".join([f"{count} cells cannot be launched", *lines]))


def _some(slugs: Sequence[str], most: int = 4) -> str:
    more = f" and {len(slugs) - most} more" if len(slugs) > most else ""
    return ", ".join(slugs[:most]) + more


def plan_data(experiment: Experiment, plan: "Plan") -> dict[str, object]:
    """Return a plan as plain data: counts, cost, a row a cell."""
    measured = measure(plan.rows)
    pending = [row.cell for row in plan.pending if row.cell is not None]
    evaluation = experiment.spec.evaluation
    scored = replaced_tasks(experiment.cells, evaluation) or evaluation.tasks
    jobs: list[dict[str, object]] = []
    if experiment.where == "slurm":
        launcher = launcher_of(experiment.spec.site, experiment.where, experiment.folder)
        jobs = [job._asdict() for job in launcher.resources(pending)]
    return {
        "jobs": jobs,
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "declared": len(experiment.declared),
        "counts": plan.counts(),
        "pending": len(plan.pending),
        "still_to_spend": bill(pending, measured)._asdict(),
        "evaluation": {
            "declared": sorted(task.name for task in evaluation.tasks),
            "scored": sorted({task.name for task in scored}),
        },
        "cells": [
            _plain_row(row, cost(row.cell, measured) if row.cell else None) for row in plan.rows
        ],
    }


def _plain_row(row: "PlanRow", price: "Cost | None") -> dict[str, object]:
    data: dict[str, object] = {
        "id": row.directory.id,
        "slug": row.directory.slug,
        "state": row.state,
        "reason": row.reason,
        "detail": row.detail,
        "changes": [change._asdict() for change in row.changes],
    }
    if row.cell is None or price is None:
        return data
    verdict = verdict_on(row.cell.settings)
    return data | {
        "studies": row.cell.studies,
        "axes": row.cell.axes,
        "objective": verdict.objective.value,
        "verdict": verdict.summary,
        "cost": price._asdict(),
    }
