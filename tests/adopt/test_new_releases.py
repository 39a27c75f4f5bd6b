"""`orch adopt --new` against a fake index: wheels of releases that nobody published."""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from orchestrator.lab.adopt import loss_code
from orchestrator.lab.adopt.new_releases import new_releases
from tests.backends.child import probes_fork
from tests.backends.environments import contract_python
from tests.command_line import orch

CONFIG = "verl/trainer/config/_generated_ppo_trainer.yaml"
CORE = "verl/trainer/ppo/core_algos.py"
NEWEST = "0.9.1"


@pytest.fixture(scope="module")
def package() -> Path:
    """The source of the newest release of verl that was read."""
    (site,) = contract_python("verl", NEWEST).parents[1].glob("lib/python3*/site-packages")
    return site


def wheel(index: Path, version: str, files: dict[str, str], *, inside: str = "") -> None:
    """Write a wheel of verl; `inside`: the folder of its files in the archive."""
    index.mkdir(exist_ok=True)
    held = f"verl-{version}.dist-info"
    with ZipFile(index / f"verl-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(inside + path, text)
        archive.writestr(
            f"{held}/METADATA", f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n"
        )
        archive.writestr(
            f"{held}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{held}/RECORD", "")


@pytest.fixture(autouse=True)
def probes_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    probes_fork(monkeypatch)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "an index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


def sources(package: Path) -> dict[str, str]:
    paths = json.loads(Path("backends/verl/audit/code.json").read_text())["files"]
    paths += [CONFIG, "verl/utils/groupwise.py", "verl/utils/torch_functional.py"]
    return {path: (package / path).read_text() for path in paths if (package / path).is_file()}


def test_each_new_release_is_compared_with_the_one_before(package: Path, index: Path) -> None:
    same = sources(package)
    wheel(index, NEWEST, same)  # it is known
    wheel(index, "0.9.2", {**same, CORE: f"# only a comment\n{same[CORE]}"})
    changed = same[CORE].replace("def agg_loss(", "def agg_loss(extra_argument, ", 1)
    changed += "\n\ndef compute_policy_loss_tomorrow(log_prob):\n    return log_prob\n"
    keys = same[CONFIG].replace("use_kl_loss: false", "use_kl_loss: true")
    assert keys != same[CONFIG]
    files = {**same, CORE: changed, CONFIG: keys}
    wheel(index, "0.10.0", files, inside="verl-0.10.0.data/purelib/")
    one, two = new_releases("verl")
    assert (one.version, one.before, one.changes, one.other_keys) == ("0.9.2", NEWEST, False, 0)
    assert (two.version, two.before) == ("0.10.0", "0.9.2")
    assert (two.rewritten, two.added, two.dropped) == (
        ("agg_loss",),
        ("compute_policy_loss_tomorrow",),
        (),
    )
    (row,) = two.keys
    assert row.what == "actor_rollout_ref.actor.use_kl_loss"
    assert (row.before, row.after) == ("any = False", "any = True")


def test_the_command_says_it_and_its_exit_code_is_3(
    package: Path, index: Path, tmp_path: Path
) -> None:
    same = sources(package)
    wheel(index, NEWEST, same)
    quiet = orch(tmp_path, "adopt", "--new", "verl")
    assert (quiet.returncode, quiet.stdout) == (0, f"verl: nothing newer than {NEWEST}\n")
    halved = same[CORE].replace("masked_sum(loss_mat,", "masked_sum(0.5 * loss_mat,")
    without = {path: text for path, text in same.items() if path != CONFIG}
    wheel(index, "0.10.0", {**without, CORE: halved})
    loud = orch(tmp_path, "adopt", "--new", "verl")
    assert loud.returncode == 3
    first, last = loud.stdout.splitlines()
    assert first.startswith(f"verl 0.10.0, after {NEWEST}: other numbers: agg_loss token-mean, ")
    assert "; another code: agg_loss" in first
    assert last == "  its keys could not be read: not compared"


def test_nothing_compared_is_no_green(package: Path, index: Path, tmp_path: Path) -> None:
    wheel(index, NEWEST, sources(package))
    wheel(index, "0.11.0", {"verl/elsewhere.py": "def agg_loss(): ...\n"})
    done = orch(tmp_path, "adopt", "--new", "verl")
    assert done.returncode == 1
    assert "verl 0.11.0 has none of the files" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_index_that_has_nothing_is_a_sentence(index: Path, tmp_path: Path) -> None:
    done = orch(tmp_path, "adopt", "--new", "verl")
    assert done.returncode == 1
    assert "the package index cannot be asked" in done.stderr
    other = orch(tmp_path, "adopt", "--new", "slime")
    assert other.returncode == 2
    assert "looks for releases of openrlhf, skyrl, trl, verl" in other.stderr
    assert loss_code.libraries() == (
        "openrlhf",
        "skyrl",
        "trl",
        "verl",
    )
