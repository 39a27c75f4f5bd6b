"""What `status` adds on a cluster: states of evaluations, and jobs that will never start."""

from typing import TYPE_CHECKING, Any

from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.runs.plan import Plan


def standing(experiment: Experiment, made: "Plan") -> dict[str, Any]:
    """Return {evaluations: {state: how many}, failed: {class: how many}, stuck: [sentence, ...]};
    empty where nothing was sent to a cluster.
    """
    from orchestrator.launch.slurm import submissions
    from orchestrator.launch.slurm.poll import stuck_jobs
    from orchestrator.runs.evaluation_jobs import counts, last_evaluations
    from orchestrator.spec.site_options import SlurmOptions

    if not submissions.read(experiment.folder):
        return {}
    states = {row.directory.path.name: row.state for row in made.rows}
    found = last_evaluations(experiment.folder, states)
    failed: dict[str, int] = {}
    for each in found.values():
        if each.exit is not None:
            failed[each.exit.failure] = failed.get(each.exit.failure, 0) + 1
    waiting = any(row.state in ("submitted", "pending") for row in made.rows) or any(
        each.state == "pending" for each in found.values()
    )
    site = experiment.spec.site.options
    told = stuck_jobs(experiment.folder, {**SlurmOptions().model_dump(), **site}) if waiting else []
    return {"evaluations": counts(found.values()), "failed": failed, "stuck": told}


def lines(found: dict[str, Any]) -> list[str]:
    """Return the same as sentences."""
    if not found:
        return []
    told = list(found["stuck"])
    if found["evaluations"]:
        states = ", ".join(f"{n} {state}" for state, n in found["evaluations"].items())
        why = ", ".join(f"{n} {failure}" for failure, n in found["failed"].items())
        told.insert(0, f"evaluation jobs: {states}{f' ({why}; see `orch errors`)' if why else ''}")
    return told
