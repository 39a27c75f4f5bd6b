"""The checks of a job's start, made on a node by `orch doctor` before anything is submitted.

Secrets, variables, environment, GPUs and address are checked by the functions that a job calls
(`launch.node`). Beside them, the modules of each library are imported in its environment, after the
site's `setup` lines, and prompts, models and data are looked for.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from orchestrator import harness_tasks
from orchestrator.environments.lock import locks_of, plain_name
from orchestrator.environments.make import QUESTION, contents
from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate.engines import resolved
from orchestrator.launch.check import translations
from orchestrator.launch.hub_data import SiteFinding, hub_findings
from orchestrator.launch.node import process_group
from orchestrator.launch.node.environment import (
    environment_fault,
    environment_for,
    read_secrets,
    run_variables,
)
from orchestrator.launch.node.gpus import gpu_fault
from orchestrator.records import Cell, EvaluationSpec, LaunchPlan, Site
from orchestrator.rundir import RunFolder
from orchestrator.site.forecast import unprepared_cells
from orchestrator.spec.site_options import NodeOptions, node_options

_IMPORT_SECONDS = 300
"""For each release. A first import from a cluster's file system takes minutes."""


def preflight(
    site: Site, cells: Sequence[Cell], evaluation: EvaluationSpec | None, runs_dir: Path
) -> Iterator[SiteFinding]:
    """Yield the findings of this node.

    cells: of full scale, one of each kind. runs_dir: an existing folder of this node.
    """
    options = node_options(site.options)
    gpus = max((cell.resources.gpus_per_node for cell in cells), default=0)
    if gpus and options.gpu_check:
        fault = gpu_fault(gpus)
        yield SiteFinding("GPUs of the node", "broken" if fault else "ok", fault or f"{gpus} free")
    if options.network_interface:
        find = partial(process_group.own_address, options.network_interface, None)
        yield _tried("network interface", find)
    if options.secrets:
        yield _tried("secrets", lambda: ", ".join(read_secrets(options.secrets)))
    folder = RunFolder.of(runs_dir, "doctor", "full")
    launches = {
        (plan.backend, plan.version, cell.resources.gpus_per_node > 0, cell.loggers): (cell, plan)
        for cell, plan in translations(cells, folder)
        # a trainer inside orch has no environment of its own
        if isinstance(plan, LaunchPlan) and plan.entry is None
    }
    for cell, plan in launches.values():
        yield _library(plan, cell, options, runs_dir)
    if cells and evaluation and evaluation.tasks:
        yield from _scorer(site, evaluation)
    for need in unprepared_cells(cells, folder):
        yield SiteFinding("prepared prompts", "broken", need)
    yield from hub_findings(site, cells, evaluation)


def _tried(check: str, find: Callable[[], str]) -> SiteFinding:
    try:
        return SiteFinding(check, "ok", find())
    except EnvironmentFault as fault:
        return SiteFinding(check, "broken", str(fault))


def _library(plan: LaunchPlan, cell: Cell, options: NodeOptions, runs_dir: Path) -> SiteFinding:
    """Return whether a library's modules can be imported, and whether its release is the cell's."""
    check, gpus = f"environment {plan.backend}@{plan.version}", cell.resources.gpus_per_node > 0
    if fault := environment_fault(plan.backend, plan.version, options, gpus=gpus):
        return SiteFinding(check, "broken", fault, "trainers live in environments of their own")
    modules = (*_modules(plan, "gpu" if gpus else "cpu"), *cell.loggers)
    try:
        environment = environment_for(plan, options, gpus=gpus)
        # The secrets have a line of their own; an import needs none.
        env = run_variables(plan, options.model_copy(update={"secrets": {}}))
        argv = ["python", "-c", QUESTION, *modules]
        command = environment.command(argv, runs_dir, [runs_dir], sorted(env))
        its = contents(command, environment.variables(env), _IMPORT_SECONDS)
    except EnvironmentFault as error:
        return SiteFinding(check, "broken", str(error))
    if its.faults:
        why = "; ".join(f"import {name} fails: {why}" for name, why in its.faults.items())
        return SiteFinding(check, "broken", why, "a cell would fail at its start")
    version = its.versions.get(plain_name(plan.backend), "")
    if version and version.partition("+")[0] != plan.version:
        return SiteFinding(
            check,
            "broken",
            f"it has {plan.backend} {version}, and the launches are written for {plan.version}",
            f"backend: {plan.backend}@{version}, or another environment",
        )
    listed = f", imports {', '.join(modules)}" if modules else ""
    return SiteFinding(
        check, "ok", f"Python {its.python}, {plan.backend} {version or 'unknown'}{listed}"
    )


def _scorer(site: Site, evaluation: EvaluationSpec) -> Iterator[SiteFinding]:
    """Yield whether the Python that scores checkpoints has vLLM, where vLLM is to score them."""
    engine = resolved(evaluation.engine, "full", site)
    if engine.name != "vllm":
        return
    python = engine.python or sys.executable
    try:
        faults = contents([python, "-c", QUESTION, "vllm", "lm_eval"], None, _IMPORT_SECONDS).faults
    except EnvironmentFault as fault:
        faults = {python: str(fault)}
    why = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
    yield SiteFinding(
        "environment of evaluation",
        "broken" if why else "ok",
        f"{python} cannot import {why}" if why else f"{python} imports vllm, lm_eval",
        f"orch env create lm-eval@{harness_tasks.VERSION}, or evaluation.engine.python"
        if why
        else "",
    )


def _modules(plan: LaunchPlan, flavour: str) -> tuple[str, ...]:
    """Return the modules that must import, by the release's lock, else by that of another."""
    own_first = sorted(locks_of(plan.backend), key=lambda lock: lock.version != plan.version)
    return next((lock.words("import") for lock in own_first if lock.flavour == flavour), ())
