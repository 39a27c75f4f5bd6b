"""`adopt`: what it writes of a release is what orch keeps of it, and it says what changed."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backends.trl.options import own_options
from lab.adopt.adopting import MISSING, _distance, unmet
from lab.adopt.changes import changes, of_evidence
from lab.adopt.keys import written_options
from lab.probes import written
from orchestrator.environments.lock import Lock
from orchestrator.evidence import stored
from orchestrator.library.key_tables import load_options
from tests.backends.environments import contract_python, root
from tests.lab.commands import lab

ROOT = Path(__file__).parents[3]
NEWEST, OLDER = "1.16.0", "1.9.2"
CODE = "audit/code.json"
TABLES = ("options.json", "history.json")
"""Files of a library's folder with the keys of every release; some libraries have one."""
COPIED = ("orch", "orchestrator", "backends", "dashboards", "experiments", "lab", "pyproject.toml")


def adopt(place: Path, *argv: str, tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `python -m lab adopt` of a tree in a folder."""
    return lab(place, "adopt", *argv, tree=tree, ORCH_ENVIRONMENTS=str(root()))


def house_without(library: str, version: str, place: Path) -> Path:
    """Make a copy of the tree that knows nothing of a release but how the environments are locked
    in which it trains. Return the copy's folder of the library."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, place / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, place / name)
    tables = place / "backends" / library
    for name in filter(lambda each: (tables / each).exists(), TABLES):
        releases = load_options(tables / name)
        del releases[version]
        (tables / name).write_text(written_options(releases))
    (tables / "evidence" / f"{version}.json").unlink()
    (tables / "environments" / f"{version}.contract.txt").unlink()
    code = json.loads((tables / CODE).read_text())
    for by_digest in (each for named in code["code"].values() for each in named.values()):
        for releases_of in by_digest.values():
            releases_of[:] = [each for each in releases_of if each != version]
    (tables / CODE).write_text(json.dumps(code))
    return tables


def assert_as_it_was(library: str, version: str, theirs: Path) -> None:
    """What was written of a release is what this tree has of it."""
    ours = ROOT / "backends" / library
    texts = (*TABLES, CODE, f"environments/{version}.contract.txt")
    for name in filter(lambda each: (ours / each).exists(), texts):
        assert (theirs / name).read_text() == (ours / name).read_text(), name
    measured = (f"evidence/{version}.json",)
    for name in filter(lambda each: (ours / each).exists(), measured):
        kept, found = (json.loads((folder / name).read_text()) for folder in (ours, theirs))
        assert not written.differences(kept, found), name


def contents(place: Path) -> dict[str, bytes]:
    files = [each for each in place.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    return {str(each.relative_to(place)): each.read_bytes() for each in files}


@pytest.mark.thorough  # in a library's environment
@pytest.mark.slow
def test_a_release_that_does_not_exist_is_a_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    contract_python("trl", NEWEST)  # skips where nothing can be installed
    house_without("trl", NEWEST, tmp_path)
    before = contents(tmp_path)
    done = adopt(tmp_path, "trl@9.9.9", tree=tmp_path)
    assert done.returncode == 1
    assert "trl 9.9.9 cannot be installed, so nothing was written" in done.stderr
    assert contents(tmp_path) == before
    assert not (root() / "trl-9.9.9.contract").exists()


NEAREST = {
    "openrlhf": ("0.11.2", "0.10.1.post2"),
    "skyrl": ("0.4.0", "0.3.0"),
    "trl": (NEWEST, OLDER),
    "verl": ("0.9.1", "0.8.0"),
}


@pytest.mark.thorough  # in a library's environment
@pytest.mark.slow
@pytest.mark.long(120)
@pytest.mark.parametrize("library", NEAREST)
def test_a_newest_release_whose_tables_are_deleted_is_adopted_as_it_was(
    library: str, tmp_path: Path
) -> None:
    newest, older = NEAREST[library]
    contract_python(library, newest)
    theirs = house_without(library, newest, tmp_path)
    done = adopt(tmp_path, f"{library}@{newest}", tree=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_as_it_was(library, newest, theirs)
    assert f"rows to look at in {library} {newest}: they differ from {older}" in done.stdout
    assert f"{library} {newest}: probed" in done.stdout


def test_what_changed_between_two_releases_is_told() -> None:
    own = {f"grpo.{key}": option for key, option in own_options("grpo")[NEWEST].items()}
    found = changes("trl", (OLDER, NEWEST), own, ())
    keys = {row.what: (row.before, row.after) for row in found.rows if row.subject == "key"}
    assert keys["grpo.use_bias_correction_kl"] == ("bool = False", "bool = True")
    assert "trainer/grpo_trainer.py:GRPOTrainer._compute_loss" in found.texts
    measured = {row.what: (row.before, row.after) for row in found.rows}
    assert measured["natives: grpo --beta, on_policy"] == (
        "token-level forward KL",
        "token-level reverse KL",
    )
    same = changes("trl", (OLDER, OLDER), own, ())
    assert not any(same)


@pytest.mark.parametrize(
    ("section", "key", "other"),
    [
        ("loss", "policy_weights", [[1.0, 0.5]]),
        ("reward", "within", "token"),
        ("natives", "name", 0),
    ],
)
def test_whatever_is_measured_otherwise_is_a_row(section: str, key: str, other: object) -> None:
    kept = stored.read("trl", NEWEST)
    assert kept is not None
    changed = copy.deepcopy(dict(kept))
    entries = changed[section]
    entry = next(
        each for each in (entries.values() if isinstance(entries, dict) else entries) if key in each
    )
    entry[key] = other
    assert not list(of_evidence(kept, kept))
    rows = list(of_evidence(kept, changed))
    assert rows
    assert all(row.before != row.after for row in rows)


def test_a_library_that_cannot_be_adopted_and_a_word_that_is_no_release(tmp_path: Path) -> None:
    for release, sentence in {
        "micro@0.4.0": "orch cannot adopt micro yet (it can: openrlhf, skyrl, trl, verl)",
        "trl@newest": "'newest' is no number of a release",
        "tlr@1.16.0": "did you mean 'trl'",
    }.items():
        done = adopt(tmp_path, release)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_a_function_with_another_code_is_a_row() -> None:
    """verl 0.9.1 changed GSPO's loss, which no KL probe sees."""
    rows = changes("verl", ("0.8.0", "0.9.1"), (), ()).rows
    changed = {row.what.rpartition(": ")[2] for row in rows if row.subject == "code"}
    assert "compute_policy_loss_gspo" in changed


def test_a_lock_that_lacks_what_the_release_requires_is_found() -> None:
    lock = Lock("verl", "9.9.9", "gpu", "torch==2.9.0+cpu\nray==2.50.0\n")
    required = ["torch>=2.8", "ray>=2.55", "numpy<2", 'pandas; extra == "more"']
    assert unmet(required, lock) == [("ray>=2.55", "2.50.0"), ("numpy<2", MISSING)]


BETWEEN = """
from orchestrator.evidence.cells import settings, term, translated
for on_policy in (True, False):
    wanted = settings(
        "openrlhf", "0.11.1", term("k3", "loss"), aggregation="sequence_mean", on_policy=on_policy
    )
    print(translated(wanted).argv.count("--train.micro_batch_size"))
"""


def test_a_release_between_two_known_ones_is_translated(tmp_path: Path) -> None:
    """OpenRLHF's releases with dots and without --actor.loss_agg_mode ended in a traceback:
    train.micro_batch_size was 8 in the launch, not 1."""
    for name in COPIED[:4]:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "backends" / "openrlhf" / "options.json"
    releases = load_options(file)
    newest = releases["0.11.2"]
    releases["0.11.1"] = {k: v for k, v in newest.items() if k != "actor.loss_agg_mode"}
    order = ("0.10.1.post2", "0.11.1", "0.11.2")
    file.write_text(written_options({each: releases[each] for each in order}))
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, '.')\n{BETWEEN}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_the_nearest_release_may_be_a_newer_one() -> None:
    known = ("1.16.0", "1.9.2")
    assert min(known, key=lambda each: _distance(each, "1.15.0")) == "1.16.0"
    assert min(known, key=lambda each: _distance(each, "1.10.0")) == "1.9.2"
