"""Points written at once into MLflow's tables are those that log_batch writes."""

import math
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
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


def read_back(
    client: "MlflowClient", run_id: str, names: Sequence[str] = ("train/kl", "train/reward_mean")
) -> object:
    history = {
        name: sorted(
            (m.step, m.timestamp, repr(m.value)) for m in client.get_metric_history(run_id, name)
        )
        for name in names
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
        write({one: bulk.Points.of(part), third: bulk.Points.of(part[1:])})
        client.log_batch(other, metrics=part)
        assert read_back(client, one) == read_back(client, other)
    last = client.create_run(experiment).info.run_id
    for part in (points[1:5], points[4:], points[1:]):
        client.log_batch(last, metrics=part)
    assert read_back(client, third) == read_back(client, last)
    client.delete_run(one)
    fourth = client.create_run(experiment).info.run_id
    with pytest.raises(MlflowException, match="must be in the 'active' state"):
        write({fourth: bulk.Points.of(points), one: bulk.Points.of(points)})
    assert not client.get_run(fourth).data.metrics, "all runs of a call, or none"


def test_metrics_of_the_same_steps_are_those_of_log_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from mlflow.entities import Metric

    monkeypatch.setattr(bulk, "_WIDTH", 2)  # the last of three metrics has a table of its own
    client = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("e")
    write = bulk.writer_of(client)
    assert write is not None
    ours, theirs = ([client.create_run(experiment).info.run_id for _ in "ab"] for _ in "ab")
    values = np.array([[1 / 3, 0.1, 1e300], [math.nan, math.inf, 5e-324], [2.0, -math.inf, 7.0]])
    names = ("train/kl", "ü", "train/reward_mean")
    of_run = bulk.Points(
        [
            bulk.Block(names, values, [10, 20, 30], [0, 1, 2]),
            bulk.Block(names[:1], np.array([[4.0], [5.0]]), [40, 20], [3, 3]),
            bulk.Block((), np.empty((1, 0)), [50], [4]),
        ]
    )
    assert len(list(of_run)) == len(of_run) == 11
    write(dict.fromkeys(ours, of_run))
    for run_id in theirs:
        client.log_batch(run_id, [Metric(*each) for each in of_run])
    for one, other in zip(ours, theirs, strict=True):
        assert read_back(client, one, names) == read_back(client, other, names)
    assert client.get_run(ours[0]).data.metrics["train/kl"] == 4.0


def test_later_runs_have_greater_ids() -> None:
    ids = [bulk._new_run_id() for _ in range(100)]
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    assert [each[:16] for each in ids] == sorted(each[:16] for each in ids)
    assert len(set(ids)) == 100


def test_a_server_and_unknown_tables_are_left_to_log_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bulk.writer_of(open_store("http://127.0.0.1:9")) is None
    client = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert bulk.writer_of(client) is not None
    for name in bulk.TABLES:
        with monkeypatch.context() as patched:
            patched.setitem(bulk.TABLES, name, {*bulk.TABLES[name], "new"})
            assert bulk.writer_of(client) is None


@pytest.mark.parametrize("known", [False, True])
def test_a_new_run_is_that_of_create_run(tmp_path: Path, known: bool) -> None:
    """All rows of all tables, but for the ids that are drawn."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
    from mlflow.exceptions import MlflowException

    client = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    write = bulk.writer_of(client)
    assert write is not None
    metrics = [Metric(*each) for each in POINTS]
    tags, params = {"orch.key": "cell/1", "ü": "ß"}, {"kl.beta": "0.1", "seed": "0"}
    dataset = DatasetInput(
        Dataset("math", "d1", "hf", '{"path": "math"}'), [InputTag("mlflow.data.context", "t")]
    )
    ids = []
    for name in ("theirs", "ours"):
        home = client.get_experiment(client.create_experiment(name, f"file://{tmp_path}/a%20b"))
        if known:
            first = client.create_run(home.experiment_id, 3, {}, "first")
            client.log_inputs(first.info.run_id, [dataset])
            client.set_terminated(first.info.run_id, end_time=9)
        runs = []
        for number in range(2):
            title = f"run {number}"
            if name == "ours":
                runs.append(bulk.new_run(home, 5, tags, title))
                continue
            run = client.create_run(home.experiment_id, 5, tags, title)
            client.log_batch(run.info.run_id, metrics, [Param(*each) for each in params.items()])
            client.log_inputs(run.info.run_id, [dataset])
            runs.append(run)
        if name == "ours":
            each = {run.info.run_id: bulk.Points.of(metrics) for run in runs}
            named = bulk.NewDataset(
                "math", "d1", "hf", '{"path": "math"}', [("mlflow.data.context", "t")]
            )
            write(each, dict.fromkeys(each, params), [bulk.NewRun(run, named) for run in runs])
        for run in runs:
            assert run.info.artifact_uri == f"file://{tmp_path}/a%20b/{run.info.run_id}/artifacts"
        ids.append(home.experiment_id)
    theirs, ours = (content_of(tmp_path / "mlflow.db", int(id_)) for id_ in ids)
    assert theirs == ours
    assert {table: len(rows) for table, rows in ours.items()} == {
        "runs": 2 + known,
        "datasets": 1,
        **dict.fromkeys(("inputs", "input_tags"), 2 + known),
        "tags": 6 + known,
        "params": 4,
        "metrics": 20,
        "latest_metrics": 4,
    }
    client.delete_experiment(ids[1])
    late = bulk.new_run(client.get_experiment(ids[1]), 5, {}, "late")
    with pytest.raises(MlflowException, match="must be in the 'active' state"):
        write({}, {}, [bulk.NewRun(late)])


def content_of(database: Path, experiment: int) -> dict[str, list[str]]:
    """Rows of the tables that hold an experiment's runs; an id that was drawn is an X."""
    of_run = "run_uuid IN (SELECT run_uuid FROM runs WHERE experiment_id = :e)"
    own = "destination_id IN (SELECT run_uuid FROM runs WHERE experiment_id = :e)"
    tables = {
        **dict.fromkeys(("runs", "datasets"), "experiment_id = :e"),
        **dict.fromkeys(("tags", "params", "metrics", "latest_metrics"), of_run),
        "inputs": own,
        "input_tags": f"input_uuid IN (SELECT input_uuid FROM inputs WHERE {own})",  # noqa: S608  (constants)
    }
    content = {}
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        for table, condition in tables.items():
            rows = connection.execute(f"SELECT * FROM {table} WHERE {condition}", {"e": experiment})  # noqa: S608  (constants)
            texts = (repr({**row, "experiment_id": ""}) for row in map(dict, rows))
            content[table] = sorted(re.sub("[0-9a-f]{32}", "X", text) for text in texts)
    return content
