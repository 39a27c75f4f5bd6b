"""orch push and orch pull: a finished experiment travels through a store and is the same there."""

import io
import json
import logging
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import orch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evaluate import read_scores
from orchestrator.records import Record
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import saved_experiments
from orchestrator.sharing import exchange
from orchestrator.sharing.bundle import BundleFault, archive, digest, unpack
from orchestrator.sharing.store import ResultStore

pytestmark = pytest.mark.slow
SMOKE = "experiments/smoke.yaml"


@pytest.fixture
def source(finished: Path) -> RunFolder:
    return saved_experiments(finished / "runs")[0].folder


@pytest.fixture
def records(source: RunFolder) -> list[Record]:
    return collect([home.read_cell() for home in source.cells()], source)


@pytest.fixture
def store(tmp_path: Path, source: RunFolder, records: list[Record]) -> ResultStore:
    """A store that holds the finished experiment."""
    made = ResultStore(str(tmp_path / "our store"))
    done = list(exchange.push([r.cell for r in records], source, made, "ada"))
    assert {each.outcome for each in done} == {"shared"}
    return made


@pytest.fixture
def elsewhere(tmp_path: Path) -> RunFolder:
    return RunFolder.of(tmp_path / "a 'b\" $x ü", "smoke", "micro")


def pull_all(
    records: list[Record], folder: RunFolder, store: ResultStore
) -> list[exchange.Exchanged]:
    return list(exchange.pull([record.cell for record in records], folder, store))


def test_the_same_commands_as_a_person(finished: Path, empty: Path) -> None:
    """Somebody shares, somebody else takes: nothing is left to train, and all say whose it is."""
    shared = ("--store", str(empty / "store"))
    dry = orch(finished, "push", SMOKE, *shared, "--dry-run")
    assert dry.returncode == 3
    assert not (empty / "store").exists()
    done = orch(finished, "push", SMOKE, *shared, "--by", "ada")
    assert (done.returncode, done.stdout.split("\n")[-2]) == (0, "4 of 4 cells shared")
    again = orch(finished, "push", SMOKE, *shared, "--json")
    assert {(each["outcome"], each["note"]) for each in json.loads(again.stdout)} == {
        ("skipped", "the store has it")
    }
    assert orch(empty, "pull", SMOKE, *shared, "--dry-run").returncode == 3
    pulled = orch(empty, "pull", SMOKE, *shared)
    assert "4 of 4 cells pulled" in pulled.stdout
    assert "shared by ada" in pulled.stdout
    assert orch(empty, "plan", SMOKE).returncode == 0, "something is left to train"
    status = orch(empty, "status", SMOKE)
    assert f"4 trained elsewhere, and pulled from {empty}/store" in status.stdout
    apart = orch(empty, "status", SMOKE, "--runs-dir", "no such folder")
    assert "0 of 4 cells done" in apart.stdout, "--runs-dir goes before the spec's folder"
    finals = orch(empty, "report", SMOKE, "--format", "csv")
    assert str(empty / "store") in Path(finals.stdout.split("\n")[0]).read_text()
    report = orch(empty, "report", SMOKE)
    assert report.returncode == 0, report.stderr
    page = next(empty.rglob("report.md")).read_text()
    assert "ada, " in page
    assert "4 trained elsewhere" in page


def test_a_pulled_cell_is_the_one_that_was_shared(
    records: list[Record], elsewhere: RunFolder, store: ResultStore
) -> None:
    assert [each.outcome for each in pull_all(records, elsewhere, store)] == ["pulled"] * 4
    pulled = collect([record.cell for record in records], elsewhere)
    for here, there in zip(pulled, records, strict=True):
        assert here.metrics == there.metrics
        assert here.outcome == there.outcome
        assert not here.faults
        assert here.last is not None
        assert here.last.origin == store.shown
        scores = read_scores(CellDir(here.directory))
        assert scores == read_scores(CellDir(there.directory))
        assert scores
        plan = json.loads((here.directory / "plan" / "plan.json").read_text())
        assert str(here.directory / "attempts" / "1") in plan["argv"]
        assert plan["ledger"]
    assert {each.note for each in pull_all(records, elsewhere, store)} == {
        "it has been started here"
    }
    back = exchange.push([r.cell for r in records], elsewhere, store, "bob")
    assert {each.note for each in back} == {"the store has it"}


def test_nothing_of_the_machine_or_secret_is_shared(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_experiments(workspace / "runs")[0].folder
    plan = folder.cells()[0].plan / "plan.json"
    plain = json.loads(plan.read_text())
    plain["env"] = {"HF_TOKEN": "hf_very_secret", "PLAIN": "kept"}
    plan.write_text(json.dumps(plain))
    cell = folder.cells()[0].read_cell()
    store = ResultStore(str(tmp_path / "store"))
    list(exchange.push([cell], folder, store, "ada"))
    (manifest,) = store.manifests(cell.id)
    everything = b"".join(store.get(manifest).files.values()).decode()
    assert "hf_very_secret" not in everything
    assert "kept" in everything
    assert str(workspace) not in everything
    assert "checkpoints/" not in "".join(store.get(manifest).files)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("orch", "9.9", r"orch 9\.9, here "),
        ("library", "micro 0", r"library micro 0, here micro "),
        ("scale", "full", r"scale full, here micro"),
        ("format", 99, r"format 99, here 1"),
        ("versions", {"torch": "1.0"}, r"torch 1\.0, here 2"),
        ("digest", "0" * 64, r"does not answer|digests differ"),
    ],
)
def test_what_is_not_the_same_is_left(
    records: list[Record],
    elsewhere: RunFolder,
    store: ResultStore,
    field: str,
    value: Any,
    why: str,
) -> None:
    cell = records[0].cell
    (manifest,) = store.manifests(cell.id)
    root = Path(store.shown) / cell.id
    changed = manifest.model_copy(update={field: value})
    if field == "digest":
        (root / f"{manifest.digest}.tar.gz").rename(root / f"{value}.tar.gz")
    (root / f"{manifest.digest}.json").write_text(changed.model_dump_json())
    (skipped,) = exchange.pull([cell], elsewhere, store)
    assert skipped.outcome == "skipped"
    assert re.search(why, skipped.note)
    assert elsewhere.cell(cell).state().state == "planned"


def test_a_torn_or_foreign_archive_is_left(
    records: list[Record], elsewhere: RunFolder, store: ResultStore
) -> None:
    cell = records[0].cell
    (manifest,) = store.manifests(cell.id)
    path = Path(store.shown) / cell.id / f"{manifest.digest}.tar.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (skipped,) = exchange.pull([cell], elsewhere, store)
    assert "cut off or damaged" in skipped.note
    other = store.get(store.manifests(records[1].cell.id)[0]).files
    path.write_bytes(archive(other))
    (skipped,) = exchange.pull([cell], elsewhere, store)
    assert "digests differ" in skipped.note
    path.write_bytes(whole)
    (done,) = exchange.pull([cell], elsewhere, store)
    assert done.outcome == "pulled"


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/etc/evil", "plan/../../evil", "attempts/1/stdout", "claim", "eval/a/b.json"],
)
def test_an_archive_cannot_leave_its_directory(name: str) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(BundleFault, match="which no cell has"):
        unpack(held.getvalue())


def test_a_pull_that_was_killed_is_begun_again(
    records: list[Record],
    elsewhere: RunFolder,
    store: ResultStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = records[0].cell

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            list(exchange.pull([cell], elsewhere, store))
    assert elsewhere.cell(cell).state().state == "planned"
    (done,) = exchange.pull([cell], elsewhere, store)
    assert done.outcome == "pulled"
    assert elsewhere.cell(cell).state().state == "succeeded"
    assert not list(elsewhere.cell(cell).path.glob(".pulled*"))


def test_settings_that_are_not_those_of_the_id_are_left(
    records: list[Record], elsewhere: RunFolder, store: ResultStore
) -> None:
    one, two = (store.manifests(r.cell.id)[0] for r in records[:2])
    home = Path(store.shown) / one.cell
    shutil.rmtree(home)
    shutil.copytree(Path(store.shown) / two.cell, home)
    forged = two.model_copy(update={"cell": one.cell, "library": one.library})
    (home / f"{two.digest}.json").write_text(forged.model_dump_json())
    (skipped,) = exchange.pull([records[0].cell], elsewhere, store)
    assert "settings are not those of its id" in skipped.note


@given(st.dictionaries(st.from_regex(r"plan/[a-z]{1,8}", fullmatch=True), st.binary(), max_size=5))
def test_an_archive_is_read_back(files: dict[str, bytes]) -> None:
    assert unpack(archive(files)) == files
    backwards = dict(reversed(files.items()))
    assert (digest(backwards), archive(backwards)) == (digest(files), archive(files))
    for name in files:
        assert digest({**files, name: files[name] + b"x"}) != digest(files)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket of a real S3 server on this machine."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    boto3.client("s3").create_bucket(Bucket="shared")
    yield "s3://shared/results"
    server.stop()


def test_through_s3(
    s3: str, source: RunFolder, records: list[Record], elsewhere: RunFolder
) -> None:
    store = ResultStore(s3)
    cells = [record.cell for record in records]
    assert store.is_empty()
    assert [e.outcome for e in exchange.push(cells, source, store, "ada")] == ["shared"] * 4
    assert {e.note for e in exchange.push(cells, source, store, "ada")} == {"the store has it"}
    assert [e.outcome for e in exchange.pull(cells, elsewhere, store)] == ["pulled"] * 4
    pulled = collect(cells, elsewhere)
    assert [record.metrics for record in pulled] == [record.metrics for record in records]


def test_an_address_that_cannot_be_opened_is_a_sentence(empty: Path, s3: str) -> None:
    for address, why in {
        "ftps://x/y": "cannot be opened: Protocol not known",
        "s3://no-such-bucket/x": "s3://no-such-bucket/x: nothing is shared there",
        "s3://ada:secret@shared/x": "s3://***@shared/x",
        "store": "store: nothing is shared there",
    }.items():
        done = orch(empty, "pull", SMOKE, "--store", address)
        assert "Traceback" not in done.stderr
        assert "ada:secret" not in done.stdout + done.stderr
        assert why in done.stdout + done.stderr, address
