"""Train the missing cells on this machine, or with jobs of a cluster."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from shutil import rmtree
from typing import TYPE_CHECKING

from orchestrator.errors import EnvironmentFault, OrchError, SelectionError
from orchestrator.files import write_text
from orchestrator.launch.local import launch
from orchestrator.launch.ray.look import is_ray
from orchestrator.launch.slurm import submissions
from orchestrator.launch.slurm.cluster import read_cluster
from orchestrator.launch.slurm.submit import preview, submission_lock
from orchestrator.pipeline.messages import say
from orchestrator.rundir import ON_CLUSTER, RESUMABLE
from orchestrator.runs import wait as cluster
from orchestrator.runs.cost import evaluation_hours, price, total_left, used
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.pilot import known_rates
from orchestrator.runs.state import read_states
from orchestrator.runs.wait import evaluation_states, num_waiting
from orchestrator.runs.watch import watch
from orchestrator.site.check import never_started
from orchestrator.spec.claims import digests
from orchestrator.spec.redaction import hide_userinfo
from orchestrator.spec.sentences import counted
from orchestrator.spec.site_options import RayOptions, SlurmOptions, cluster_options

if TYPE_CHECKING:
    from orchestrator.records import Cell
    from orchestrator.rundir import CellState, RunFolder
    from orchestrator.runs.plan import Plan, PlanRow


def on_this_machine(experiment: Experiment, plan: "Plan") -> int:
    """Launch and wait. Return the exit code: 130 after Ctrl-C, 1 if cells failed, else 0.

    plan: a plan that contains at least these cells. A cell that has ended by this plan is not read
    again.
    """
    folder, spec = experiment.folder, experiment.spec
    keep_spec(experiment)
    ids = {cell.id for cell in experiment.cells}
    rows = [row for row in plan.rows if row.cell is not None and row.cell.id in ids]
    pending = [row.cell for row in rows if row.pending and row.cell is not None]
    begun = [row.cell for row in rows if may_run(row) and row.cell is not None]
    with watch(pending, folder) as show:
        site = spec.site
        done = launch(begun, folder, workers=site.workers, options=site.options, on_event=show)
    if done.interrupted:
        say("stopped; nothing is lost. Go on with the same command.")
        return 130
    over = Counter(row.state for row in rows if not may_run(row))
    return _print_failed_and_cancelled(
        experiment,
        done.count("failed", "unknown") + over["failed"] + over["unknown"],
        done.count("cancelled") + over["cancelled"],
    )


def may_run(row: "PlanRow") -> bool:
    """Return True for a cell that a launch on this machine may start or wait for."""
    return row.state == "running" or row.state in RESUMABLE or row.state in ON_CLUSTER


def on_cluster(chosen: Experiment, plan: "Plan", *, wait: bool) -> tuple[int, bool]:
    """Submit the missing cells. With `wait`, return only when the jobs have ended.

    Return the exit code, and True if training is over: the scheduler has no chosen cell and none is
    left to submit.
    """
    options = cluster_options(chosen.spec.site)
    if plan.pending and isinstance(options, SlurmOptions):
        _refuse_impossible(chosen, options)
    scored = options.evaluate and bool(chosen.spec.evaluation.tasks)
    request = cluster.SubmitRequest(chosen.cells, chosen.folder, options, scored, say)
    with _leaving_nothing_refused(chosen.folder):
        keep_spec(chosen)
        sent = cluster.start(request)
    source = chosen.spec.source or chosen.spec.name
    old = sum(row.state in ON_CLUSTER for row in plan.orphans)
    if old:
        say(
            f"{counted(old, 'cell')} that left the spec still with the scheduler: `orch plan "
            f"{source}` lists them"
        )
    if sent.cells:
        on_ray = chosen.where == "ray"
        jobs = "job array" if len(sent.jobs) == 1 else "job arrays"
        as_ = "Ray jobs" if on_ray else f"{jobs} {', '.join(sent.jobs)}"
        say(f"submitted {counted(len(sent.cells), 'cell')} as {as_}")
    if sent.no_room:
        limits = "max_running, and its GPUs" if chosen.where == "ray" else "max_submit_jobs"
        say(
            f"{counted(len(sent.no_room), 'cell')} not sent yet, for want of room "
            f"(site.options.{limits}): run again, or with --wait"
        )
    if not wait:
        looks = read_states(chosen.cells, chosen.folder)
        return (0, False) if _is_left(chosen, source, looks) else (_ended(chosen, looks), True)
    with watch(chosen.cells, chosen.folder, local=False) as show:
        done = cluster.wait(request._replace(on_event=show))
    if done.interrupted:
        say(
            f"not waiting any more; the jobs go on. `orch status {source}` shows them, "
            f"`orch cancel {source}` stops them"
        )
        return 130, False
    return _ended(chosen, done.states), True


_AT_WORK: frozenset[str] = frozenset({"submitted", "pending", "running", "unknown"})


def refuse_over_budget(budget: float, wanted: "Plan", whole: "Plan", folder: "RunFolder") -> str:
    """Return what the missing cells take of a budget of GPU-hours for the whole experiment.

    The hours that are used, evaluations among them, and those of cells at work count too. Raise
    SelectionError if the budget is too little, or if the price of a cell is not known.
    """
    rates = known_rates(whole.rows, folder)
    spent = used(whole.rows)[0] + evaluation_hours(folder)
    busy = total_left([row for row in whole.rows if row.state in _AT_WORK], rates).gpu_hours
    rest = total_left(wanted.pending, rates)
    sentence = (
        f"budget of {budget:g} GPU-hours: {spent:.3g} used, {busy:.3g} at work, and the missing "
        f"cells take {rest}"
    )
    is_known = all(price(row.cell, rates) for row in wanted.pending if row.cell)
    if is_known and spent + busy + rest.gpu_hours <= budget:
        return sentence
    why = "that is more" if is_known else "a cell has no known price (resources.hours)"
    raise SelectionError(
        f"{sentence}: {why}. Nothing was started: choose fewer cells with --where, or give more"
    )


def scripts_of(chosen: Experiment, plan: "Plan") -> list[str]:
    """Return the batch scripts that `orch run` would send now; none on a Ray."""
    options = cluster_options(chosen.spec.site)
    scored = options.evaluate and bool(chosen.spec.evaluation.tasks)
    cells = [row.cell for row in plan.pending if row.cell is not None]
    if isinstance(options, RayOptions):
        return []
    return preview(cells, chosen.folder, options, evaluate=scored)


def _refuse_impossible(chosen: Experiment, options: SlurmOptions) -> None:
    """Raise EnvironmentFault for jobs that can never start, by the cluster's own answers.

    SLURM accepts some of these jobs nevertheless. Print warnings about jobs that may start.
    """
    answers = read_cluster()
    resources = [cell.resources for cell in chosen.cells if cell.scale == "full"]
    advice = [*never_started(options, answers, resources)] if answers else []
    for each in advice:
        if each.verdict != "broken":
            say(f"{each.found} ({each.advice})")
    if impossible := [each for each in advice if each.verdict == "broken"]:
        lines = [f"  {each.found}; {each.advice}" for each in impossible]
        raise EnvironmentFault(
            "\n".join(["the jobs could never start, so nothing was submitted", *lines])
        )


@contextmanager
def _leaving_nothing_refused(folder: "RunFolder") -> "Iterator[None]":
    """Remove a folder that was created inside the context, if a refusal ends it and nothing was
    submitted."""
    new = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    try:
        yield
    except OrchError:
        if folder.path in new and folder.path.exists():
            # Another process may have submitted into the new folder meanwhile: its jobs keep it.
            with submission_lock(folder):
                at_ray = any(is_ray(a) for each in folder.cells() for a in each.attempts())
                dropped = all(sent.dropped for sent in submissions.read(folder).values())
                if dropped and not at_ray:
                    rmtree(folder.path)
            # rmdir refuses a folder that is not empty, such as one that another experiment uses.
            with suppress(OSError):
                for path in new[1:]:
                    path.rmdir()
        raise


def _is_left(chosen: Experiment, source: str, looks: "Sequence[tuple[Cell, CellState]]") -> bool:
    """Return True if the scheduler has something, and say what."""
    states = Counter(state.state for _, state in looks)
    busy = len(looks) - sum(states[s] for s in ("succeeded", "failed", "cancelled", "unknown"))
    if states["unknown"]:
        say(f"{states['unknown']} cells have an unknown state now: `orch status {source}`")
    if busy or states["unknown"]:
        say(
            f"{counted(busy, 'cell')} with the scheduler, or waiting: `orch status {source}` tells "
            f"how, `orch run {source} --wait` stays until all are done and reports"
        )
        return True
    if num_left := num_waiting(evaluation_states(chosen.folder, looks)[1]):
        say(
            f"{counted(num_left, 'evaluation')} with the scheduler: "
            f"`orch run {source} --wait` stays"
        )
    return bool(num_left)


def _ended(chosen: Experiment, looks: "Sequence[tuple[Cell, CellState]]") -> int:
    """Print what failed, of training and of evaluations that are not tried again. Return 1 if
    anything did."""
    states = Counter(state.state for _, state in looks)
    code = _print_failed_and_cancelled(
        chosen, states["failed"] + states["unknown"], states["cancelled"]
    )
    failed = [e.exit for e in evaluation_states(chosen.folder, looks)[1].values() if e.exit]
    if failed:
        classes = sorted({end.failure for end in failed})
        source = chosen.spec.source or chosen.spec.name
        say(
            f"{counted(len(failed), 'evaluation')} failed ({', '.join(classes)}), the training did "
            f"not: `orch logs --failed {source}` says why; `orch eval {source}` scores here"
        )
    return max(code, int(bool(failed)))


def keep_spec(experiment: Experiment) -> None:
    """Write the spec into the experiment's folder, as it is launched, and into the ledger the
    seeds that are new in it: they are planned now, whenever their cells start. So are its claims:
    their digests tell later which of them a result was there before."""
    experiment.folder.open()
    events = experiment.folder.events()
    known = {seed for e in events if e["event"] == "planned" for seed in e["seeds"]}
    every = [cell.declared or cell.settings for cell in experiment.cells]
    seeds = {settings.seed for settings in every}
    if added := sorted(seeds - known):
        experiment.folder.append("planned", "", seeds=added)
    claims = digests(experiment.spec.claims, experiment.spec.families)
    if claims != next((e["digests"] for e in reversed(events) if e["event"] == "claims"), {}):
        experiment.folder.append("claims", "", digests=claims)
    plain = experiment.spec.model_dump_json(indent=1)
    write_text(experiment.folder.spec, hide_userinfo(plain) + "\n")


def _print_failed_and_cancelled(experiment: Experiment, failed: int, cancelled: int) -> int:
    """Print how many cells failed or were cancelled, and what to do. Return 1 if any failed."""
    source = experiment.spec.source or experiment.spec.name
    if failed:
        say(
            f"{counted(failed, 'cell')} failed: `orch logs --failed {source}` says why, "
            f"`orch retry {source}` makes them run again"
        )
    if cancelled:
        say(f"cancelled, and left alone until `orch retry {source}`: {counted(cancelled, 'cell')}")
    return int(bool(failed))
