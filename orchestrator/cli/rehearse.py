"""orch rehearse: the whole plan at micro scale, so that a mistake costs a minute, not a night."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import say
from orchestrator.errors import OrchError
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.records import Cell
    from orchestrator.spec.site_options import SlurmOptions

SHORT_HOURS = 0.5
"""Of a rehearsal's job: short jobs are started sooner."""
SMALL_GIB = 2
"""Memory of a rehearsal's job: the evaluation harness takes most of it."""


@click.command(short_help="Run the whole plan at micro scale, and say what would go wrong.")
@common.spec
@common.overrides
@common.where
@click.option("--train-only", is_flag=True, help="Rehearse training; score and report nothing.")
@click.option("--check-only", is_flag=True, help="Say what would go wrong; run nothing.")
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    train_only: bool,
    check_only: bool,
) -> int:
    """Translate every cell of SPEC as declared, ask the cluster whether it would take the jobs, and
    run the same grid on the embedded trainer: on the site's cluster, through the same queue, where
    there is one, else on this machine.

    Exits 1 if anything of the declared run would go wrong, or anything of the rehearsal did.
    """
    from orchestrator.rundir import RunFolder
    from orchestrator.runs.experiment import open_experiment

    opened = open_experiment(spec, overrides)
    folder = RunFolder.of(opened.spec.site.runs_dir, opened.spec.name, "full")
    chosen = replace(opened, cells=opened.declared, folder=folder).chosen(where)
    declared = list(chosen.cells)
    troubles = _foreseen(chosen, declared)
    for trouble in troubles:
        click.echo(f"would go wrong: {trouble}")
    code = 0
    if not check_only:
        try:
            code, happened = _run(
                small_of(chosen, declared, score=not train_only), score=not train_only
            )
        except OrchError as error:
            code, happened = 1, [str(error)]
        for trouble in happened:
            click.echo(f"went wrong: {trouble}")
        troubles += happened
    if code == 130:
        return code
    click.echo(_sum(len(declared), len(troubles), check_only))
    return int(bool(troubles) or code != 0)


def _sum(cells: int, troubles: int, check_only: bool) -> str:
    how = "checked" if check_only else "checked and rehearsed"
    found = (
        "nothing would go wrong that can be seen from here"
        if not troubles
        else (f"{troubles} thing{'s' if troubles > 1 else ''} to mend before the real run")
    )
    return f"{cells} cells {how}: {found}"


def _foreseen(chosen: Experiment, declared: "list[Cell]") -> list[str]:
    """Return what is wrong before anything runs: translation, the site, the scheduler's answer."""
    from orchestrator.site.forecast import (
        library_refusals,
        scheduler_verdicts,
        time_limit_warnings,
        unprepared_cells,
    )

    told = [str(refusal) for refusal in library_refusals(declared, chosen.folder)]
    prompts = [str(each) for each in unprepared_cells(declared, chosen.folder)]
    if chosen.where != "slurm":
        for sentence in prompts:
            say(f"before the real run: {sentence}")
        say("there is no cluster here: nobody was asked whether it would take the jobs")
        return told
    told += prompts
    site = _site_options(chosen)
    full = [cell for cell in declared if cell.scale == "full"]
    told += _of_site(site, full)
    told += time_limit_warnings(full, site)
    for sentence, taken in scheduler_verdicts(full, site):
        if taken:
            say(sentence)
        else:
            told.append(sentence)
    return told


def _of_site(site: "SlurmOptions", full: "list[Cell]") -> list[str]:
    from orchestrator.launch.slurm.cluster import read_cluster
    from orchestrator.site.check import check_site

    cluster = read_cluster()
    if cluster is None:
        return ["the cluster does not answer"]
    told = []
    for advice in check_site(site, cluster, [cell.resources for cell in full], len(full)):
        sentence = f"{advice.sentence} ({advice.field})" if advice.field else advice.sentence
        if advice.broken:
            told.append(sentence)
        else:
            say(sentence)
    return told


def _site_options(chosen: Experiment) -> "SlurmOptions":
    from orchestrator.spec.site_options import slurm_options

    return slurm_options(chosen.spec.site.options)


def small_of(chosen: Experiment, declared: "list[Cell]", *, score: bool) -> Experiment:
    """Return the experiment at micro scale, in a folder of its own, with a short time limit."""
    from orchestrator.rundir import RunFolder
    from orchestrator.spec.rehearse import rehearse

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


def _run(small: Experiment, *, score: bool) -> tuple[int, list[str]]:
    """Train, score and report the rehearsal. Return the exit code, and what went wrong."""
    from orchestrator.cli import run, training
    from orchestrator.runs.plan import plan

    made = plan(small.cells, small.folder)
    if small.spec.site.kind != "local" and _on_cluster(small):
        code, over = training.on_cluster(small, small, made, wait=True, budget=None)
    else:
        code, over = training.on_this_machine(small, made), True
    if code == 130 or not over:
        return code, []
    if not score:
        return code, _failures(small)
    return max(code, run.review(small, small)), _failures(small)


def _on_cluster(small: Experiment) -> bool:
    from orchestrator.runs.experiment import site_of

    return site_of(small.spec) == "slurm"


def _failures(small: Experiment) -> list[str]:
    """Return the cells that did not succeed, by what they say."""
    from orchestrator.runs.state import read_state

    found: dict[str, list[str]] = {}
    for cell in small.cells:
        seen = read_state(small.folder.cell(cell))
        if seen.state != "succeeded":
            ended = seen.exit
            why = f"{ended.failure}: {ended.message}".splitlines()[0] if ended else seen.state
            found.setdefault(why, []).append(cell.slug)
    return [
        f"{why} ({len(slugs)} cells: {slugs[0]}{', ...' if len(slugs) > 1 else ''})"
        for why, slugs in found.items()
    ]
