"""Run one attempt on the nodes of its job: environment, process group, program, and its end."""

import json
import os
import secrets as tokens
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from orchestrator.errors import OrchError
from orchestrator.files import write_text
from orchestrator.launch import program
from orchestrator.launch.endings import Ending, Stopped, ending_of
from orchestrator.launch.node import process_group
from orchestrator.launch.node.agent import SCRATCH, end_processes
from orchestrator.launch.node.environment import environment_for, run_variables
from orchestrator.launch.node.gpus import gpu_fault
from orchestrator.launch.node.process_group import TOKEN, ProcessGroup
from orchestrator.launch.node.ray import NodeSetup, RayStartError, ray_cluster
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import AttemptDir
from orchestrator.spec.site_options import NodeOptions, node_options

_WORKERS = Path(__file__).with_name("ray_workers.py")
_AGENT_SECONDS = 6.0
"""Seconds after the driver's end in which an agent may report that its node was the cause."""


class _Launched(NamedTuple):
    """One attempt on its nodes."""

    plan: LaunchPlan
    attempt: AttemptDir
    setup: NodeSetup
    group: ProcessGroup
    claim: IO[str] | None


def run(
    plan: LaunchPlan,
    attempt: AttemptDir,
    cell: Cell,
    options: Mapping[str, object],
    claim: IO[str] | None = None,
    *,
    ray_address: str | None = None,
) -> Ending:
    """Run a plan to its end on the nodes of this job. This node is the first. Return the ending.

    options: `site.options`; see NodeOptions. ray_address: the Ray of which this job is a part. The
    program then runs on this node, and a library of Ray takes its nodes and GPUs from that Ray.
    When this returns or raises, everything that was started is gone. A mistake of the user or the
    site is an ending of class `config`.
    """
    try:
        chosen = node_options(options)
        setup = _setup(plan, attempt, cell, chosen, ray_address)
    except OrchError as error:
        return ending_of(error)
    _record(attempt, setup)
    if setup.gpus_checked and (fault := gpu_fault(setup.gpus_per_node)):
        return Ending("failed", failure="node", message=f"node {setup.names[0]}: {fault}")
    token = tokens.token_hex(8)
    group = ProcessGroup(token, attempt.path / "nodes")
    keep_logs = True
    try:
        launched = _Launched(
            plan,
            attempt,
            setup,
            group,
            claim,
        )
        match plan.bring_up:
            case "ray" if ray_address is not None:
                joined = setup._replace(env=_joined(launched, ray_address))
                ending = _program(launched._replace(setup=joined))
            case "ray":
                ending = _with_ray(launched)
            case "ranks":
                ending = _with_ranks(launched)
            case _:
                ending = _program(launched)
        keep_logs = ending.state == "failed"
        return ending
    except Stopped:
        keep_logs = False
        raise
    finally:
        group.stop(keep_logs=keep_logs)
        # A daemon may have left the driver's session: the token finds it.
        end_processes(f"{token}.driver")


def _setup(
    plan: LaunchPlan,
    attempt: AttemptDir,
    cell: Cell,
    options: NodeOptions,
    ray_address: str | None,
) -> NodeSetup:
    alone = plan.bring_up == "program" or ray_address is not None
    num_nodes = 1 if alone else cell.resources.num_nodes
    if plan.bring_up == "ray" and ray_address is not None:
        # The library's actors take the GPUs, on whatever nodes; this node may have none.
        options = options.model_copy(update={"gpu_check": False})
    names = process_group.names(num_nodes)
    cwd = attempt.path.parents[1] / "plan"
    setup = NodeSetup(
        names=names,
        gpus_per_node=cell.resources.gpus_per_node,
        environment=environment_for(plan, options, gpus=cell.resources.gpus_per_node > 0),
        options=options,
        cwd=cwd,
        # Prepared prompts, to which a plan links, are outside the runs folder.
        visible=(attempt.path.parents[3], *(e.resolve() for e in cwd.glob("*") if e.is_symlink())),
        ray_cpus=plan.ray_cpus,
        python=plan.argv[0] if Path(plan.argv[0]).name.startswith("python") else "python",
        env=run_variables(plan, options),
    )
    setup.command(plan.argv)  # raises now for a folder that cannot be mounted into an image
    return setup


def _joined(launched: _Launched, address: str) -> dict[str, str]:
    """Return the variables with which a program joins the Ray of its job."""
    # The job's variables and those of the library's own ray.init may overlap.
    setup = launched.setup
    joined = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1", **setup.env, "RAY_ADDRESS": address}
    environment = setup.environment
    if environment.entry is not None and environment.entry.image:
        return joined  # a Python of the image is none of the node's
    folder = launched.attempt.path / "ray"
    folder.mkdir(exist_ok=True)
    write_text(folder / f"orch_{_WORKERS.name}", _WORKERS.read_text(encoding="utf-8"))
    path = setup.variables.get("PYTHONPATH")
    joined["PYTHONPATH"] = os.pathsep.join([*([path] if path else []), str(folder)])
    return {"RAY_RUNTIME_ENV_HOOK": f"orch_{_WORKERS.stem}.hook", **joined}


def _with_ray(launched: _Launched) -> Ending:
    group, setup = launched.group, launched.setup
    env = {name: value for name, value in setup.env.items() if name != "RAY_ADDRESS"}
    group.scratch = process_group.scratch(setup.options.scratch_dir, f"{SCRATCH}{group.token}")
    setup = setup._replace(visible=(*setup.visible, group.scratch), env=env)
    try:
        with ray_cluster(setup, group) as address:
            joined = setup._replace(env={**env, "RAY_ADDRESS": address})
            return _program(launched._replace(setup=joined))
    except RayStartError as failed:
        return failed.ending


def _with_ranks(launched: _Launched) -> Ending:
    setup = launched.setup
    env = dict(setup.env)
    if len(setup.names) > 1:
        env["ORCH_SERVER_HOST"] = process_group.address_of(setup.names[1])
    for rank, node in enumerate(setup.names[1:], start=1):
        own = setup._replace(env={**env, "ORCH_NODE_RANK": str(rank)})
        argv = own.command(launched.plan.argv, node)
        launched.group.start(
            node,
            argv,
            own.variables,
            setup.cwd,
            setup.checks,
        )
    own = setup._replace(env={**env, "ORCH_NODE_RANK": "0"})
    return _program(launched._replace(setup=own))


def _program(launched: _Launched) -> Ending:
    setup, group = launched.setup, launched.group
    variables = {**setup.variables, TOKEN: f"{group.token}.driver"}
    attempt = launched.attempt
    hang_watch = program.HangWatch(attempt.path, setup.options.hung_after_minutes * 60)
    ending = program.run(
        setup.command(launched.plan.argv),
        attempt.stdout,
        attempt.stderr,
        cwd=setup.cwd,
        env=variables,
        claim=launched.claim,
        watch=lambda: group.ending() or hang_watch.ending(),
    )
    if ending.state != "failed" or ending.failure not in ("error", "node"):
        return ending
    return (_ending_of_failed_node(group.ending) if group.members else None) or ending


def _ending_of_failed_node(ending: Callable[[], Ending | None]) -> Ending | None:
    """Return the ending of a node that fails within _AGENT_SECONDS of the driver, or None. Such a
    node is the cause of the driver's failure."""
    deadline = time.monotonic() + _AGENT_SECONDS
    while time.monotonic() < deadline:
        if (reported := ending()) is not None:
            return reported
        time.sleep(0.2)
    return None


def _record(attempt: AttemptDir, setup: NodeSetup) -> None:
    """Write nodes.json: nodes and environment of the attempt, without values of variables."""
    record = {
        "nodes": list(setup.names),
        "gpus_per_node": setup.gpus_per_node,
        "environment": setup.environment.record,
    }
    write_text(attempt.path / "nodes.json", json.dumps(record) + "\n")
