"""The task of a cell for SkyPilot, and the fields of a cloud file.

Sources: SkyPilot 0.14.1, sky/utils/schemas.py (tasks, resources, job_recovery, storage) and
sky/task.py (names).
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from orchestrator.errors import Fault, OrchError, SpecError
from orchestrator.files import write_text
from orchestrator.launch.launcher import PlannedJob
from orchestrator.launch.slurm.script import array_resources
from orchestrator.records import Cell
from orchestrator.spec.sentences import sentence
from orchestrator.spec.site_options import NodeOptions
from orchestrator.spec.yaml_file import read

AGAIN = 75
"""Exit code of a worker whose cell may be tried again. SkyPilot recovers a task only on this
code."""
WORKER = "orchestrator.launch.skypilot.worker"
_ACCELERATORS = {"a100-80gb": "A100-80GB", "a100-40gb": "A100", "h100": "H100", "h200": "H200"}
"""`resources.gpu` -> SkyPilot's name. A name that is not in the table is passed in capitals."""

_PLAIN = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:+*-]*$", max_length=256)]


class CloudOptions(NodeOptions):
    """A cloud file: where the run directories are, and what a machine has."""

    bucket: Annotated[str, Field(pattern=r"^(s3|gs|r2|cos|oci|nebius)://[A-Za-z0-9][\w./-]*$")]
    """A bucket that holds the run directories, with a folder in it or without."""
    setup: tuple[str, ...] = Field(min_length=1, strict=False)
    """Lines of shell that put orch, and the environments of the trainers, onto a new machine."""
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./~+@-]+$")] = "python3"
    """The Python that runs orch on a machine of the cloud."""
    mount: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]+$")] = "/orch-runs"
    """The path at which the bucket is mounted."""
    infra: _PLAIN | None = None
    """`aws/us-east-1`, `k8s`; None: the cheapest that SkyPilot has."""
    image: _PLAIN | None = None
    """`docker:nvcr.io/...`, or a cloud's own image."""
    accelerator: _PLAIN | None = None
    """None: SkyPilot's name of the cells' `resources.gpu`."""
    cpus: _PLAIN | None = None
    """`16+`: at least 16."""
    memory_gib: _PLAIN | None = None
    disk_gib: Annotated[int, Field(ge=50)] = 256
    use_spot: bool = False
    gpus_per_machine: Annotated[int, Field(ge=1)] = 8
    """A cell of several nodes becomes a task of one machine, if it takes no more GPUs in all."""


def read_options(path: Path) -> CloudOptions:
    """Return the options of a cloud file. Raise SpecError with every fault."""
    faults: list[Fault] = []
    document = read(path, faults)
    if document is not None:
        try:
            return CloudOptions.model_validate(document.data)
        except ValidationError as error:
            for each in error.errors():
                name = ".".join(map(str, each["loc"]))
                message = sentence(each, name, tuple(CloudOptions.model_fields))
                faults.append(document.fault(message, each["loc"]))
    raise SpecError(str(path), faults)


def task(cell: Cell, experiment: str, options: CloudOptions) -> dict[str, Any]:
    """Return the task of a cell of one node, as plain data."""
    resources: dict[str, object] = {
        "infra": options.infra,
        "image_id": options.image,
        "cpus": options.cpus,
        "memory": options.memory_gib,
        "disk_size": options.disk_gib,
        "use_spot": options.use_spot,
        # how often a cell is tried again is counted in its run directory, by the worker
        "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [AGAIN]},
    }
    if gpus := array_resources(cell).gpus_per_node:
        resources["accelerators"] = f"{_accelerator(cell, options)}:{gpus}"
    node_options = options.model_dump(mode="json", include=set(NodeOptions.model_fields))
    plain: dict[str, Any] = {
        "name": _name(f"{experiment}-{cell.directory}"),
        "resources": {key: value for key, value in resources.items() if value is not None},
        "num_nodes": 1,
        # MOUNT cannot append or rename, and a run directory is written in no other way
        "file_mounts": {options.mount: {"source": options.bucket, "mode": "MOUNT_CACHED"}},
        "envs": {
            "ORCH_RUN_FOLDER": f"{options.mount}/{experiment}",
            "ORCH_CELL": cell.model_dump_json(),
            "ORCH_OPTIONS": json.dumps(node_options),
        },
        "setup": "\n".join(["set -e", *options.setup]),
        "run": f"exec {options.python} -P -m {WORKER}\n",
    }
    if names := [name for name, source in options.secrets.items() if source is None]:
        plain["secrets"] = dict.fromkeys(names)
    return plain


def tasks(
    cells: Sequence[Cell], experiment: str, options: CloudOptions
) -> Mapping[str, dict[str, Any]]:
    """Return the task of each cell, by the name of its directory.

    Raise OrchError for cells that need several machines, because orch can only connect machines by
    srun.
    """
    small = [on_one_machine(cell, options) for cell in cells]
    if wide := [cell.slug for cell in small if array_resources(cell).num_nodes > 1]:
        raise OrchError(
            f"{len(wide)} of {len(cells)} cells take more GPUs than gpus_per_machine "
            f"({options.gpus_per_machine}), and orch brings machines together only in a SLURM job: "
            "raise gpus_per_machine, leave them out with --where, or run them with site.kind=slurm "
            f"({', '.join(wide[:3])}{', ...' if wide[3:] else ''}). Nothing was written"
        )
    return {cell.directory: task(cell, experiment, options) for cell in small}


def write(folder: Path, named: Mapping[str, dict[str, Any]]) -> list[Path]:
    """Write tasks into a folder, a file each. Return the files."""
    files = [folder / f"{name}.yaml" for name in named]
    for file, plain in zip(files, named.values(), strict=True):
        write_text(file, yaml.safe_dump(plain, sort_keys=False))
    return files


def on_one_machine(cell: Cell, options: CloudOptions) -> Cell:
    """Return the cell with all its GPUs on one node, if a machine has that many. Its id does not
    change."""
    own = cell.resources
    total = own.num_nodes * own.gpus_per_node
    if own.num_nodes == 1 or not 0 < total <= options.gpus_per_machine:
        return cell
    resources = own.model_copy(update={"num_nodes": 1, "gpus_per_node": total})
    return cell.model_copy(update={"resources": resources})


def planned_jobs(cells: Sequence[Cell], options: CloudOptions) -> list[PlannedJob]:
    """Return the resources that the tasks request, one entry for each shape of cell."""
    counts: dict[tuple[int, int], int] = {}
    for cell in cells:
        shape = array_resources(on_one_machine(cell, options))
        counts[shape] = counts.get(shape, 0) + 1
    cpus = int(options.cpus.rstrip("+")) if options.cpus else None
    memory = f"{options.memory_gib} GiB" if options.memory_gib else "the machine's memory"
    return [
        PlannedJob(count, nodes, gpus, cpus, memory, True, None)
        for (nodes, gpus), count in counts.items()
    ]


def _accelerator(cell: Cell, options: CloudOptions) -> str:
    name = cell.resources.gpu
    return options.accelerator or _ACCELERATORS.get(name, name.upper())


def _name(text: str) -> str:
    """Return a name that SkyPilot accepts: letters and digits, joined by single signs."""
    return "-".join(re.findall(r"[A-Za-z0-9]+", text))
