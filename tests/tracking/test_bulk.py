"""Points written at once into MLflow's tables are those that log_batch writes."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.tracking import bulk

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

POINTS = [
    (name, value, at, step)
    for name in ("train/kl", "train/reward_mean")
    for step, at, value in (
        (0, 10, 1.5),
        (2, 30, math.nan),
        (1, 20, math.inf),
        (2, 30, -1.0),
        (2, 30, -1.0),
        (2, 29, 7.0),
    )
]


def open_store(uri: str) -> "MlflowClient":
    from mlflow.tracking import MlflowClient  # seconds, in each process of the tests

    return MlflowClient(tracking_uri=uri)


def read_back(client: "MlflowClient", run_id: str) -> object:
    history = {
        name: sorted(
            (m.step, m.timestamp, repr(m.value)) for m in client.get_metric_history(run_id, name)
        )
        for name in ("train/kl", "train/reward_mean")
    }
    return history, {name: repr(v) for name, v in client.get_run(run_id).data.metrics.items()}


def test_rows_and_latest_values_are_those_of_log_batch(tmp_path: Path) -> None:
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    points = [Metric(*each) for each in POINTS]
    client = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("e")
    write = bulk.writer_of(client)
    assert write is not None
    one, other = (client.create_run(experiment).info.run_id for _ in range(2))
    third = client.create_run(experiment).info.run_id
    for part in (points[:5], points[3:], points):  # again and overlapping, as after a kill
        write({one: part, third: part[1:]})
        client.log_batch(other, metrics=part)
        assert read_back(client, one) == read_back(client, other)
    last = client.create_run(experiment).info.run_id
    for part in (points[1:5], points[4:], points[1:]):
        client.log_batch(last, metrics=part)
    assert read_back(client, third) == read_back(client, last)
    client.delete_run(one)
    fourth = client.create_run(experiment).info.run_id
    with pytest.raises(MlflowException, match="must be in the 'active' state"):
        write({fourth: points, one: points})
    assert not client.get_run(fourth).data.metrics, "all runs of a call, or none"


def test_a_server_and_unknown_tables_are_left_to_log_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bulk.writer_of(open_store("http://127.0.0.1:9")) is None
    client = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(bulk, "_ROW", (*bulk._ROW, "new"))
    assert bulk.writer_of(client) is None
