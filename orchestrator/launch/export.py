"""Convert a library's own checkpoint to a Hugging Face directory, the only format evaluation reads.

    cells/<cell>/exports/<name>/{export.json, huggingface/}   one checkpoint, complete or absent
    cells/<cell>/exports/<name>.log                           output of the last failed attempt

The name contains the step and a digest of the checkpoint's files. So a checkpoint is converted
once, and again only if it is written anew.
"""

import json
import os
import secrets as tokens
import signal
import time
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from orchestrator import plugins
from orchestrator.errors import CheckpointError, OrchError
from orchestrator.files import NO_ROOM, read_object, telling, write_text
from orchestrator.identity import digest
from orchestrator.launch import processes, program
from orchestrator.launch.endings import ending_of
from orchestrator.launch.node.environment import (
    environment_fault,
    environment_for,
    read_secrets,
)
from orchestrator.library.checkpoints import is_complete
from orchestrator.records import Cell, Checkpoint, LaunchPlan
from orchestrator.rundir import CellDir
from orchestrator.spec.site_options import NodeOptions


class ExportError(CheckpointError):
    """Raised if a checkpoint cannot be converted.

    Training is not at fault; no files are left over.
    """


def export(
    cell: Cell, checkpoint: Checkpoint, cell_dir: CellDir, options: NodeOptions | None = None
) -> Checkpoint:
    """Return the checkpoint in Hugging Face format.

    It is the checkpoint itself if it has that format, or an earlier export, or a new one. The
    library's own command makes a new export, in the library's own environment, which takes minutes.

    options: the site's options for environments. Raise ExportError.
    """
    if not checkpoint.needs_export:
        return checkpoint
    name = _name(checkpoint)
    target = cell_dir.exports / name
    done = Checkpoint(checkpoint.step, target / "huggingface")
    if (target / "export.json").exists():
        return done
    # The host and the pid let `_clear` see if the maker is dead. The token separates two exports of
    # one process.
    suffix = f"{processes.node_name()}-{tokens.token_hex(4)}-{os.getpid()}"
    nascent = cell_dir.exports / f".new-{name}-{suffix}"
    _clear(cell_dir.exports)
    try:
        with telling(nascent, passing=()):
            nascent.mkdir(parents=True)
        _convert(cell, checkpoint, cell_dir, nascent, options or NodeOptions())
        _take(nascent, target)
    finally:
        rmtree(nascent, ignore_errors=True)
    for older in cell_dir.exports.glob(f"step{checkpoint.step}-*"):
        if older != target:  # of a checkpoint that is not there any more
            rmtree(older, ignore_errors=True)
            older.unlink(missing_ok=True)
    return done


def _name(checkpoint: Checkpoint) -> str:
    files = [p for p in sorted(checkpoint.path.rglob("*")) if p.is_file()]
    if not files:
        raise ExportError(
            f"checkpoint {checkpoint.path} is not there; `orch retry` trains the cell again"
        )
    stats = [(str(p.relative_to(checkpoint.path)), p.stat()) for p in files]
    listing = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return f"step{checkpoint.step}-{digest(listing)}"


def _convert(
    cell: Cell, checkpoint: Checkpoint, cell_dir: CellDir, nascent: Path, options: NodeOptions
) -> None:
    """Run the library's command into nascent/huggingface, and write nascent/export.json."""
    backend = plugins.load(cell.settings.backend.name)
    target = nascent / "huggingface"
    argv = backend.export_command(checkpoint, target)
    if argv is None:
        raise ExportError(
            f"backend '{backend.name}' has no command that converts {checkpoint.path}"
        )
    plan = read_object(LaunchPlan, cell_dir.plan / "plan.json")
    if plan is None:
        raise ExportError(
            f"{cell_dir.plan}/plan.json is missing: it says which release wrote the "
            "checkpoint. Restore it, or `orch retry` the cell"
        )
    gpus, began = cell.resources.gpus_per_node > 0, time.time()
    environment = environment_for(plan, options, gpus=gpus)
    log = cell_dir.exports / f"{_name(checkpoint)}.log"
    write_text(log, "")
    try:
        env = environment.variables({**options.env, **read_secrets(options.secrets)})
        visible = (cell_dir.path,)
        command = environment.command(argv, cell_dir.exports, visible, sorted(options.env))
        ending = program.run(command, log, log, cwd=cell_dir.exports, env=env)
    except OrchError as error:
        ending = ending_of(error)
    if ending.state != "succeeded":
        failure = "out_of_memory" if ending.code == -signal.SIGKILL else ending.failure
        advice = _ADVICE.get(failure, "")
        if failure == "config":
            advice = environment_fault(plan.backend, plan.version, options, gpus=gpus)
        raise ExportError(
            f"{checkpoint.path} could not be exported from the format of "
            f"{plan.backend}@{plan.version} (training is not at fault): {ending.message}\n"
            f"{advice or f'{log} has all it printed'}"
        )
    if not is_complete(target, ("config.json",)):
        raise ExportError(
            f"{checkpoint.path}: its export ended well and left no whole policy in Hugging Face "
            f"format; {log} says more"
        )
    # export.json is the last file that is written, and the rename in `export` makes all files
    # visible at once.
    record = {
        "checkpoint": str(checkpoint.path),
        "step": checkpoint.step,
        "argv": list(argv),
        "backend": plan.backend,
        "version": plan.version,
        "environment": environment.record,
        "seconds": round(time.time() - began, 1),
        "host": processes.node_name(),
    }
    write_text(nascent / "export.json", json.dumps(record) + "\n")
    log.unlink(missing_ok=True)


_ADVICE = {
    "disk": "free some room and evaluate again",
    "out_of_memory": "it may want more memory (site.options.evaluation.memory_gib)",
}


def _take(nascent: Path, target: Path) -> None:
    try:
        nascent.rename(target)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise ExportError(f"{target}: there is no room left to write to") from error
        if not (target / "export.json").exists():  # another was not faster
            raise ExportError(f"{target}: {error.strerror}") from error


def _clear(exports: Path) -> None:
    """Remove what a killed export of this machine left."""
    for nascent in exports.glob(f".new-*-{processes.node_name()}-*"):
        pid = nascent.name.rpartition("-")[2]
        if pid.isdigit() and not processes.is_running(int(pid)):
            with suppress(OSError):
                rmtree(nascent)
