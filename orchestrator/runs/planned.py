"""A plan for a reader: its configurations with their verdicts, its refused cells, plain data."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from orchestrator import harness_tasks, plugins
from orchestrator.errors import OrchError
from orchestrator.identity import digest, identity
from orchestrator.kl.library_semantics import (
    DIFFERENCES,
    beta_of_half_solved_groups,
    differing,
    relevant,
)
from orchestrator.launch.check import refusals
from orchestrator.launch.disk_use import disk_use
from orchestrator.launch.gpu_memory import memory_lines
from orchestrator.launch.launchers import planned_jobs
from orchestrator.library.neighbour import library_name
from orchestrator.records import Cell, EvaluationSpec
from orchestrator.runs.cost import (
    Price,
    price,
    scoring_line,
    total,
)
from orchestrator.runs.doubts import Doubt
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.pilot import known_rates
from orchestrator.runs.plan import Plan, PlanRow
from orchestrator.settings import BackendRef, Settings
from orchestrator.spec.expand import place_of
from orchestrator.spec.rehearse import replaced_tasks, semantics, verdict_on
from orchestrator.spec.sentences import counted, few


class PlannedGroup(NamedTuple):
    """Configurations that differ in nothing but beta and seed."""

    study: str
    where: str
    """The values of the other axes."""
    kl: str
    betas: tuple[str, ...]
    cells: int
    reasons: str
    """Why the cells would run or not."""
    verdict: str


def planned_groups(rows: Iterable[PlanRow]) -> Iterator[PlannedGroup]:
    """Yield the configurations of the cells of a plan, in the order of the spec."""
    groups: dict[tuple[str, str], dict[tuple[str, str], list[PlanRow]]] = {}
    for row in rows:
        if (cell := row.cell) is None:
            continue
        study, where, kl, verdict = _title(cell)
        groups.setdefault((study, where), {}).setdefault((kl, verdict), []).append(row)
    for (study, where), terms in groups.items():
        for (kl, verdict), same in terms.items():
            betas = dict.fromkeys(row.cell.axes.get("beta", "") for row in same if row.cell)
            shown = () if kl == "none" else tuple(beta for beta in betas if beta)
            yield PlannedGroup(study, where, kl, shown, len(same), _reasons(same), verdict)


def _title(cell: Cell) -> tuple[str, str, str, str]:
    """Return study, place in the grid, KL term and verdict of a cell, the same for all seeds."""
    axes = {k: v for k, v in cell.axes.items() if k not in ("seed", "beta")}
    kl = axes.pop("kl", "")
    where = " ".join(f"{k}={v}" if k not in _PLAIN_AXES else v for k, v in axes.items())
    return "+".join(cell.studies), where, kl, verdict_on(cell.settings).summary


_PLAIN_AXES = ("model", "data", "backend")


def _reasons(rows: Sequence[PlanRow]) -> str:
    reasons = [row.reason for row in rows]
    return ", ".join(
        reason if len(set(reasons)) == 1 else f"{reasons.count(reason)} {reason}"
        for reason in dict.fromkeys(reasons)
    )


def joined_cells(experiment: Experiment) -> str:
    """Return why fewer cells are trained here than are declared; empty if all are."""
    if len(experiment.cells) >= len(experiment.declared):
        return ""
    joined = {
        f"{axis} {value}": None
        for cell in experiment.cells
        for axis, value in cell.axes.items()
        if " | " in value and axis != "backend.version"
    }
    counts = f"{len(experiment.declared)} declared cells are {len(experiment.cells)} here."
    return counts + (f" Trained as one: {'; '.join(joined)}." if joined else "")


def differing_libraries(experiment: Experiment) -> list[str]:
    """Return what equal settings mean differently from library to library, a sentence a library.

    The first library declared is the measure. Empty for experiments of one library.
    """
    apart: dict[tuple[BackendRef, BackendRef], dict[str, int]] = {}
    for by_library in _by_library(experiment):
        (base, *_), (one, *others) = by_library, by_library.values()
        for other in others:
            causes = apart.setdefault((base, other.backend), {})
            parts = (relevant(semantics(each.backend).dialect, each) for each in (one, other))
            for title in {DIFFERENCES[cause].title for cause in differing(*parts)}:
                causes[title] = causes.get(title, 0) + 1
    return [
        f"{library_name(other)}, beside {library_name(base)}: "
        + ", ".join(f"{title} ({causes[title]})" for title in sorted(causes))
        for (base, other), causes in apart.items()
        if causes
    ]


def effective_betas(experiment: Experiment) -> list[str]:
    """Return the effective beta of the KL terms that libraries weigh differently, as lines.

    It is that of groups in which half of the rollouts solve the prompt.
    """
    terms: dict[tuple[str, tuple[str, ...]], dict[str, list[str]]] = {}
    for by_library in _by_library(experiment):
        kl = next(iter(by_library.values())).kl
        weighed: dict[str, list[str]] = {}
        for backend, settings in by_library.items():
            beta = beta_of_half_solved_groups(settings, semantics(backend).dialect)
            text = f"{beta:.2g}" if beta is not None else "decided by the responses' lengths"
            weighed.setdefault(text, []).append(library_name(backend))
        if len(weighed) > 1:
            libraries = tuple(", ".join(names) for names in weighed.values())
            declared = terms.setdefault((kl.label, libraries), {})
            declared.setdefault(f"{kl.beta:g}", list(weighed))
    same: dict[str, list[str]] = {}
    for (label, libraries), declared in terms.items():
        weights = (", ".join(dict.fromkeys(each)) for each in zip(*declared.values(), strict=True))
        texts = (f"{beta} in {names}" for beta, names in zip(weights, libraries, strict=True))
        line = f"at β {', '.join(declared)}: {'; '.join(texts)}"
        same.setdefault(line, []).append(label)
    return [f"{', '.join(dict.fromkeys(labels))} {line}" for line, labels in same.items()]


def _by_library(experiment: Experiment) -> list[dict[BackendRef, Settings]]:
    """Return the declared settings that differ in nothing but library and seed, by library."""
    groups: dict[str, dict[BackendRef, Settings]] = {}
    if len({cell.settings.backend for cell in experiment.declared}) > 1:
        for settings in (cell.settings for cell in experiment.declared):
            same = {**identity(settings), "backend": {}, "seed": 0}
            groups.setdefault(digest(same), {}).setdefault(settings.backend, settings)
    return list(groups.values())


def evaluation_lines(experiment: Experiment) -> list[str]:
    """Return which tasks are scored in the place of the declared ones, as a line; none if these
    are."""
    scored = replaced_tasks(experiment.cells, experiment.spec.evaluation)
    rehearsed = any(cell.declared for cell in experiment.cells)
    replaced = [
        task.name
        for task in experiment.spec.evaluation.tasks
        if rehearsed or task.name in plugins.task_names()
    ]
    if not scored or not replaced:
        return []
    where = {"in": " in domain", "out": " out of domain", None: ""}
    instead = dict.fromkeys(f"{task.name}{where[task.domain]}" for task in scored)
    return [f"declared: {', '.join(replaced)}. A rehearsal scores instead: {', '.join(instead)}"]


def harness_lines(evaluation: EvaluationSpec) -> list[str]:
    """Return what each task of the harness needs of the machine that scores it, a sentence each."""
    named = [task.name for task in evaluation.tasks if task.name not in plugins.task_names()]
    lines = [f"{', '.join(named)}: scored by lm-eval {harness_tasks.VERSION}"] if named else []
    for name in named:
        task = harness_tasks.find(name)
        data = [each for each in task.needs if each.startswith(harness_tasks.NLTK)]
        packages = [each for each in task.needs if each not in data]
        if packages:
            lines.append(
                f"{name} needs {', '.join(packages)}; `orch env create "
                f"lm-eval@{harness_tasks.VERSION}` makes the environment in which it is scored"
            )
        if data:
            names = " ".join(each.removeprefix(harness_tasks.NLTK) for each in data)
            lines.append(
                f"{name} needs nltk's data {names}: `python -m nltk.downloader {names}` in that "
                "environment, where there is a network"
            )
        lines += [
            f"{name} reads {each}, which is gated: accept its terms on the hub, and set HF_TOKEN"
            for each in task.gated
        ]
    return lines


def refuse(plan: Plan, experiment: Experiment, all_doubts: Sequence[Doubt]) -> None:
    """Raise OrchError with every cell that would run and that its library cannot express, and with
    every fault beside these."""
    pending = [row.cell for row in plan.pending if row.cell is not None]
    if refused := refusals(pending, experiment.folder):
        count = sum(map(len, refused.values()))
        lines = []
        for (error, field), cells in refused.items():
            lines.append(f"  {error}")
            places: dict[str, list[str]] = {}
            for cell in cells:
                places.setdefault(place_of(cell, field), []).append(cell.slug)
            lines += [f"    {place}: {few(slugs)}" for place, slugs in places.items()]
        head = f"{counted(count, 'cell')} cannot be launched"
        if experiment.scale == "micro":
            head = f"{counted(count, 'cell')} cannot be rehearsed on this machine"
            if experiment.declared and not refusals(experiment.declared, experiment.folder):
                lines.append(
                    "  only the rehearsal is refused: site=slurm_a100, or your own site, plans "
                    "the launch as it is declared"
                )
        if count < len(pending):
            lines.append("  `exclude` in the study, or -w, leaves cells out")
        lines += [f"CANNOT WORK  {doubt}" for doubt in all_doubts if doubt.fault]
        raise OrchError("\n".join([head, *lines]))


def plan_data(experiment: Experiment, plan: Plan, all_doubts: Sequence[Doubt]) -> dict[str, object]:
    """Return a plan as plain data: counts, cost, a row a cell."""
    rates = known_rates(plan.rows, experiment.folder)
    pending = [row.cell for row in plan.pending if row.cell is not None]
    evaluation = experiment.spec.evaluation
    scored = replaced_tasks(experiment.cells, evaluation) or evaluation.tasks
    checkpoints = disk_use(pending)
    jobs: list[dict[str, object]] = []
    if experiment.where != "local":
        site, where = experiment.spec.site, experiment.where
        jobs = [job._asdict() for job in planned_jobs(pending, site, where, experiment.folder)]
    return {
        "doubts": [doubt._asdict() for doubt in all_doubts],
        "jobs": jobs,
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "declared": len(experiment.declared),
        "libraries": differing_libraries(experiment),
        "effective_betas": effective_betas(experiment),
        "counts": plan.counts(),
        "pending": len(plan.pending),
        "memory": memory_lines(pending, experiment.spec.site),
        "checkpoint_bytes": None if checkpoints is None else checkpoints.total,
        "still_to_spend": total(pending, rates)._asdict(),
        "evaluation": {
            "declared": sorted(task.name for task in evaluation.tasks),
            "scored": sorted({task.name for task in scored}),
            "needs": harness_lines(evaluation),
            "scoring": scoring_line(pending, evaluation),
        },
        "cells": [
            _plain_row(row, price(row.cell, rates) if row.cell else None) for row in plan.rows
        ],
    }


def _plain_row(row: PlanRow, priced: Price | None) -> dict[str, object]:
    data: dict[str, object] = {
        "id": row.directory.id,
        "slug": row.directory.slug,
        "state": row.state,
        "reason": row.reason,
        "detail": row.detail,
    }
    if row.cell is None:
        return data
    verdict = verdict_on(row.cell.settings)
    return data | {
        "studies": row.cell.studies,
        "axes": row.cell.axes,
        "objective": verdict.objective.value,
        "verdict": verdict.summary,
        "cost": priced and priced._asdict(),
    }
