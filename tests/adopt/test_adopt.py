"""`orch adopt`: what it writes of a release is what orch keeps of it, and it says what changed."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backends.trl.options import own_options
from orchestrator.evidence import stored
from orchestrator.lab.adopt.changes import changes, of_evidence
from orchestrator.lab.adopt.child import MeasuredRelease
from orchestrator.library.key_tables import load_options, written_options
from tests.backends.environments import contract_python, cpu_python, root

ROOT = Path(__file__).parents[2]
NEWEST, OLDER = "1.16.0", "1.9.2"
KEYS = ("options.json", "history.json")
CODE = "audit/code.json"
WRITTEN = (*KEYS, "defaults.json", f"evidence/{NEWEST}.json", f"environments/{NEWEST}.contract.txt")
COPIED = ("orch", "orchestrator", "backends", "dashboards", "experiments", "pyproject.toml")


def orch(place: Path, *argv: str, tree: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run orch in a folder; `tree`: that of a copy, instead of this one."""
    code = f"import sys; sys.path.insert(0, {str(tree or ROOT)!r}); sys.argv[0] = 'orch'; "
    code += "from orchestrator.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *argv],
        cwd=place,
        env={**os.environ, "ORCH_ENVIRONMENTS": str(root())},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree that knows nothing of the newest release but how its trainer's
    environment is locked."""
    place = tmp_path_factory.mktemp("house")
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, place / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, place / name)
    tables = place / "backends" / "trl"
    for name in KEYS:
        releases = load_options(tables / name)
        del releases[NEWEST]
        (tables / name).write_text(written_options(releases))
    defaults = json.loads((tables / "defaults.json").read_text())
    del defaults[NEWEST]
    (tables / "defaults.json").write_text(json.dumps(defaults))
    for name in WRITTEN[3:]:
        (tables / name).unlink()
    code = json.loads((tables / CODE).read_text())
    for by_digest in (each for named in code["code"].values() for each in named.values()):
        for releases in by_digest.values():
            releases[:] = [each for each in releases if each != NEWEST]
    (tables / CODE).write_text(json.dumps(code))
    return place


def contents(place: Path) -> dict[str, bytes]:
    files = [each for each in place.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    return {str(each.relative_to(place)): each.read_bytes() for each in files}


@pytest.mark.slow
def test_a_release_that_does_not_exist_is_a_sentence_and_nothing_is_written(house: Path) -> None:
    contract_python("trl", NEWEST)  # skips where nothing can be installed
    before = contents(house)
    done = orch(house, "adopt", "-q", "trl@9.9.9", tree=house)
    assert done.returncode == 1
    assert "trl 9.9.9 cannot be installed, so nothing was written" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert contents(house) == before
    assert not (root() / "trl-9.9.9.contract").exists()


@pytest.mark.slow
@pytest.mark.long(60)
def test_a_release_whose_tables_are_deleted_is_adopted_as_it_was(house: Path) -> None:
    contract_python("trl", NEWEST)
    cpu_python("trl", NEWEST)
    done = orch(house, "adopt", f"trl@{NEWEST}", tree=house)
    assert done.returncode == 0, done.stderr
    ours, theirs = ROOT / "backends" / "trl", house / "backends" / "trl"
    for name in (*KEYS, CODE, f"environments/{NEWEST}.contract.txt"):
        assert (theirs / name).read_text() == (ours / name).read_text(), name
    for name in ("defaults.json", f"evidence/{NEWEST}.json"):
        kept, found = (json.loads((folder / name).read_text()) for folder in (ours, theirs))
        assert not stored.differences(kept, found), name
    assert f"rows to look at in trl {NEWEST}: they differ from {OLDER}" in done.stdout
    assert "token-level forward KL" in done.stdout
    assert f"trl {NEWEST}: probed" in done.stdout


def test_what_changed_between_two_releases_is_the_objective_first() -> None:
    own = {f"grpo.{key}": option for key, option in own_options("grpo")[NEWEST].items()}
    found = changes("trl", (OLDER, NEWEST), own, MeasuredRelease(1, (), (), (), ()))
    first = found.rows[0]
    assert (first.before, first.after) == ("token-level forward KL", "token-level reverse KL")
    keys = {row.what: (row.before, row.after) for row in found.rows if row.subject == "key"}
    assert keys["grpo.use_bias_correction_kl"] == ("bool = False", "bool = True")
    assert "trainer/grpo_trainer.py:GRPOTrainer._compute_loss" in found.texts
    measured = {row.what: (row.before, row.after) for row in found.rows}
    assert measured["grpo --beta, on-policy"] == (first.before, first.after)
    same = changes("trl", (OLDER, OLDER), own, MeasuredRelease(1, (), (), (), ()))
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
        "skyrl@0.4.0": "orch cannot adopt skyrl yet (it can: trl)",
        "trl@newest": "'newest' is no number of a release",
        "tlr@1.16.0": "did you mean 'trl'",
    }.items():
        done = orch(tmp_path, "adopt", release)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


SPEC = """
defaults: [recipe: onpolicy_math, _self_]
name: adopted
seeds: [0]
backend: {name: trl, version: 1.17.0}
studies: {one: {axes: {model: [qwen2.5-7b], data: [math], kl: [{estimator: none}]}}}
"""


def test_a_release_adopted_in_the_projects_folder_is_driven_there(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    before = orch(tmp_path, "plan", "spec.yaml", "-v")
    assert "unverified" in before.stdout + before.stderr, before.stderr
    theirs = tmp_path / "adopted" / "trl"
    theirs.mkdir(parents=True)
    releases = {"1.17.0": load_options(ROOT / "backends" / "trl" / "options.json")[NEWEST]}
    (theirs / "options.json").write_text(written_options(releases))
    after = orch(tmp_path, "plan", "spec.yaml", "-v")
    assert after.returncode == 3
    assert "unverified" not in after.stdout + after.stderr
