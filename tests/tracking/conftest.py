"""A house to mirror, with a database that has its tables already."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir import RunFolder

sys.path.insert(0, str(Path(__file__).parent))  # tracking_house is shared with other processes
from tracking_house import House


@pytest.fixture(scope="session", autouse=True)
def _no_uri() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables and nothing in them: copied, it saves a second a test."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def make_house(migrated: Path, synthetic: Any) -> Callable[..., House]:
    """An experiment with cells and no attempts, in any runs folder."""

    def make(runs_dir: Path, seeds: int = 2, name: str = "test") -> House:
        runs_dir.mkdir(parents=True, exist_ok=True)
        shutil.copy(migrated, runs_dir / "mlflow.db")
        done = synthetic.grid({"k1.reward": [0.5] * seeds, "k3.loss": [0.5] * seeds})
        folder = RunFolder.of(runs_dir, name, "micro")
        folder.open()
        spec = synthetic.spec({"c": "eval/in_domain/mean@4[kl=k1.reward] > 0.5"})
        return House(folder, spec, [record.cell for record in done.records], [], migrated)

    return make


@pytest.fixture
def house(make_house: Callable[..., House], tmp_path: Path) -> House:
    return make_house(tmp_path / "runs")
