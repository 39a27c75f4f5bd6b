"""Which data a cell was trained on, as MLflow's data sets: name, digest, where it comes from."""

import json

from orchestrator.fingerprint import digest
from orchestrator.rundir import CellDir
from orchestrator.tracking.content import Dataset
from orchestrator.types import Record


def dataset_of(record: Record) -> Dataset:
    """The prepared folder a launch was linked to, with its hash; else what the settings name.

    At micro scale it is the embedded skill that stands for the data.
    """
    data = record.cell.settings.data
    link = CellDir(record.directory).plan / "data"
    asked = digest(data.model_dump(mode="json"))
    if link.is_symlink():
        folder = link.resolve()
        name, _, hashed = folder.name.rpartition("-")
        source = json.dumps({"uri": folder.as_uri()})
        return Dataset(name or data.name, (hashed or asked)[:36], "local", source)
    if record.cell.scale == "micro":
        source = json.dumps({"uri": f"embedded skill standing for {data.name}"})
        return Dataset(f"{data.name} (micro)", asked[:36], "code", source)
    return Dataset(data.name, asked[:36], "hf", json.dumps({"path": data.path or data.name}))
