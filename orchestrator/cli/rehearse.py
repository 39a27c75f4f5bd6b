"""orch rehearse: the whole plan at micro scale, so that a mistake costs a minute, not a night."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.cli.manners import set_next
from orchestrator.cli.prove import proof_data
from orchestrator.cli.run import print_review, review_data
from orchestrator.errors import OrchError
from orchestrator.launch.slurm.cluster import read_cluster
from orchestrator.pipeline import training
from orchestrator.pipeline.run import plan_of, review
from orchestrator.prove import real as real_run
from orchestrator.prove import text
from orchestrator.prove.real import Chosen, RealRehearsal
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import Experiment, open_experiment, site_of
from orchestrator.runs.state import read_state
from orchestrator.site.check import check_site
from orchestrator.site.forecast import (
    library_refusals,
    ray_shortages,
    scheduler_verdicts,
    time_limit_warnings,
    unprepared_cells,
)
from orchestrator.spec.rehearse import rehearse
from orchestrator.spec.site_options import slurm_options

if TYPE_CHECKING:
    from orchestrator.pipeline.run import Review
    from orchestrator.records import Cell
    from orchestrator.spec.site_options import SlurmOptions

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
"""Suffixes of anybody's scripts, which --real reads as `orch audit` does."""
SHORT_HOURS = 0.5
"""Of a rehearsal's job: short jobs are started sooner."""
SMALL_GIB = 2
"""Memory of a rehearsal's job: the evaluation harness takes most of it."""


@click.command(short_help="Run the whole plan at micro scale, and report what would go wrong.")
@common.spec
@common.overrides
@common.where
@click.option(
    "--train-only", is_flag=True, help="Rehearse only training, without scores and report."
)
@click.option("--check-only", is_flag=True, help="Print what would go wrong, and run nothing.")
@click.option(
    "--real",
    is_flag=True,
    help="Train with each cell's own library on this machine, for a few real steps: the launch's "
    "own arguments, a tiny policy, stand-ins for GPU and inference engine.",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="With --real: the largest number of different trainings.",
)
@click.option(
    "--processes",
    is_flag=True,
    help="With --real: start the library's own processes (Ray), also where stand-ins could hold "
    "them in one. It takes minutes longer.",
)
@common.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    train_only: bool,
    check_only: bool,
    real: bool,
    most: int,
    processes: bool,
    as_json: bool,
) -> int:
    """Translate every cell of SPEC as it is declared, ask the cluster whether it would accept the
    jobs, and run the same grid with the embedded trainer. It runs on the cluster of the
    site, through the same queue; without a cluster, on this machine.

    With --real, SPEC may also be any launch script (.sh, .slurm, ...). It is read as `orch
    audit` reads it, and never run. The library itself trains, in the environment that `orch env
    create LIBRARY@VERSION --cpu` makes. The command prints all deviations from the launch, what
    must hold in every run (the KL is 0 at the first step, trainer and sampler give tokens the
    same probability, rewards are the scorer's, the gradient is not 0, checkpoints load and are
    scored), and the table of `orch prove`.

    Exit code 1: something in the declared run would go wrong, or something in the rehearsal
    did.
    """
    if real and Path(spec).suffix in SCRIPTS:
        return _real_script(Path(spec), most, as_json, processes=processes)
    opened = open_experiment(spec, overrides)
    folder = RunFolder.of(opened.spec.site.runs_dir, opened.spec.name, "full")
    chosen = replace(opened, cells=opened.declared, folder=folder).chosen(where)
    declared = list(chosen.cells)
    if real:
        return _real(declared, chosen.folder, most, as_json, processes=processes)
    foreseen = _foreseen(chosen, declared)
    for trouble in () if as_json else foreseen:
        click.echo(f"would go wrong: {trouble}")
    code, happened = 0, list[str]()
    reviewed: Review | None = None
    if not check_only:
        try:
            code, happened, reviewed = _run(
                small_of(chosen, declared, score=not train_only), score=not train_only
            )
        except OrchError as error:
            code, happened = 1, [str(error)]
    if as_json:
        reviews = {} if reviewed is None else review_data(reviewed)
        counts = {"cells": len(declared), "rehearsed": not check_only}
        print_json(counts | {"would_go_wrong": foreseen, "went_wrong": happened} | reviews)
        return code if code == 130 else int(bool(foreseen or happened) or code != 0)
    if reviewed is not None:
        print_review(reviewed)
    for trouble in happened:
        click.echo(f"went wrong: {trouble}")
    if code == 130:
        return code
    troubles = foreseen + happened
    click.echo(_sum(len(declared), len(troubles), check_only))
    return int(bool(troubles) or code != 0)


def _real_script(path: Path, most: int, as_json: bool, *, processes: bool) -> int:
    """Rehearse the launches of anybody's script. Return the exit code."""
    home = Path("runs").absolute() / f"{path.stem}.real"
    set_next("orch audit {spec}")
    trainings = real_run.chosen_of_script(path, home)
    return _rehearsed(trainings, home, most, as_json, processes=processes)


def _real(
    declared: "list[Cell]", folder: RunFolder, most: int, as_json: bool, *, processes: bool
) -> int:
    """Rehearse with the real libraries. Return the exit code."""
    home = folder.path.with_name(f"{folder.experiment}.real")
    trainings = real_run.chosen(declared, home)
    say(f"{len(declared)} cells are {len(trainings)} different trainings at small scale")
    if not trainings:
        raise OrchError(
            "no chosen cell has a library: those of the embedded trainer need no --real"
        )
    return _rehearsed(trainings, home, most, as_json, processes=processes)


def _rehearsed(
    trainings: "list[Chosen]", home: Path, most: int, as_json: bool, *, processes: bool
) -> int:
    if len(trainings) > most:
        say(f"the first {most} of {len(trainings)} run (--most)")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # as weights are loaded
    outcomes = []
    for each in trainings[:most]:
        outcomes.append(real_run.rehearse(each, home, say, processes=processes))
        if not as_json:
            _print_real(outcomes[-1])
    troubles = list(real_run.summary(outcomes))
    if as_json:
        print_json({"trainings": list(map(_real_data, outcomes)), "went_wrong": troubles})
        return int(bool(troubles))
    for trouble in troubles:
        click.echo(f"went wrong: {trouble}")
    click.echo(
        _sum(sum(1 + len(each.others) for each in outcomes), len(troubles), check_only=False)
    )
    return int(bool(troubles))


def _real_data(outcome: "RealRehearsal") -> dict[str, object]:
    """Return a rehearsal with the real library as plain data."""
    cell, proof = outcome.declared, outcome.proof
    return {
        "slug": cell.slug,
        "deviations": [each._asdict() for each in outcome.deviations],
        "checks": [each._asdict() for each in outcome.checks],
        "proof": None if proof is None else proof_data(cell.slug, cell, proof),
        "fault": outcome.fault,
        "holds": outcome.holds,
    }


def _print_real(outcome: "RealRehearsal") -> None:
    click.secho(f"\n{outcome.declared.slug}", bold=True)
    click.echo("differs from the launch:")
    common.print_table(("what", "launch", "here", "why"), text.deviation_rows(outcome.deviations))
    if outcome.checks:
        click.echo("\nmust hold in any run:")
        common.print_table(("", "", ""), text.check_rows(outcome.checks))
    if outcome.proof is not None:
        click.echo(f"\npredicted and done: {text.heading(outcome.proof)}")
        common.print_table(text.COLUMNS, text.rows(outcome.proof))
        for sentence in outcome.proof.left_out:
            say(sentence)
        click.echo(text.verdict(outcome.proof))


def _sum(cells: int, troubles: int, check_only: bool) -> str:
    how = "checked" if check_only else "checked and rehearsed"
    counts = (
        "nothing would go wrong that can be seen from here"
        if not troubles
        else (f"{troubles} thing{'s' if troubles > 1 else ''} to mend before the real run")
    )
    return f"{cells} cells {how}: {counts}"


def _foreseen(chosen: Experiment, declared: "list[Cell]") -> list[str]:
    """Return what is wrong before anything runs: translation, the site, the scheduler's answer."""
    refusals = [str(refusal) for refusal in library_refusals(declared, chosen.folder)]
    prompts = [str(each) for each in unprepared_cells(declared, chosen.folder)]
    if chosen.where != "slurm":
        for sentence in prompts:
            say(f"before the real run: {sentence}")
        say("there is no cluster here: nobody was asked whether it would take the jobs")
        return refusals
    refusals += prompts
    options = chosen.spec.site.options
    refusals += [str(each) for each in ray_shortages(declared, chosen.folder, options)]
    site = _site_options(chosen)
    full = [cell for cell in declared if cell.scale == "full"]
    refusals += _of_site(site, full)
    refusals += time_limit_warnings(full, site)
    for sentence, taken in scheduler_verdicts(full, site):
        if taken:
            say(sentence)
        else:
            refusals.append(sentence)
    return refusals


def _of_site(site: "SlurmOptions", full: "list[Cell]") -> list[str]:
    cluster = read_cluster()
    if cluster is None:
        return ["the cluster does not answer"]
    sentences = []
    for advice in check_site(site, cluster, [cell.resources for cell in full], len(full)):
        sentence = f"{advice.sentence} ({advice.field})" if advice.field else advice.sentence
        if advice.broken:
            sentences.append(sentence)
        else:
            say(sentence)
    return sentences


def _site_options(chosen: Experiment) -> "SlurmOptions":
    return slurm_options(chosen.spec.site.options)


def small_of(chosen: Experiment, declared: "list[Cell]", *, score: bool) -> Experiment:
    """Return the experiment at micro scale, in a folder of its own, with a short time limit."""
    site = chosen.spec.site
    if chosen.where == "slurm":
        hours = min(_site_options(chosen).time_limit_hours, SHORT_HOURS)
        short = {
            **site.options,
            "time_limit_hours": hours,
            "memory_gib": SMALL_GIB,
            "evaluate": score,
        }
        site = site.model_copy(update={"options": short})
    spec = chosen.spec.model_copy(update={"site": site})
    folder = RunFolder.of(site.runs_dir, spec.name, "micro")
    folder.check()
    return replace(chosen, spec=spec, cells=tuple(rehearse(declared)), where="local", folder=folder)


def _run(small: Experiment, *, score: bool) -> "tuple[int, list[str], Review | None]":
    """Train, score and report the rehearsal. Return the exit code, what went wrong, the report."""
    plan = plan_of(small, small, ())
    if small.spec.site.kind != "local" and _on_cluster(small):
        code, over = training.on_cluster(small, small, plan, wait=True, budget=None)
    else:
        code, over = training.on_this_machine(small, plan), True
    if code == 130 or not over:
        return code, [], None
    if not score:
        return code, _failures(small), None
    reviewed = review(small, small)
    return max(code, reviewed.code), _failures(small), reviewed


def _on_cluster(small: Experiment) -> bool:
    return site_of(small.spec) == "slurm"


def _failures(small: Experiment) -> list[str]:
    """Return the cells that did not succeed, grouped by their message."""
    slugs_by_reason: dict[str, list[str]] = {}
    for cell in small.cells:
        state = read_state(small.folder.cell(cell))
        if state.state != "succeeded":
            ended = state.exit
            why = f"{ended.failure}: {ended.message}".splitlines()[0] if ended else state.state
            slugs_by_reason.setdefault(why, []).append(cell.slug)
    return [
        f"{why} ({len(slugs)} cells: {slugs[0]}{', ...' if len(slugs) > 1 else ''})"
        for why, slugs in slugs_by_reason.items()
    ]
