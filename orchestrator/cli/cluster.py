"""What `orch run` does where the cells go to a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.cli import run
from orchestrator.cli.common import counted, say
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.records import Cell
    from orchestrator.rundir import CellState
    from orchestrator.runs.plan import Plan
    from orchestrator.spec.site_options import SlurmOptions


def train_on_cluster(
    whole: Experiment, chosen: Experiment, made: "Plan", *, wait: bool, budget: float | None
) -> tuple[int, bool]:
    """Submits what is missing, and waits if asked. The exit code, and whether training is over:
    no chosen cell is with the scheduler or still to be submitted."""
    from orchestrator.runs import wait as cluster
    from orchestrator.runs.watch import watch
    from orchestrator.spec.site_options import slurm_options

    options = slurm_options(chosen.spec.site.options)
    run.keep_spec(chosen)
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
    code = run.tell_left_alone(chosen, done.count("failed", "unknown"), done.count("cancelled"))
    return max(code, _tell_unscored(chosen, done.states)), True


def _admission(budget: float, whole: Experiment) -> "Callable[[Sequence[Cell]], set[str]]":
    """Which cells a budget pays, worked out each time some are to be submitted, also again; told
    once as long as it stays the same."""
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
    """Tells what the cluster's own answers speak against: SLURM itself takes some jobs that can
    never start."""
    from orchestrator.launch.slurm.cluster import read_cluster
    from orchestrator.site.check import check_site

    found = read_cluster()
    resources = [cell.resources for cell in chosen.cells if cell.scale == "full"]
    for advice in check_site(options, found, resources, len(chosen.cells)) if found else ():
        if advice.broken:
            say(f"{advice.sentence} ({advice.field})")


def _leave(chosen: Experiment, source: str) -> tuple[int, bool]:
    """Without --wait: on to the report only if nothing is left to train."""
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
    return max(run.tell_left_alone(chosen, failed, cancelled), _tell_unscored(chosen, looks)), True


def _tell_unscored(chosen: Experiment, looks: "Sequence[tuple[Cell, CellState]]") -> int:
    """1 if evaluations failed that are not tried again by themselves."""
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
