"""Environments made for real, of small wheels in a folder; and the locks that orch ships."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from orchestrator import plugins
from orchestrator.cli.env import command
from orchestrator.environments.lock import (
    ENGINES,
    Lock,
    find_installed,
    has_lock,
    installed,
    locks,
    read_lock,
)
from orchestrator.environments.make import (
    check,
    create,
    differences,
    find_uv,
)
from orchestrator.errors import EnvironmentFault
from orchestrator.launch.node.environment import environment_fault, find_environment
from orchestrator.spec.site_options import NodeOptions
from tests.launch.test_provenance import git

HERE = "{}.{}".format(*sys.version_info)
HEAD = f"# python: {HERE}\n# import: fakelib\n"


def wheel(folder: Path, name: str, version: str, needs: str = "", source: str = "") -> None:
    """A wheel of one module."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(f"{name}.py", source or f"version = {version!r}\n")
        made.writestr(f"{info}/METADATA", metadata)
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels, in place of an index; and uv, from orch's own environment."""
    find_uv()
    folder = tmp_path / "it's a shelf ü"
    folder.mkdir()
    wheel(folder, "fakelib", "1.0", "Requires-Dist: fakedep\n")
    wheel(folder, "fakelib", "1.1", "Requires-Dist: fakedep\n")
    wheel(folder, "fakedep", "2.0+cu1")
    wheel(folder, "fakebroken", "1.0", source="raise RuntimeError('no GPU')\n")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", folder.as_uri())
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    return folder


@pytest.fixture
def within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / 'environments "of" ü'
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(folder))
    return folder


CODE = "import fakelib; print(fakelib.version)"
LOCK = Lock("verl", "0.9.1", "gpu", HEAD + "fakelib==1.0\nfakedep==2.0\n")


def test_an_environment_is_what_its_lock_says(shelf: Path, within: Path) -> None:
    said: list[str] = []
    made = create(LOCK, within, say=said.append)
    assert made.path == within / "verl-0.9.1"
    assert find_installed("verl", "0.9.1") == made
    assert installed() == [made]
    assert check(made, LOCK) == []
    assert create(LOCK, within, say=said.append) == made
    assert said[-1] == f"verl@0.9.1 is there: {made.path}"
    ran = subprocess.run(
        ["python", "-c", CODE],  # noqa: S607 - that it is found on its PATH is what is tested
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **made.variables(os.environ)},
    )
    assert ran.stdout == "1.0\n"
    on_node = find_environment("verl", "0.9.1", NodeOptions())
    assert on_node is not None
    assert on_node.record["lock"] == LOCK.digest
    assert on_node.record["path"] == str(made.path)


def test_what_differs_is_told(shelf: Path, within: Path) -> None:
    made = create(LOCK, within)
    other = Lock(
        "verl",
        "0.9.1",
        "gpu",
        "# python: 3.1\n# import: fakelib fakebroken\nfakelib==1.1\nabsent==3\nfakebroken==1.0\n",
    )
    told = check(made, other)
    assert f"its Python is {HERE}, the lock is for 3.1" in told
    assert "fakelib must be 1.1, it is 1.0" in told
    assert "absent 3 is missing" in told
    assert "1 packages are in no lock: fakedep 2.0+cu1" in told
    assert any("import fakebroken fails: ModuleNotFoundError" in each for each in told)
    assert any("made from another lock" in each and "--again" in each for each in told)
    (made.path / "bin" / "python").unlink()
    assert "cannot be run" in check(made, LOCK)[0]


def test_another_lock_is_not_laid_over_one_that_is_there(shelf: Path, within: Path) -> None:
    first = create(LOCK, within)
    newer = Lock("verl", "0.9.1", "gpu", LOCK.text.replace("fakelib==1.0", "fakelib==1.1"))
    with pytest.raises(EnvironmentFault, match="--again"):
        create(newer, within)
    assert check(first, LOCK) == []
    second = create(newer, within, again=True)
    assert check(second, newer) == []


def test_one_that_cannot_be_finished_is_none(shelf: Path, within: Path) -> None:
    wrong = Lock("verl", "0.9.1", "gpu", HEAD + "fakelib==7.7\n")
    with pytest.raises(EnvironmentFault, match=r"verl-0\.9\.1 cannot be made"):
        create(wrong, within)
    assert find_installed("verl", "0.9.1") is None
    assert installed() == []
    assert check(create(LOCK, within), LOCK) == [], "what was left is begun anew"


CPU_LOCK = Lock("verl", "0.9.1", "cpu", HEAD + "fakelib==1.0\nfakedep==2.0\ntorch==2.13.0+cpu\n")


@pytest.fixture
def folder(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of verl's locks, with one for CPUs."""
    wheel(shelf, "torch", "2.13.0+cpu")
    folder = tmp_path / "backends" / "verl" / "environments"
    folder.mkdir(parents=True)
    monkeypatch.setattr(plugins, "folder", lambda name: tmp_path / "backends" / name)
    (folder / "0.9.1.cpu.txt").write_text(CPU_LOCK.text)
    return folder


def test_a_cpu_environment_is_named_by_its_lock(within: Path, folder: Path) -> None:
    assert find_installed("verl", "0.9.1", "cpu") is None
    first = create(CPU_LOCK, within)
    assert first.path == within / f"verl-0.9.1.cpu-{CPU_LOCK.digest.split(':')[1][:10]}"
    assert check(first, CPU_LOCK) == []
    assert find_installed("verl", "0.9.1", "cpu") == first
    assert find_installed("verl", "0.9.1") is None, "what trains on GPUs is another"
    newer = Lock("verl", "0.9.1", "cpu", CPU_LOCK.text.replace("fakelib==1.0", "fakelib==1.1"))
    (folder / "0.9.1.cpu.txt").write_text(newer.text)
    assert find_installed("verl", "0.9.1", "cpu") is None, "it is of another lock"
    assert create(newer, within).path != first.path
    assert "nothing uses it: remove the folder" in check(first, newer)[-1]


@pytest.mark.usefixtures("folder")
def test_a_cell_without_gpus_takes_the_cpu_environment(within: Path) -> None:
    options = NodeOptions()
    assert find_environment("verl", "0.9.1", options, gpus=False) is None
    fault = environment_fault("verl", "0.9.1", options, gpus=False)
    assert "`orch env create verl@0.9.1 --cpu` makes one" in fault
    create(LOCK, within)
    other = find_environment("verl", "0.9.1", options, gpus=False)
    assert other is not None
    assert other.record["flavour"] == "gpu", "it has no other"
    create(CPU_LOCK, within)
    own = find_environment("verl", "0.9.1", options, gpus=False)
    assert own is not None
    assert own.record["flavour"] == "cpu"
    trains = find_environment("verl", "0.9.1", options)
    assert trains is not None
    assert trains.record["flavour"] == "gpu"
    assert find_environment("of_a_plug_in", "1", options, gpus=False) is None


def test_an_installer_that_outlives_a_kill_is_waited_for(
    shelf: Path, within: Path, tmp_path: Path
) -> None:
    """orch is killed (-9) while uv makes the environment; uv goes on, and keeps its folder."""
    started, go_on = tmp_path / "started", tmp_path / "go on"
    slow = tmp_path / "slow python"
    slow.write_text(
        f"#!/bin/sh\n: > '{started}'\nwhile [ ! -e '{go_on}' ]; do /bin/sleep 0.05; done\n"
    )
    slow.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from orchestrator.environments.lock import Lock; "
        "from orchestrator.environments.make import create; "
        "create(Lock('verl', '0.9.1', 'gpu', sys.argv[1]), Path(sys.argv[2]), "
        "python=Path(sys.argv[3]))"
    )
    orch = subprocess.Popen([sys.executable, "-c", code, LOCK.text, str(within), str(slow)])
    deadline = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    orch.kill()
    orch.wait()
    with (
        (within / "verl-0.9.1.lock").open() as lock,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    go_on.touch()
    assert check(create(LOCK, within), LOCK) == []


def test_a_checkout_is_made_by_its_own_lock(tmp_path: Path, within: Path) -> None:
    """A repository with a pyproject.toml and a uv.lock of no packages, synchronised by uv."""
    uv = find_uv()
    repository = tmp_path / "repository"
    (repository / "src" / "fakelib").mkdir(parents=True)
    (repository / "src" / "fakelib" / "__init__.py").write_text("version = 'a'\n")
    (repository / "pyproject.toml").write_text(
        f'[project]\nname = "fakelib"\nversion = "1"\nrequires-python = ">={HERE}"\n'
        "[tool.uv]\npackage = false\n"
    )
    subprocess.run([uv, "lock", "-q", "--offline"], cwd=repository, check=True)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        git(repository, *arguments)
    commit = git(repository, "rev-parse", "HEAD")
    lock = Lock("prime_rl", "1", "gpu", f"# checkout: {commit}\n# python: {HERE}\n# import: json\n")
    made = create(lock, within, checkout=repository)
    assert check(made, lock) == []
    assert (made.path / "source" / "src" / "fakelib" / "__init__.py").exists()
    absent = Lock("prime_rl", "2", "gpu", lock.text.replace(commit, "0" * 40))
    with pytest.raises(EnvironmentFault, match="it has no commit 0000"):
        create(absent, within, checkout=repository)


# ---------------------------------------------------------------- the locks that are shipped


def test_every_release_has_both_locks() -> None:
    have = {(lock.library, lock.version, lock.flavour) for lock in locks()}
    for library in plugins.names():
        for version in plugins.load(library).versions if library != "micro" else ():
            assert {(library, version, "gpu"), (library, version, "contract")} <= have
            assert has_lock(library, version)
    assert not has_lock("micro", plugins.load("micro").versions[0])


@pytest.mark.parametrize(
    "lock", locks(), ids=lambda lock: f"{lock.library}-{lock.version}.{lock.flavour}"
)
def test_a_lock_names_its_library_and_only_exact_versions(lock: Lock) -> None:
    assert lock.words("import")
    assert lock.words("python")
    if lock.words("checkout"):
        assert lock.words("variable")
        return
    assert lock.text.count("==") >= len(lock.pins)
    if lock.library != "prime_rl":
        name = lock.library if lock.library in lock.pins else f"{lock.library}-cpu"
        assert lock.pins[name] == lock.version
    if lock.flavour == "cpu":
        assert lock.pins["torch"].endswith("+cpu")
        assert lock.words("python") == ("3.11",)
        assert not {"vllm", "flash-attn"} & lock.pins.keys()
        assert "://" not in lock.text
    if lock.flavour == "gpu" and lock.library not in ENGINES:
        needed = {"torch", "transformers", "math-verify"}
        needed |= set() if lock.library == "trl" else {"vllm", "ray"}  # it samples by itself
        assert needed <= lock.pins.keys()
        assert set(lock.words("build")) <= lock.pins.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# pyhton: 3.12\nx==1\n", "did you mean 'python'"),
        ("# python: 3.12\nx>=1\n", "exact versions.*'x>=1' in line 2"),
    ],
)
def test_a_lock_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "1.0.gpu.txt"
    path.write_text(text)
    with pytest.raises(EnvironmentFault, match=says):
        assert read_lock(path, "verl").pins


def test_the_digest_is_of_what_is_held() -> None:
    one = Lock("a", "1", "gpu", "# python: 3.12\n# asked: x\nx==1\nY_z==2\n")
    two = Lock("a", "1", "gpu", "y-z==2  # why\nx==1\n# python: 3.12\n")
    assert one.digest == two.digest
    assert one.digest != Lock("a", "1", "gpu", "# python: 3.12\nx==1\ny-z==3\n").digest
    assert one.digest != Lock("a", "1", "gpu", f"# checkout: https://x y\n{one.text}").digest
    assert differences({"X": "1+cpu", "y.z": "2", "pip": "9"}, one) == []


# ---------------------------------------------------------------- orch env

Orch = Callable[..., object]


@pytest.fixture
def orch(shelf: Path, within: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orch:
    """`orch env ...`, with locks of our own small wheels."""
    folder = tmp_path / "backends" / "verl" / "environments"
    folder.mkdir(parents=True)
    (folder / "0.9.1.gpu.txt").write_text(LOCK.text)
    (folder / "0.8.0.gpu.txt").write_text(
        LOCK.text.replace("import: fakelib", "import: fakebroken") + "fakebroken==1.0\n"
    )
    monkeypatch.setattr(plugins, "folder", lambda name: tmp_path / "backends" / name)

    def run(*argv: str) -> object:
        return command.main(list(argv), prog_name="orch env", standalone_mode=False)

    return run


def test_create_list_and_check(
    orch: Orch, within: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orch("list")
    assert "not made" in capsys.readouterr().out
    with pytest.raises(EnvironmentFault, match=r"no lock for verl@0\.9\.1 --cpu"):
        orch("create", "verl@0.9.1", "--cpu")
    orch("create", "verl@0.9.1")
    assert capsys.readouterr().out == f"{within / 'verl-0.9.1'}\n"
    orch("list", "--json")
    rows = {row["release"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["verl@0.9.1"]["state"] == "ready"
    assert rows["verl@0.8.0"]["state"] == "not made"
    assert orch("check") == 0
    assert "as its lock says" in capsys.readouterr().out
    shutil.rmtree(next((within / "verl-0.9.1" / "lib").glob("python*/site-packages/fakedep-*")))
    assert orch("check", "verl@0.9.1", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {
        str(within / "verl-0.9.1"): ["fakedep 2.0 is missing"]
    }


def test_mistakes_are_sentences(orch: Orch, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no backend or engine 'verll', did you mean 'verl'"):
        orch("create", "verll")
    with pytest.raises(EnvironmentFault, match=r"no lock for verl@1 --gpu \(there are: verl@0.9.1"):
        orch("create", "verl@1")
    with pytest.raises(EnvironmentFault, match="micro needs no environment of its own"):
        orch("create", "micro")
    with pytest.raises(EnvironmentFault, match=r"`orch env create verl@0\.9\.1` makes one"):
        orch("check", "verl@0.9.1")
    with pytest.raises(
        EnvironmentFault, match="was made, but:\n  import fakebroken fails: Runtime"
    ):
        orch("create", "verl@0.8.0")
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot hold environments"):
        orch("create", "verl@0.9.1", "--dir", str(tmp_path / "file" / "x"))
    with pytest.raises(click.UsageError):
        orch("create")
