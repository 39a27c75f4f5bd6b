"""Training as `orch run` and `orch rehearse` start it: here, or by jobs of a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.cli.common import counted, say
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.records import Cell
    from orchestrator.rundir import CellState
    from orchestrator.runs.plan import Plan
    from orchestrator.spec.site_options import SlurmOptions


def on_this_machine(experiment: Experiment, made: "Plan") -> int:
    """Launch and wait. Return the exit code: 130 after Ctrl-C, 1 if cells failed, else 0."""
    from orchestrator.launch.local import launch
    from orchestrator.runs.watch import watch

    folder, spec = experiment.folder, experiment.spec
    keep_spec(experiment)
    ids = {cell.id for cell in experiment.cells}
    pending = [r.cell for r in made.pending if r.cell is not None and r.cell.id in ids]
    with watch(pending) as display:
        done = launch(experiment.cells, folder, workers=spec.site.workers, on_event=display.show)
    if done.interrupted:
        say("stopped; nothing is lost. Go on with the same command.")
        return 130
    return _say_left_alone(experiment, done.count("failed", "unknown"), done.count("cancelled"))


def on_cluster(
    whole: Experiment, chosen: Experiment, made: "Plan", *, wait: bool, budget: float | None
) -> tuple[int, bool]:
    """Submit what is missing, and wait if asked.

    Return the exit code, and True if training is over: no chosen cell is with the scheduler or
    still to be submitted.
    """
    from orchestrator.runs import wait as cluster
    from orchestrator.runs.watch import watch
    from orchestrator.spec.site_options import slurm_options

    options = slurm_options(chosen.spec.site.options)
    keep_spec(chosen)
    scored = options.evaluate and bool(chosen.spec.evaluation.tasks)
    admit = None if budget is None else _admission(budget, whole)
    request = cluster.SubmitRequest(chosen.cells, chosen.folder, options, scored, say, admit=admit)
    if made.pending:
        _warn(chosen, options)
    sent = cluster.start(request)
    source = chosen.spec.source or chosen.spec.name
    if sent.cells:
        jobs = "job array" if len(sent.jobs) == 1 else "job arrays"
        say(f"submitted {counted(len(sent.cells), 'cell')} as {jobs} {', '.join(sent.jobs)}")
    if sent.left:
        say(
            f"no room in the queue for {counted(len(sent.left), 'cell')} "
            "(site.options.max_submit_jobs): run again, or with --wait"
        )
    if not wait:
        unpaid = {cell.id for cell in sent.unpaid}
        left = replace(chosen, cells=tuple(c for c in chosen.cells if c.id not in unpaid))
        return _leave(left, source)
    with watch(chosen.cells) as display:
        done = cluster.wait(request._replace(on_event=display.show))
    if done.interrupted:
        say(
            f"not waiting any more; the jobs go on. `orch status {source}` shows them, "
            f"`orch cancel {source}` stops them"
        )
        return 130, False
    code = _say_left_alone(chosen, done.count("failed", "unknown"), done.count("cancelled"))
    return max(code, _tell_unscored(chosen, done.states)), True


def _admission(budget: float, whole: Experiment) -> "Callable[[Sequence[Cell]], set[str]]":
    """Return a function that says which cells a budget pays, at each submission.

    It prints its sentence again only when that has changed.
    """
    from orchestrator.runs.cost import afford, evaluation_spending
    from orchestrator.runs.plan import plan

    last = ""

    def admit(cells: "Sequence[Cell]") -> set[str]:
        nonlocal last
        made = plan(whole.cells, whole.folder)
        scored = evaluation_spending(whole.folder)
        afforded = afford(made.only({cell.id for cell in cells}), budget, made, scored)
        if afforded.told != last:
            say(afforded.told)
            last = afforded.told
        return {cell.id for cell in afforded.paid}

    return admit


def _warn(chosen: Experiment, options: "SlurmOptions") -> None:
    """Print what the cluster's own answers speak against.

    SLURM takes some jobs that never start.
    """
    from orchestrator.launch.slurm.cluster import read_cluster
    from orchestrator.site.check import check_site

    found = read_cluster()
    resources = [cell.resources for cell in chosen.cells if cell.scale == "full"]
    for advice in check_site(options, found, resources, len(chosen.cells)) if found else ():
        if advice.broken:
            say(f"{advice.sentence} ({advice.field})")


def _leave(chosen: Experiment, source: str) -> tuple[int, bool]:
    """Return the exit code without --wait, and True only if nothing is left to train."""
    from orchestrator.runs.state import read_state
    from orchestrator.runs.wait import evaluation_states, num_waiting

    looks = [(cell, read_state(chosen.folder.cell(cell))) for cell in chosen.cells]
    states = [seen.state for _, seen in looks]
    busy = sum(
        s in ("submitted", "pending", "running", "planned", "preempted", "timed_out")
        for s in states
    )
    failed, cancelled = states.count("failed"), states.count("cancelled")
    unknown = states.count("unknown")
    if unknown:
        say(f"{unknown} cells are in a state that cannot be told now: `orch status {source}`")
    if busy or unknown:
        say(
            f"{counted(busy, 'cell')} with the scheduler, or waiting: `orch status {source}` tells "
            f"how, `orch run {source} --wait` stays until all are done and reports"
        )
        return 0, False
    if left := num_waiting(evaluation_states(chosen.folder, looks)[1]):
        say(f"{counted(left, 'evaluation')} with the scheduler: `orch run {source} --wait` stays")
        return 0, False
    return max(_say_left_alone(chosen, failed, cancelled), _tell_unscored(chosen, looks)), True


def _tell_unscored(chosen: Experiment, looks: "Sequence[tuple[Cell, CellState]]") -> int:
    """Print failed evaluations that are not tried again. Return 1 if there are any."""
    from orchestrator.runs.wait import evaluation_states

    failed = [e for e in evaluation_states(chosen.folder, looks)[1].values() if e.exit is not None]
    if failed:
        classes = sorted({e.exit.failure for e in failed if e.exit})
        source = chosen.spec.source or chosen.spec.name
        say(
            f"{counted(len(failed), 'evaluation')} failed ({', '.join(classes)}), the training did "
            f"not: `orch errors {source}` says why; `orch eval {source}` scores here"
        )
    return int(bool(failed))


def keep_spec(experiment: Experiment) -> None:
    """Write the spec as it is launched, beside its cells."""
    from orchestrator.files import write_text
    from orchestrator.tracking.secrets import hide_userinfo

    experiment.folder.open()
    plain = experiment.spec.model_dump_json(indent=1)
    write_text(experiment.folder.spec, hide_userinfo(plain) + "\n")


def within(
    budget: float | None, whole: Experiment, experiment: Experiment, made: "Plan"
) -> Experiment:
    """Return the experiment without the pending cells that the budget does not pay; print which."""
    from dataclasses import replace

    from orchestrator.runs.cost import afford, evaluation_spending
    from orchestrator.runs.plan import plan

    if budget is None:
        return experiment
    wanted = {row.cell.id for row in made.pending if row.cell is not None}
    every = plan(whole.cells, whole.folder)
    afforded = afford(made.only(wanted), budget, every, evaluation_spending(whole.folder))
    say(afforded.told)
    unpaid = {cell.id for cell in afforded.unpaid}
    return replace(experiment, cells=tuple(c for c in experiment.cells if c.id not in unpaid))


def _say_left_alone(experiment: Experiment, failed: int, cancelled: int) -> int:
    source = experiment.spec.source or experiment.spec.name
    if failed:
        say(
            f"{counted(failed, 'cell')} failed: `orch errors {source}` says why, "
            f"`orch retry {source}` makes them run again"
        )
    if cancelled:
        say(f"cancelled, and left alone until `orch retry {source}`: {counted(cancelled, 'cell')}")
    return int(bool(failed))
