"""One cell as a folder that trains without orch: `launch.sh`, its files and its prompts.

The folder is what one shows a colleague, an administrator or a library's maintainer. `launch.sh`
runs in a shell of the library's environment, or by `sbatch launch.sh`.
"""

import re
import shlex
import shutil
from pathlib import Path

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.files import write_text
from orchestrator.launch.slurm.flags import as_arguments, site_flags
from orchestrator.launch.slurm.script import CPUS_PER_GPU, ArrayResources, given_size, job_size
from orchestrator.launch.worker import link_policy
from orchestrator.library import neighbour
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, Site
from orchestrator.spec.site_options import slurm_options

MARK, PLACED = "@HERE@", ".in"
"""The folder in a file that names it, and the end of such a file's name."""
HERE = """\
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
[ -f "$here/launch.sh" ] || here="$SLURM_SUBMIT_DIR"  # sbatch runs a copy of this file
cd "$here" && mkdir -p output checkpoints
"""
RAY = """
# Ray on all nodes of the job; on one node the library starts its own.
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
    export RAY_ADDRESS="$(hostname -i | cut -d' ' -f1):6379"
    ray start --head --port=6379 --node-ip-address="${RAY_ADDRESS%:*}"
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks-per-node=1 --exclude="$SLURMD_NODENAME" \\
        ray start --address="$RAY_ADDRESS" --block &
    sleep 30
fi
"""


def write_launch_folder(cell: Cell, experiment: str, site: Site, folder: Path) -> list[str]:
    """Write the launch of a cell into a new folder. Return what is still to do, in sentences.

    Raise OrchError if the folder has something in it, or for a cell that trains inside orch.
    """
    if folder.exists() and any(folder.iterdir()):
        raise OrchError(f"{folder} is not empty; choose another folder")
    folder = folder.absolute()
    # Trackers take the experiment's name from the place of a plan (library.loggers.project).
    place = Path("/runs", experiment, "cells", cell.slug, "plan")
    paths = AttemptPaths(place, place / "output", place / "checkpoints")
    plan = neighbour.translated(plugins.load(cell.settings.backend.name), cell, paths)
    if plan.entry is not None:
        raise OrchError(f"{cell.slug} trains inside orch: it has no launch of its own")
    if plan.bring_up == "ranks" and cell.resources.num_nodes > 1:
        raise OrchError(f"{plan.backend} on several nodes is started by orch; take one node")
    for name, text in plan.files.items():
        of_place = str(place) in text
        write_text(folder / f"{name}{PLACED * of_place}", text.replace(str(place), MARK))
    link_policy(cell.settings.model.path, plan, folder)
    write_text(folder / "launch.sh", script(cell, plan, experiment, site, place))
    (folder / "launch.sh").chmod(0o755)
    todo = [f"it needs {plan.backend} {plan.version} on PATH (`orch env create` makes one)"]
    try:
        prepared.make_shipped(plan)
        prompts = prepared.link(folder)
    except EnvironmentFault as fault:
        return [*todo, f"{fault}. Then copy that folder to {folder / 'data'}"]
    if prompts is not None and (folder / "data").is_symlink():
        (folder / "data").unlink()
        shutil.copytree(prompts, folder / "data")
    return todo


def script(cell: Cell, plan: LaunchPlan, experiment: str, site: Site, folder: Path) -> str:
    """Return the text of `launch.sh`. folder: the place for which the plan was translated.

    A job takes what a job of `orch run` takes there. Where the site file does not say how many
    CPUs, it takes at least what the library's actors claim: its own Ray counts the job's CPUs.
    """
    nodes, gpus = cell.resources.num_nodes, cell.resources.gpus_per_node
    about = [
        f"# {cell.slug} of {experiment}: {plan.backend} {plan.version}, {nodes} x {gpus} GPUs.",
        "# Written by orch; it runs without it, in a shell that has the library, or by sbatch.",
    ]
    claimed = -(-(plan.ray_cpus or 0) // nodes)
    flags: dict[str, object] = {"job-name": cell.slug, "nodes": nodes, "ntasks-per-node": 1}
    if site.kind == "slurm":
        options = slurm_options(site.options)
        given, size = (f(options, ArrayResources(nodes, gpus)) for f in (given_size, job_size))
        flags["cpus-per-task"] = given.cpus or max(size.cpus or 1, claimed)
        flags |= {} if size.memory_mib is None else {"mem": f"{size.memory_mib}M"}
        flags |= {"exclusive": True} if size.exclusive else {}
        flags["time"] = max(1, round(options.time_limit_hours * 60))
        flags |= site_flags(options, gpus)
    else:
        flags["cpus-per-task"] = max(CPUS_PER_GPU * gpus, claimed, 1)
        flags |= {"gpus-per-node": gpus} if gpus else {}
    words = [f"#SBATCH {word}" for word in as_arguments(flags)]
    lines = ["#!/bin/bash", *about, *words, "set -euo pipefail", HERE.rstrip()]
    lines += [f"export {key}={_word(value, folder)}" for key, value in sorted(plan.env.items())]
    if plan.bring_up == "ray" and nodes > 1:
        lines.append(RAY.rstrip())
    if plan.bring_up == "ranks":
        lines.append("export ORCH_NODE_RANK=0")
    lines += [
        f'sed "s|{MARK}|$here|g" {shlex.quote(name + PLACED)} > {shlex.quote(name)}'
        for name, text in plan.files.items()
        if str(folder) in text
    ]
    program = "".join(
        (" \\\n    " if word.startswith("-") or "=" in word else " ") + _word(word, folder)
        for word in plan.argv
    )
    return "\n".join([*lines, "", program.lstrip(), ""])


def _word(word: str, folder: Path) -> str:
    """Return a word quoted for bash, with the folder as a variable."""
    if str(folder) not in word:
        return shlex.quote(word)
    parts = (re.sub(r'(["$`\\])', r"\\\1", part) for part in word.split(str(folder)))
    return f'"{"$here".join(parts)}"'
