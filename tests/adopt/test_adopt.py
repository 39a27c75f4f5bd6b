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
from orchestrator.environments.lock import Lock
from orchestrator.evidence import stored
from orchestrator.lab.adopt.adopting import MISSING, unmet
from orchestrator.lab.adopt.changes import changes, of_evidence
from orchestrator.lab.adopt.child import MeasuredRelease
from orchestrator.lab.probes import functions
from orchestrator.library.key_tables import load_options, written_options
from orchestrator.pipeline.training import keep_spec
from orchestrator.runs.experiment import open_experiment
from tests.backends.environments import contract_python, cpu_python, root

ROOT = Path(__file__).parents[2]
NEWEST, OLDER = "1.16.0", "1.9.2"
CODE, FUNCTIONS = "audit/code.json", "evidence/functions.json"
TABLES = ("options.json", "history.json")
"""Files of a library's folder with the keys of every release; some libraries have one."""
COPIED = ("orch", "orchestrator", "backends", "dashboards", "experiments", "pyproject.toml")
BEFORE_A_RELEASE = pytest.mark.skipif(
    "ORCH_ADOPT" not in os.environ, reason="before a release: set ORCH_ADOPT=1"
)


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
    if (tables / "defaults.json").exists():
        defaults = json.loads((tables / "defaults.json").read_text())
        del defaults[version]
        (tables / "defaults.json").write_text(json.dumps(defaults))
    if (tables / FUNCTIONS).exists():
        measured = dict(functions._read(tables / FUNCTIONS))
        del measured[version]
        (tables / FUNCTIONS).write_text(functions.written(measured))
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
    texts = (*TABLES, CODE, FUNCTIONS, f"environments/{version}.contract.txt")
    for name in filter(lambda each: (ours / each).exists(), texts):
        assert (theirs / name).read_text() == (ours / name).read_text(), name
    measured = ("defaults.json", f"evidence/{version}.json")
    for name in filter(lambda each: (ours / each).exists(), measured):
        kept, found = (json.loads((folder / name).read_text()) for folder in (ours, theirs))
        assert not stored.differences(kept, found), name


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree that knows nothing of TRL's newest release."""
    place = tmp_path_factory.mktemp("house")
    house_without("trl", NEWEST, place)
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
    assert_as_it_was("trl", NEWEST, house / "backends" / "trl")
    assert f"rows to look at in trl {NEWEST}: they differ from {OLDER}" in done.stdout
    assert "token-level forward KL" in done.stdout
    assert f"trl {NEWEST}: probed" in done.stdout


NEAREST = {
    "openrlhf": ("0.11.2", "0.10.1.post2"),
    "skyrl": ("0.4.0", "0.3.0"),
    "verl": ("0.9.1", "0.8.0"),
}


@BEFORE_A_RELEASE
@pytest.mark.slow
@pytest.mark.long(120)
@pytest.mark.parametrize("library", NEAREST)
def test_the_tables_of_each_library_s_newest_release_are_adopted_as_they_were(
    library: str, tmp_path: Path
) -> None:
    newest, older = NEAREST[library]
    contract_python(library, newest)
    theirs = house_without(library, newest, tmp_path)
    done = orch(tmp_path, "adopt", f"{library}@{newest}", tree=tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_as_it_was(library, newest, theirs)
    assert f"rows to look at in {library} {newest}: they differ from {older}" in done.stdout
    assert f"{library} {newest}: probed" in done.stdout


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
        "micro@0.4.0": "orch cannot adopt micro yet (it can: openrlhf, skyrl, trl, verl)",
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


def test_what_the_project_adopted_is_kept_beside_the_spec_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("1.17.0", NEWEST))
    experiment = open_experiment(spec)
    kept = experiment.folder.adopted("trl")
    keep_spec(experiment)
    assert not kept.exists(), "nothing was adopted"
    for name, text in {"options.json": "{}", "environments/1.17.0.cpu.txt": "trl==1.17.0"}.items():
        for library in ("trl", "verl"):
            file = tmp_path / "adopted" / library / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    keep_spec(experiment)
    assert {str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file()} == {
        "options.json",
        "environments/1.17.0.cpu.txt",
    }
    assert not experiment.folder.adopted("verl").exists(), "the experiment does not train with it"


def test_a_function_that_measures_otherwise_is_the_first_row() -> None:
    """verl 0.9.1 changed GSPO's loss, which no KL probe sees."""
    rows = changes("verl", ("0.8.0", "0.9.1"), (), MeasuredRelease(1, (), (), (), ())).rows
    assert (rows[0].subject, rows[0].what) == ("function", "gspo token-mean")
    assert rows[0].before.startswith("function compute_policy_loss_gspo, value 0.0365")
    assert rows[0].after.startswith("function compute_policy_loss_gspo, value 0.0044")


def test_a_lock_that_lacks_what_the_release_requires_is_found() -> None:
    lock = Lock("verl", "9.9.9", "gpu", "torch==2.9.0+cpu\nray==2.50.0\n")
    required = ["torch>=2.8", "ray>=2.55", "numpy<2", 'pandas; extra == "more"']
    assert unmet(required, lock) == [("ray>=2.55", "2.50.0"), ("numpy<2", MISSING)]
