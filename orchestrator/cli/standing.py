"""The part that `status` adds on a cluster: states of evaluations, and jobs that will never
start.
"""

from typing import TYPE_CHECKING, Any

from orchestrator.launch.slurm import submissions
from orchestrator.launch.slurm.poll import stuck_jobs
from orchestrator.launch.slurm.submit import end_twins, end_waiting_evaluations
from orchestrator.runs.evaluation_jobs import counts, last_evaluations
from orchestrator.runs.experiment import Experiment
from orchestrator.spec.site_options import SlurmOptions

if TYPE_CHECKING:
    from orchestrator.runs.plan import Plan


def standing(experiment: Experiment, plan: "Plan") -> dict[str, Any]:
    """Return {evaluations: {state: how many}, failed: {class: how many}, stuck: [sentence, ...],
    copies: [sentence, ...]}; empty where nothing was sent to a cluster.

    Second copies of jobs, and evaluations of cells that were cancelled, are taken out of the queue.
    """

    if not submissions.read(experiment.folder):
        return {}
    states = {row.directory.path.name: row.state for row in plan.rows}
    evaluations = last_evaluations(experiment.folder, states)
    failed: dict[str, int] = {}
    for each in evaluations.values():
        if each.exit is not None:
            failed[each.exit.failure] = failed.get(each.exit.failure, 0) + 1
    waiting = any(row.state in ("submitted", "pending") for row in plan.rows) or any(
        each.state == "pending" for each in evaluations.values()
    )
    site = experiment.spec.site.options
    stuck = (
        stuck_jobs(experiment.folder, {**SlurmOptions().model_dump(), **site}) if waiting else []
    )
    cancelled = [row.directory.path.name for row in plan.rows if row.state == "cancelled"]
    end_waiting_evaluations(experiment.folder, cancelled)
    return {
        "evaluations": counts(evaluations.values()),
        "failed": failed,
        "stuck": stuck,
        "copies": end_twins(experiment.folder),
    }


def lines(standing_: dict[str, Any]) -> list[str]:
    """Return the same as sentences."""
    if not standing_:
        return []
    sentences = [*standing_["stuck"], *standing_["copies"]]
    if standing_["evaluations"]:
        states = ", ".join(f"{n} {state}" for state, n in standing_["evaluations"].items())
        why = ", ".join(f"{n} {failure}" for failure, n in standing_["failed"].items())
        sentences.insert(
            0, f"evaluation jobs: {states}{f' ({why}; see `orch errors`)' if why else ''}"
        )
    return sentences
