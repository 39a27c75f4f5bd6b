"""A rehearsal: what would go wrong in an experiment, then the same grid at micro scale."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.launch.slurm.cluster import read_cluster
from orchestrator.pipeline import training
from orchestrator.pipeline.beside import MirrorBeside
from orchestrator.pipeline.messages import say
from orchestrator.pipeline.stages import Review, review
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import Experiment, site_of
from orchestrator.runs.plan import plan as plan_cells
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
from orchestrator.spec.site_options import SlurmOptions, slurm_options

SHORT_HOURS = 0.5
"""Time limit of a rehearsal's job. SLURM starts short jobs sooner."""
SMALL_GIB = 2
"""Memory of a rehearsal's job: the evaluation harness takes most of it."""


def as_declared(experiment: Experiment) -> Experiment:
    """Return the experiment with its declared cells, in the folder of its full scale."""
    folder = RunFolder.of(experiment.spec.site.runs_dir, experiment.spec.name, "full")
    return replace(experiment, cells=experiment.declared, folder=folder)


def foreseen_troubles(chosen: Experiment) -> list[str]:
    """Return what is wrong before anything runs: translation, the site, the scheduler's answer.

    chosen: declared cells (`as_declared`).
    """
    declared = chosen.cells
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
    site = slurm_options(options)
    full = [cell for cell in declared if cell.scale == "full"]
    refusals += _of_site(site, full)
    refusals += time_limit_warnings(full, site)
    for sentence, taken in scheduler_verdicts(full, site):
        if taken:
            say(sentence)
        else:
            refusals.append(sentence)
    return refusals


def _of_site(site: SlurmOptions, full: Sequence[Cell]) -> list[str]:
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


def rehearsal_of(chosen: Experiment, *, score: bool) -> Experiment:
    """Return declared cells at micro scale, in a folder of their own, with a short time limit."""
    site = chosen.spec.site
    if chosen.where == "slurm":
        hours = min(slurm_options(site.options).time_limit_hours, SHORT_HOURS)
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
    cells = tuple(rehearse(chosen.cells))
    return replace(chosen, spec=spec, cells=cells, where="local", folder=folder, scale="micro")


def run_rehearsal(small: Experiment, *, score: bool) -> tuple[int, list[str], Review | None]:
    """Train, score and report the rehearsal. Return the exit code, what went wrong, the report."""
    plan = plan_cells(small.cells, small.folder)
    if small.spec.site.kind != "local" and site_of(small.spec) == "slurm":
        code, over = training.on_cluster(small, small, plan, wait=True, budget=None)
    else:
        code, over = training.on_this_machine(small, plan), True
    if code == 130 or not over:
        return code, [], None
    if not score:
        return code, _failures(small), None
    with MirrorBeside(small) as beside:
        reviewed = review(small, small, beside)
    return max(code, reviewed.code), _failures(small), reviewed


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
