"""What a release holds: the whole checkout as sdist; four packages and their data as wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from orchestrator.version import __version__

ROOT = Path(__file__).parents[1]


def test_version_changelog_and_citation_agree() -> None:
    released = [
        line.split()[1]
        for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("## ") and line != "## Unreleased"
    ]
    assert released[0] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_workflows_call_what_is_there() -> None:
    """Workflows and issue forms are YAML; what workflows run of this tree exists."""
    forms = list((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert all(yaml.safe_load(form.read_text(encoding="utf-8")) for form in forms)
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            for step in job["steps"]:
                for word in step.get("run", "").split():
                    if word.startswith((".ci/", "orchestrator/")) or word.endswith(".txt"):
                        assert (ROOT / word).is_file(), f"{path.name}: {word}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(argv, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (path,) = folder.iterdir()
    return path


@pytest.mark.slow
def test_the_sdist_is_the_checkout(unpacked: Path) -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout: nothing says what belongs to it")
    argv = [git, "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert files == {
        str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()
    } - {"PKG-INFO"}


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist as a release builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(argv, check=True, cwd=unpacked, stdout=subprocess.DEVNULL)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_their_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if ".dist-info" not in top} == {
        "orch",
        "orchestrator",
        "backends",
        "dashboards",
    }
    assert {"backends/micro/kernels.c", "orchestrator/kl/ensemble.json"} <= {*names}, (
        "what runs below reads the others"
    )
    assert not [name for name in names if "measured_runs" in name or "pretrain.py" in name]


MAX_DISTRIBUTIONS = 15
MAX_BYTES = 100_000_000
SCRIPT = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
    "data.train_batch_size=256 actor_rollout_ref.actor.ppo_mini_batch_size=256 "
    "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 "
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl\n"
)
OWN_SPEC = """
defaults: [recipe: rehearsal, _self_]
name: mine
seeds: [0]
model: qwen2.5-7b
backend: verl@0.9.1
studies: {a: {axes: {kl: [none, {estimator: k3, placement: loss, beta: 0.1}]}}}
"""


def new_environment(folder: Path, *what: str | Path) -> None:
    """Make an environment, with what this environment's pip installs into it.

    It has no pip of its own, and nothing is compiled before it is imported: most is not.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    subprocess.run([*pip, "install", "-q", "--no-compile", *what], check=True)


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and nothing but what it asks for."""
    folder = tmp_path_factory.mktemp("it's an environment")
    new_environment(folder, "-c", ROOT / "constraints.txt", wheel)
    return folder


def orch(base: Path, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """`python -m orchestrator ARGV` of an environment."""
    return subprocess.run(
        [base / "bin" / "python", "-m", "orchestrator", *argv],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_base_is_small(base: Path) -> None:
    (packages,) = base.glob("lib/python*/site-packages")
    own = sorted(path.name for path in packages.glob("*.dist-info"))
    assert 0 < len(own) <= MAX_DISTRIBUTIONS, own
    files = [
        path for path in packages.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


@pytest.mark.slow
def test_the_base_alone_runs_the_pre_commit_hook(base: Path, tmp_path: Path) -> None:
    """pre-commit installs the repository without extras, and starts `entry` with files."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["language"] == "python"
    assert "additional_dependencies" not in hook
    (tmp_path / "run.sh").write_text(SCRIPT)
    program, *argv = hook["entry"].split()
    done = subprocess.run(
        [base / "bin" / program, *argv, "run.sh"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "run.sh:1" in done.stdout


@pytest.mark.slow
def test_the_base_audits_explains_and_plans_in_an_empty_folder(base: Path, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "own.yaml").write_text(OWN_SPEC)
    for argv, text in (
        (("audit", "run.sh"), "k3"),
        (("explain", "k3", "loss"), "forward KL"),
        (("plan", "comedy_full"), "k3 in loss"),
        (("plan", "own.yaml"), "k3 in loss"),
        (("init", "--list"), "comedy_full"),
        (("show", "--help"), "ledger"),
        (("init", "--schema"), "$defs"),
        (("explain", "--libraries"), "verl"),
        (("explain", "--libraries", "--library", "verl@0.9.1", "--json"), "tis_token"),
        (("init", "--from", "beta_sweep"), "wrote beta_sweep.yaml"),
        (("plan", "beta_sweep.yaml"), "beta"),
    ):
        done = orch(base, tmp_path, *argv)
        assert done.returncode in (0, 1, 3), (argv, done.stderr)
        assert "Traceback" not in done.stderr, (argv, done.stderr)
        assert text in done.stdout, (argv, done.stdout)
    warned = orch(base, tmp_path, "plan", "smoke").stderr
    assert "`orch run` needs" in warned, "before it is tried"


def says(environment: Path, folder: Path, *argv: str, text: str, code: int = 0) -> None:
    done = orch(environment, folder, *argv)
    assert done.returncode == code, (argv, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, (argv, done.stderr)
    assert text in done.stdout + done.stderr, (argv, done.stdout, done.stderr)


@pytest.mark.thorough  # an environment and a run of its own
def test_the_wheel_audits_plans_runs_and_reports_in_an_empty_folder(
    wheel: Path, tmp_path: Path
) -> None:
    """With every extra: orch is the wheel's, the other distributions are this environment's.

    The wheel has no `lab/`. Without the folders of the audit all commands work but two, and without
    the embedded trainer the spec of a cluster is planned.
    """
    environment, folder = tmp_path / "environment", tmp_path / "empty"
    folder.mkdir()
    new_environment(environment, "--no-deps", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "of-the-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (folder / "run.sh").write_text(SCRIPT)
    which = [environment / "bin" / "python", "-c", "import orchestrator as o; print(o.__file__)"]
    place = subprocess.run(which, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert Path(place.strip()).is_relative_to(packages)
    says(environment, folder, "audit", "run.sh", text="a forward KL", code=1)
    for away in (packages / "orchestrator" / "audit", *packages.glob("backends/*/audit")):
        shutil.rmtree(away)
    for command in ("audit", "diagnose"):
        absent = "which this installation of orch leaves out"
        says(environment, folder, command, "run.sh", text=absent, code=1)
    says(environment, folder, "plan", "smoke", text="4 cells: 4 new")
    says(environment, folder, "run", "smoke", text="Everything works: 4 of 4 runs")
    says(environment, folder, "explain", "--libraries", "--library", "trl@1.16.0", text="trl")
    shutil.rmtree(packages / "backends" / "micro")
    says(environment, folder, "plan", "comedy_full", "site=slurm_a100", text="372 cells")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "extra"),
    [
        (("run", "smoke"), "run,micro,eval"),
        (("data", "prepare", "countdown"), "data"),
        (("compare", "smoke"), "run"),
        (("report", "smoke"), "run"),
        (("tune", "beta_sweep"), "tune"),
    ],
)
def test_what_is_missing_is_told_with_a_line_that_installs_it(
    base: Path, wheel: Path, tmp_path: Path, argv: tuple[str, ...], extra: str
) -> None:
    done = orch(base, tmp_path, *argv)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"pip install 'orch-rl[{extra}] @ {wheel.as_uri()}'" in done.stderr
