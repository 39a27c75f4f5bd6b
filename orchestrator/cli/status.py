"""orch status: where everything stands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import counted_faults, number, print_json, print_table, say
from orchestrator.cli.standing import lines, standing
from orchestrator.cli.watching import watch as keep_showing
from orchestrator.launch.slurm.poll import one_look
from orchestrator.metrics.stillness import stillness
from orchestrator.runs.collect import collect
from orchestrator.runs.cost import (
    evaluation_spending,
    measure,
    remaining_bill,
    remaining_gpu_hours,
    used_cpu_seconds,
    used_gpu_hours,
)
from orchestrator.runs.experiment import Experiment, open_experiment, saved_experiments
from orchestrator.runs.plan import plan as plan_of
from orchestrator.runs.state import elsewhere
from orchestrator.runs.watch import latest_metrics

if TYPE_CHECKING:
    from orchestrator.rundir import RunFolder
    from orchestrator.runs.plan import Plan, PlanRow

_LEFT = ("planned", "submitted", "pending", "running", "unknown", "preempted", "timed_out")
"""States of cells that are still to be trained, wholly or from where they are."""
_LISTED = ("submitted", "running", "failed", "cancelled", "unknown", "preempted", "timed_out")


@click.command(short_help="Show the states of cells, their progress and cost.")
@click.argument("spec", metavar="[SPEC]", required=False)
@common.overrides
@common.where
@click.option(
    "--all", "everything", is_flag=True, help="List every cell, also cells that are done."
)
@click.option(
    "--watch",
    is_flag=True,
    help="Show it again and again, with curves, until every cell has ended.",
)
@common.as_json
@common.runs_dir
def command(
    spec: str | None,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    everything: bool,
    watch: bool,
    as_json: bool,
    runs_dir: Path,
) -> None:
    """Show the states of a spec's cells, or without SPEC of every experiment in the runs folder.

    The command reads the run directories and changes nothing.
    """
    if spec is None:
        experiments = saved_experiments(runs_dir)
    else:
        experiments = [open_experiment(spec, overrides)]
    if not experiments:
        click.echo(f"no experiment has run yet below {runs_dir}", err=True)
    if watch and experiments and not as_json:
        keep_showing(experiments, where, _hours_line)
        return
    _show(experiments, where, everything, as_json)


def _show(
    experiments: Sequence[Experiment], where: Sequence[str], everything: bool, as_json: bool
) -> None:
    plain = []
    for experiment in experiments:
        with one_look(experiment.folder):
            chosen = {cell.id for cell in experiment.chosen(where).cells}
            cell_plan = plan_of(experiment.cells, experiment.folder).only(chosen)
            if as_json:
                plain.append(_plain(experiment, cell_plan, everything))
            else:
                _print(experiment, cell_plan, everything)
    if as_json:
        print_json(plain)


def _print(experiment: Experiment, plan: "Plan", everything: bool) -> None:
    counts = _states(plan)
    total = len(plan.rows)
    done = counts.get("succeeded", 0)
    click.echo(
        f"{experiment.folder.experiment}: {done} of {total} cells done"
        + "".join(
            f", {n} {named(state, experiment.where)}"
            for state, n in counts.items()
            if state != "succeeded"
        )
    )
    spent = used_cpu_seconds(plan.rows)
    remaining = remaining_bill(
        [r for r in plan.rows if r.cell and r.state in _LEFT], measure(plan.rows)
    )
    collapsed = sum(_collapsed(row) for row in plan.rows)
    click.echo(f"  {collapsed} collapsed; spent {number(spent)} CPU-seconds; left {remaining}")
    for sentence in elsewhere(row.exit for row in plan.rows):
        click.echo(f"  {sentence}")
    if (hours := _gpu_hours(plan, experiment.folder)) is not None:
        click.echo(f"  GPU-hours: {hours[0]:.3g} used, {hours[1]:.3g} remaining")
    for line in lines(standing(experiment, plan)):
        click.echo(f"  {line}")
    for sentence in counted_faults(plan):
        say(sentence)
    for sentence in _still(experiment, plan, everything):
        say(sentence)
    listed = [row for row in plan.rows if everything or row.state in _LISTED]
    if listed:
        rows = [_line(row) for row in listed]
        print_table(
            ("cell", "state", "step", "reward", "detail"),
            [(row[0], named(str(row[1]), experiment.where), *row[2:]) for row in rows],
        )


def named(state: str, where: str) -> str:
    """Return a state in words: on this machine nobody preempts, a person interrupts."""
    return "interrupted" if state == "preempted" and where == "local" else state


def _still(experiment: Experiment, plan: "Plan", everything: bool) -> list[str]:
    """Return sentences about listed cells without any gradient. The report has all cells."""
    listed = [r.cell for r in plan.rows if r.cell and (everything or r.state in _LISTED)]
    return [
        stretch.sentence(f"{record.cell.slug} ({record.cell.id})")
        for record in collect(listed, experiment.folder)
        if (stretch := stillness(record.metrics)) is not None
    ]


def _hours_line(experiment: Experiment) -> str:
    """Return GPU-hours used and remaining as text, where cells take GPUs."""
    if experiment.scale == "micro":
        return ""
    hours = _gpu_hours(plan_of(experiment.cells, experiment.folder), experiment.folder)
    return f"GPU-hours: {hours[0]:.3g} used, {hours[1]:.3g} remaining" if hours else ""


def _gpu_hours(plan: "Plan", folder: "RunFolder") -> tuple[float, float] | None:
    """Return GPU-hours used, also by evaluations, and remaining; None without GPUs."""
    if not any(
        r.cell and r.cell.scale == "full" and r.cell.resources.gpus_per_node for r in plan.rows
    ):
        return None
    measured = measure(plan.rows)
    remaining = [
        remaining_gpu_hours(r.cell, r.directory, measured)
        for r in plan.rows
        if r.cell and r.state not in ("succeeded", "cancelled")
    ]
    spent = used_gpu_hours(plan.rows) + evaluation_spending(folder).used
    return spent, sum(hours for hours in remaining if hours == hours)


def _line(row: "PlanRow") -> tuple[object, ...]:
    attempts = row.directory.attempts()
    now = latest_metrics(attempts[-1].path) if attempts else None
    total = row.cell.settings.num_train_steps if row.cell else "?"
    detail = row.detail.partition("\n")[0]
    return (
        row.directory.path.name,
        row.state,
        f"{now.step if now else 0}/{total}",
        number(now.reward if now else None),
        detail,
    )


def _states(plan: "Plan") -> dict[str, int]:
    states = [row.state for row in plan.rows]
    return {state: states.count(state) for state in dict.fromkeys(states)}


def _collapsed(row: "PlanRow") -> bool:
    return bool(row.exit and row.exit.outcome and row.exit.outcome.kind == "collapsed")


def _plain(experiment: Experiment, plan: "Plan", everything: bool) -> dict[str, object]:
    hours = _gpu_hours(plan, experiment.folder)
    return {
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "directory": str(experiment.folder.path),
        "states": _states(plan),
        "collapsed": sum(_collapsed(row) for row in plan.rows),
        "trained_elsewhere": sum(bool(row.exit and row.exit.origin) for row in plan.rows),
        "cluster": standing(experiment, plan),
        "without_gradient": _still(experiment, plan, everything),
        "gpu_hours": dict(zip(("used", "remaining"), hours, strict=True)) if hours else None,
        "cells": [
            {
                "id": row.directory.id,
                "slug": row.directory.slug,
                "state": row.state,
                "attempts": row.attempts,
                "detail": row.detail,
                "exit": json.loads(row.exit.model_dump_json()) if row.exit else None,
            }
            for row in plan.rows
        ],
    }
