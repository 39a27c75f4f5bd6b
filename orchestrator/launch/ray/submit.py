"""Submit cells to a job server as Ray jobs, each cell exactly once; cancel them again.

Only one orch at a time submits cells of a folder: it holds the submission lock. For every cell it
does, in this order:

    1  append the intent to the ledger, with the submission's id: cell and a random part
    2  reserve the cell's next attempt, with this id in its order.json
    3  send the job
    4  append `submitted` to the ledger

A kill between any two steps, and a request that timed out, leave an attempt that never began, with
an order. The next submission compares it with the server's list. If the server has the job, nothing
is to do. If it has not, the cell gets a new order with a new id; should the old job still arrive,
it finds the other order and starts nothing (task.begin). So no status code decides anything.

A Ray has no queue of orch's: a job that finds no room waits at the head for 15 minutes and then
fails. So orch sends at most `max_running` jobs, and no more GPUs than the Ray has; the rest stays
planned until jobs have ended.
"""

import math
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.errors import EnvironmentFault
from orchestrator.launch.check import check_launchable, translations
from orchestrator.launch.cluster_launcher import ClusterLauncher, Order, order_text
from orchestrator.launch.gpu_memory import evaluation_gpus
from orchestrator.launch.launcher import PlannedJob
from orchestrator.launch.ray import look
from orchestrator.launch.ray.server import (
    JobServer,
    RayJob,
    ServerRefusal,
    ServerUnavailable,
    server_of,
)
from orchestrator.launch.slurm import script, submissions
from orchestrator.launch.slurm.submit import Submitted, submission_lock
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RESUMABLE, CellDir, RunFolder
from orchestrator.spec.site_options import RayOptions

DEFAULT_RUNNING = 16
TRAIN = "orchestrator.launch.ray.task"
_ANSWER_TRIES = 3
"""Times that a job is sent to a server without an agent yet (a head that is just starting)."""
Tell = Callable[[str], None]


class JobShape(NamedTuple):
    """The resources of a cell's job."""

    cpus: float
    gpus: int
    """GPUs that the job itself claims."""
    memory_gib: float | None
    nodes: int = 1
    actors_gpus: int = 0
    """GPUs of each node that the library's own actors claim, by placement groups."""
    actors_cpus: int = 0
    """CPUs that they claim over all nodes."""
    alone: str = ""
    """The library, if a Ray may run only one of its cells at a time; else empty."""

    @property
    def all_gpus(self) -> int:
        """Return the number of GPUs that the cell uses."""
        return self.gpus or self.nodes * self.actors_gpus


def shape_of(cell: Cell, plan: LaunchPlan, options: RayOptions) -> JobShape:
    """Return the resources of a cell's job.

    A library of Ray claims the GPUs for its actors. Its job claims none, and no CPU: otherwise it
    would wait for what its own actors need.
    """
    if plan.bring_up == "ray":
        return JobShape(
            options.num_cpus or 0.0,
            0,
            options.memory_gib,
            cell.resources.num_nodes,
            cell.resources.gpus_per_node,
            plan.ray_cpus or 0,
            plan.backend if plan.alone_on_ray else "",
        )
    gpus = 0 if cell.scale == "micro" else cell.resources.gpus_per_node
    return JobShape(options.num_cpus or 1.0, gpus, options.memory_gib)


def expressible(cells: Sequence[Cell], folder: RunFolder) -> list[tuple[Cell, LaunchPlan]]:
    """Return the cells that their library can express, each with its launch."""
    return [(c, plan) for c, plan in translations(cells, folder) if isinstance(plan, LaunchPlan)]


def request_of(
    submission: str,
    argv: Sequence[str],
    shape: JobShape,
    about: Mapping[str, str],
    variables: Mapping[str, str],
    options: RayOptions,
) -> dict[str, object]:
    """Return the body of the request that sends a job.

    about: what orch asks the server's list for. variables: those that Ray's workers of this job
    need, which it starts on any node. No secret is in them: the server shows them to everybody.
    """
    claims = {"orch_gpus": str(shape.all_gpus), "orch_cpus": f"{shape.cpus + shape.actors_cpus:g}"}
    body: dict[str, object] = {
        "submission_id": submission,
        # exec: Ray signals the processes below the shell; this makes orch the only one.
        "entrypoint": f"exec {shlex.join(argv)}",
        "metadata": {**about, **claims, **({"orch_alone": shape.alone} if shape.alone else {})},
        "runtime_env": {"env_vars": dict(variables)} if variables else {},
    }
    for name, claim in (
        ("num_cpus", shape.cpus),
        ("num_gpus", shape.gpus),
        ("memory", int((shape.memory_gib or 0) * (1 << 30))),
        ("resources", dict(options.resources)),
    ):
        if claim:
            body[f"entrypoint_{name}"] = claim
    return body


def submit(
    cells: Iterable[Cell],
    folder: RunFolder,
    options: RayOptions,
    *,
    tell: Tell = lambda _: None,
) -> Submitted:
    """Submit the cells that need training and that the server does not have, as many as have room.

    Evaluations are sent once their cell is trained (`submit_evaluation`). Raise OrchError, before
    anything is submitted, for cells that a backend cannot express. Raise EnvironmentFault if the
    server does not answer.
    """
    folder.open()
    server = server_of(options)
    with submission_lock(folder):
        look.LOOKS.forget()
        jobs = _jobs(server)
        with look.LOOKS.one():
            poll = partial(look.polled_state, locked=True)
            states = [(c, folder.cell(c).state(poll=poll)) for c in cells]
        waiting = [cell for cell, state in states if state.state in RESUMABLE]
        if not waiting:
            return Submitted()
        check_launchable(waiting, folder)
        plans = expressible(waiting, folder)
        room = _Room(server, jobs, folder, options)
        room.refuse_impossible(plans)
        sender = RaySender(folder, options, server, tell)
        sent, no_room = [], []
        # Find all directories before the first one is made, because making one makes the folder's
        # cached listing invalid.
        cell_dirs = [folder.cell(cell) for cell, _ in plans]
        for (cell, plan), cell_dir in zip(plans, cell_dirs, strict=True):
            if room.take(shape_of(cell, plan, options)):
                sender.train(cell, plan, cell_dir)
                sent.append(cell)
            else:
                no_room.append(cell)
        look.LOOKS.forget()
        return Submitted(tuple(sent), tuple(sender.ids), tuple(no_room))


def _jobs(server: JobServer) -> Mapping[str, RayJob]:
    try:
        return server.jobs()
    except (ServerUnavailable, ServerRefusal) as error:
        raise EnvironmentFault(
            f"{error}. Nothing was submitted, and nothing is lost: run again when it does"
        ) from error


class _Room:
    """The jobs, GPUs and actors for which the Ray has room: orch's own jobs there are counted, of
    every folder for GPUs and CPUs, of this one for `max_running`.

    CPUs are counted for libraries whose actors claim them one by one: two cells of which each holds
    a part of what is left would wait for each other for ever. Of a library whose cells would share
    an actor, one runs at a time.
    """

    def __init__(
        self, server: JobServer, jobs: Mapping[str, RayJob], folder: RunFolder, options: RayOptions
    ):
        living = [job.metadata for job in jobs.values() if not job.is_over]
        ours = [each for each in living if "orch_kind" in each]
        own = sum(each.get("orch_folder") == str(folder.path) for each in ours)
        self._left = (options.max_running or DEFAULT_RUNNING) - own
        self._alone = {each.get("orch_alone") for each in ours}
        self._options, self._totals = options, server.totals()
        self._gpus = self._cpus = math.inf
        if self._totals is not None:
            used = [(int(m.get("orch_gpus") or 0), float(m.get("orch_cpus") or 0)) for m in ours]
            self._gpus = self._totals.gpus - sum(gpus for gpus, _ in used)
            self._cpus = self._totals.cpus - sum(cpus for _, cpus in used)

    def refuse_impossible(self, plans: Sequence[tuple[Cell, LaunchPlan]]) -> None:
        """Raise EnvironmentFault for cells that could never start on this Ray."""
        faults = [
            f"{cell.slug}: {plan.backend} starts its own ranks on {cell.resources.num_nodes} nodes "
            "(resources.num_nodes), and a Ray job runs on one: use a SLURM site"
            for cell, plan in plans
            if plan.bring_up == "ranks" and cell.resources.num_nodes > 1
        ]
        shapes = [shape_of(cell, plan, self._options) for cell, plan in plans]
        if (totals := self._totals) is not None:
            gpus = max(shape.all_gpus for shape in shapes)
            cpus = max(shape.actors_cpus for shape in shapes)
            claimed: list[tuple[str, float, float]] = [
                (f"a cell needs {gpus} GPUs (resources.gpus_per_node)", gpus, totals.gpus),
                (f"the actors of a cell claim {cpus} CPUs", cpus, totals.cpus),
            ]
            for name, number in self._options.resources.items():
                what = f"a job claims {number:g} {name} (site.options.resources)"
                claimed.append((what, number, totals.resources.get(name, 0.0)))
            faults += [
                f"{what}, and the Ray has {has:g} on {totals.nodes} nodes"
                for what, number, has in claimed
                if number > has
            ]
        if faults:
            lines = [f"  {fault}" for fault in faults]
            raise EnvironmentFault(
                "\n".join(["the jobs could never start, so nothing was submitted", *lines])
            )

    def take(self, shape: JobShape) -> bool:
        """Return True if a job of this shape may be sent now, and count it."""
        cpus = shape.cpus + shape.actors_cpus
        if (
            self._left <= 0
            or (shape.alone and shape.alone in self._alone)
            or (shape.all_gpus and shape.all_gpus > self._gpus)
            or (shape.actors_cpus and cpus > self._cpus)
        ):
            return False
        self._left -= 1
        self._gpus -= shape.all_gpus
        self._cpus -= cpus
        self._alone.add(shape.alone)
        return True


class RaySender:
    """A sender of the jobs of one folder. The caller holds the submission lock."""

    def __init__(self, folder: RunFolder, options: RayOptions, server: JobServer, tell: Tell):
        self.folder, self.options, self.server, self.tell = folder, options, server, tell
        self.ids: list[str] = []
        self._written = {
            "data_dir": str(prepared.data_dir()),
            "options": options.model_dump(mode="json"),
        }
        """What a job reads of the submitter, in an order or a manifest."""

    def train(self, cell: Cell, plan: LaunchPlan, cell_dir: CellDir) -> None:
        """Send the training of a cell."""
        cell_dir.make(cell)
        submission = f"{cell.id}-{secrets.token_hex(8)}"
        names = {"submission": submission, "launcher": "ray"}
        self.folder.append("intent", cell.id, **names, address=self.server.address)
        about = {"address": self.server.address, "time": time.time()}
        # An attempt that a job has begun is never used again, even if it did not get far.
        fresh = any(each.heartbeat.exists() for each in cell_dir.attempts()[-1:])
        order = order_text({**names, **about, **self._written}, cell)
        attempt = cell_dir.reserve(order, fresh=fresh)
        variables = dict(self.options.env)
        if self.options.network_interface:
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
                variables.setdefault(name, self.options.network_interface)
        if plan.bring_up == "ray":
            # The launch at hand may be that of another seed, and is that of a first attempt: Ray's
            # workers need the variables of this one.
            backend = plugins.load(cell.settings.backend.name)
            variables |= backend.translate(cell, cell_dir.paths(attempt)).env
        argv = (TRAIN, str(attempt.path), submission)
        self._send(submission, argv, shape_of(cell, plan, self.options), cell, "train", variables)
        self.folder.append("submitted", cell.id, **names)
        self.ids.append(submission)

    def _send(
        self,
        submission: str,
        argv: Sequence[str],
        shape: JobShape,
        cell: Cell,
        kind: str,
        variables: Mapping[str, str],
    ) -> None:
        """Send a job. Raise EnvironmentFault if the server has it not."""
        about = {"orch_cell": cell.slug, "orch_folder": str(self.folder.path), "orch_kind": kind}
        program = (self.options.python or sys.executable, "-P", "-m", *argv)
        body = request_of(submission, program, shape, about, variables, self.options)
        for tries_left in reversed(range(_ANSWER_TRIES)):
            try:
                self.server.submit(body)
                return
            except (ServerUnavailable, ServerRefusal) as error:
                # The request may have been served all the same: the list of jobs decides.
                if submission in _jobs(self.server):
                    return
                if "No available agent" in str(error) and tries_left:
                    self.tell("the head of the Ray is still starting; sending the job again")
                    time.sleep(2.0)
                    continue
                raise EnvironmentFault(
                    f"{error}. {len(self.ids)} jobs were submitted before, and nothing is lost: "
                    "run again"
                ) from error

    def evaluate(self, cell: Cell) -> str:
        """Send the evaluation of a trained cell. Return its id."""
        cell_dir = self.folder.cell(cell)
        submission = f"ray-{cell.id}-{secrets.token_hex(8)}"
        shape = self.scoring_shape(cell)
        manifest = {
            "kind": "evaluate",
            "elements": [[cell_dir.path.name, cell_dir.attempts()[-1].number]],
            "gpus": shape.gpus,
            "cwd": str(Path.cwd()),
            **self._written,
        }
        submissions.write_manifest(self.folder, submission, manifest)
        argv = (script.EVALUATE, str(self.folder.submission(submission)))
        # A kill between these two leaves a job that the ledger does not know. It scores the cell,
        # as the job of the next `orch run` does: scores that are there are not made again.
        self._send(submission, argv, shape, cell, "evaluate", {})
        submissions.note_intent(
            self.folder,
            submission,
            kind="evaluate",
            name=submission,
            cells=1,
            cluster=self.server.address,
            launcher="ray",
            job=submission,
        )
        return submission

    def scoring_shape(self, cell: Cell) -> JobShape:
        """Return the resources of the job that scores a cell."""
        own = self.options.evaluation
        cpus = float(own.cpus or self.options.num_cpus or 1.0)
        return JobShape(cpus, evaluation_gpus([cell], self.options), own.memory_gib)


def submit_evaluation(
    cells: Sequence[Cell],
    folder: RunFolder,
    options: RayOptions,
    tell: Tell,
) -> str:
    """Submit the evaluation of trained cells, a job each, as many as have room. Return their ids.

    The caller must know that no evaluation is submitted yet. Raise as `submit` does.
    """
    server = server_of(options)
    with submission_lock(folder):
        room = _Room(server, _jobs(server), folder, options)
        sender = RaySender(folder, options, server, tell)
        sent = [sender.evaluate(cell) for cell in cells if room.take(sender.scoring_shape(cell))]
        look.LOOKS.forget()
        return ", ".join(sent)


def planned_jobs(cells: Sequence[Cell], folder: RunFolder, options: RayOptions) -> list[PlannedJob]:
    """Return the resources that the jobs claim, one entry for each shape of cell."""
    plans = expressible(cells, folder)
    jobs = []
    for shape, count in Counter(shape_of(cell, plan, options) for cell, plan in plans).items():
        memory = f"{shape.memory_gib:g} GiB" if shape.memory_gib else "no claim on memory"
        gpus = shape.gpus or shape.actors_gpus
        jobs.append(PlannedJob(count, shape.nodes, gpus, int(shape.cpus), memory, False, None))
    return jobs


class RayLauncher(ClusterLauncher):
    """The job servers that were sent cells of a folder."""

    looks = look.LOOKS

    def end_jobs(self, orders: Sequence[Order]) -> str:
        """Ask the servers to stop jobs."""
        silent: dict[str, str] = {}
        for order in orders:
            address = str(order.get("address", ""))
            if address in silent:
                continue
            try:
                JobServer(address).stop(str(order.get("submission", "")))
            except ServerUnavailable as error:
                silent[address] = str(error)
            except ServerRefusal:
                continue  # it does not know the job: it never came, or the Ray was restarted
        look.LOOKS.forget()
        return next(iter(silent.values()), "")
