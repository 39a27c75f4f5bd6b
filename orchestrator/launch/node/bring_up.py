"""One attempt on the node or nodes of its job: environment, company, argv once, and its end."""

import json
import secrets as tokens
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from orchestrator.errors import OrchError
from orchestrator.files import write_text
from orchestrator.launch import program
from orchestrator.launch.endings import Ending, Stopped, ending_of
from orchestrator.launch.node import process_group
from orchestrator.launch.node.agent import SCRATCH, TOKEN, end_processes
from orchestrator.launch.node.environment import environment_for, read_secrets
from orchestrator.launch.node.process_group import ProcessGroup
from orchestrator.launch.node.ray import NodeSetup, RayStartError, ray_cluster
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import AttemptDir
from orchestrator.spec.site_options import NodeOptions, node_options

_COMPANIONS_LAST_SECONDS = 6.0
"""How long after the driver a node may take to say that it was the one to fail."""


def run(
    plan: LaunchPlan,
    attempt: AttemptDir,
    cell: Cell,
    options: Mapping[str, object],
    claim: IO[str] | None = None,
) -> Ending:
    """Runs a plan to its end on the nodes of this job, this one being the first.

    options: `site.options`; see NodeOptions. Everything it started is gone when it returns, or
    when whatever interrupted it is raised. What the user or the site got wrong is an ending of
    class `config`.
    """
    try:
        chosen = node_options(options)
        stage = _stage(plan, attempt, cell, chosen)
        env = _variables(plan, chosen)
    except OrchError as error:
        return ending_of(error)
    _record(attempt, stage)
    token = tokens.token_hex(8)
    company = ProcessGroup(token, attempt.path / "nodes")
    keep_logs = True
    try:
        match plan.bring_up:
            case "ray":
                ending = _with_ray(plan, attempt, stage, env, company, claim)
            case "ranks":
                ending = _with_ranks(plan, attempt, stage, env, company, claim)
            case _:
                ending = _program(plan, attempt, stage, env, company, claim)
        keep_logs = ending.state == "failed"
        return ending
    except Stopped:
        keep_logs = False
        raise
    finally:
        company.stop(keep_logs=keep_logs)
        end_processes(f"{token}.driver")


def _stage(plan: LaunchPlan, attempt: AttemptDir, cell: Cell, options: NodeOptions) -> NodeSetup:
    num_nodes = cell.resources.num_nodes if plan.bring_up != "program" else 1
    cwd = attempt.path.parents[1] / "plan"
    return NodeSetup(
        names=process_group.names(num_nodes),
        gpus_per_node=cell.resources.gpus_per_node,
        ground=environment_for(plan, options),
        options=options,
        cwd=cwd,
        sees=(attempt.path.parents[3], *_linked(cwd)),
        python=plan.argv[0] if Path(plan.argv[0]).name.startswith("python") else "python",
    )


def _linked(folder: Path) -> list[Path]:
    """Where the links of a plan lead: prepared prompts lie outside the runs folder."""
    return [path.resolve() for path in folder.glob("*") if path.is_symlink()]


def _variables(plan: LaunchPlan, options: NodeOptions) -> dict[str, str]:
    """What the run adds to the job's variables; the plan's own word is the last."""
    env = {**options.env, **read_secrets(options.secrets)}
    if options.network_interface:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            env.setdefault(name, options.network_interface)
    return {**env, **plan.env}


def _with_ray(
    plan: LaunchPlan,
    attempt: AttemptDir,
    stage: NodeSetup,
    env: Mapping[str, str],
    company: ProcessGroup,
    claim: IO[str] | None,
) -> Ending:
    env = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
    company.scratch = process_group.scratch(stage.options.scratch_dir, f"{SCRATCH}{company.token}")
    stage = stage._replace(sees=(*stage.sees, company.scratch))
    try:
        with ray_cluster(stage, company, env) as address:
            return _program(plan, attempt, stage, {**env, "RAY_ADDRESS": address}, company, claim)
    except RayStartError as failed:
        return failed.ending


def _with_ranks(
    plan: LaunchPlan,
    attempt: AttemptDir,
    stage: NodeSetup,
    env: Mapping[str, str],
    company: ProcessGroup,
    claim: IO[str] | None,
) -> Ending:
    if len(stage.names) > 1:
        env = {**env, "ORCH_SERVER_HOST": process_group.address_of(stage.names[1])}
    for rank, node in enumerate(stage.names[1:], start=1):
        own = {**env, "ORCH_NODE_RANK": str(rank)}
        argv = stage.command(plan.argv, own)
        company.start(node, argv, stage.ground.variables(own), stage.cwd, here=False)
    return _program(plan, attempt, stage, {**env, "ORCH_NODE_RANK": "0"}, company, claim)


def _program(
    plan: LaunchPlan,
    attempt: AttemptDir,
    stage: NodeSetup,
    env: Mapping[str, str],
    company: ProcessGroup,
    claim: IO[str] | None,
) -> Ending:
    variables = {**stage.ground.variables(env), TOKEN: f"{company.token}.driver"}
    ending = program.run(
        stage.command(plan.argv, env),
        attempt,
        cwd=stage.cwd,
        env=variables,
        claim=claim,
        patience_seconds=stage.options.hung_after_minutes * 60,
        watch=company.ending,
    )
    if ending.state != "failed" or ending.failure not in ("error", "node"):
        return ending
    return (_blamed(company.ending) if company.members else None) or ending


def _blamed(ending: Callable[[], Ending | None]) -> Ending | None:
    """The ending of a node that failed at about the same time as the driver, which is its cause."""
    deadline = time.monotonic() + _COMPANIONS_LAST_SECONDS
    while time.monotonic() < deadline:
        if (told := ending()) is not None:
            return told
        time.sleep(0.2)
    return None


def _record(attempt: AttemptDir, stage: NodeSetup) -> None:
    """attempts/<n>/nodes.json: where it ran and in what, without any value of a variable."""
    told = {
        "nodes": list(stage.names),
        "gpus_per_node": stage.gpus_per_node,
        "environment": stage.ground.record,
    }
    write_text(attempt.path / "nodes.json", json.dumps(told) + "\n")
