"""doctor, init and rehearse as a person uses them: on the real cluster, and where there is none."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from command_line import orch

from orchestrator.site.findings import cluster_findings
from orchestrator.site.node_facts import _shared
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.site_options import read_site
from tests.cluster import Cluster
from tests.launch.slurm import standin_verl

pytestmark = pytest.mark.slow
SMOKE = "experiments/smoke.yaml"


def at(cluster: Cluster, empty: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    return orch(empty, *argv, SLURM_CONF=str(cluster.conf), PATH=cluster.env["PATH"])


def site(empty: Path, **changes: object) -> Path:
    """A site file of the test cluster, with some options changed."""
    options = {"partition": "gpu", "account": "lab", "gres": "gpu:a100:4", **changes}
    path = empty / "experiments" / "site" / "here.yaml"
    path.write_text(yaml.safe_dump({"kind": "slurm", "options": options}))
    return path


def test_init_writes_a_site_that_doctor_finds_fit_and_plan_takes(
    cluster: Cluster, empty: Path
) -> None:
    done = at(cluster, empty, "init", "mine.yaml")
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load((empty / "site" / "orch.yaml").read_text())
    assert written["kind"] == "slurm"
    assert written["options"] == {
        "partition": "gpu",
        "account": "lab",
        "gres": "gpu:a100:4",
        "cpus_per_gpu": 2,
        "time_limit_hours": 24,
    }
    done = at(cluster, empty, "doctor", "--site", "site/orch.yaml")
    assert done.returncode == 0, done.stdout
    assert re.search(r"a node +ok +a100-\d: Python", done.stdout)
    assert not list(empty.rglob(".orch-probe-*")), "a probe's file was left"
    done = at(cluster, empty, "plan", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert "9 cells: 9 new" in done.stdout


def test_init_without_a_cluster_writes_the_spec_alone(empty: Path) -> None:
    done = orch(empty, "init", "mine.yaml", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert not (empty / "site").exists()
    assert orch(empty, "init", "--site-only", PATH="/nowhere").returncode == 1


def found(slurm: Cluster, empty: Path, patch: pytest.MonkeyPatch, **changes: object) -> list[str]:
    """What doctor finds broken: `check: found advice`."""
    patch.setenv("SLURM_CONF", str(slurm.conf))
    patch.setenv("PATH", slurm.env["PATH"])
    patch.chdir(empty)
    spec = load(empty / SMOKE, ["site=local"])
    given = read_site(site(empty, **changes))
    told = cluster_findings(given, expand(spec))
    return [f"{f.check}: {f.found} {f.advice}" for f in told if f.verdict == "broken"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"account": "lap"},
            "account: the account 'lap' may not submit to this partition, did",
        ),
        ({"gres": "gpu:h100:4"}, "gres: no node of the partition has what is asked of one node"),
        ({"partition": "short"}, "time_limit_hours: the time limit of 24 h is more than"),
        ({"partition": "gpu; rm -rf /"}, "site file: cannot be used site.options.partition"),
        (
            {"python": "/nowhere/python"},
            "a node: not looked at the nodes do not have '/nowhere/python'",
        ),
        (
            {"environments": {"verl@0.9.1": {"venv": "/nowhere"}}},
            "environment verl@0.9.1: /nowhere/bin has no python",
        ),
    ],
)
def test_doctor_says_which_field_to_change(
    slurm: Cluster,
    empty: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    words: str,
) -> None:
    told = found(slurm, empty, monkeypatch, **changes)
    assert any(line.startswith(words) for line in told), told


GPUS = "0, 81153, 81920, {}\n1, 81153, 81920, 0\n2, 81153, 81920, 0\n3, 81153, 81920, 0\n"


ALL_WRONG = {
    "secrets": ["ORCH_NO_SUCH_TOKEN"],
    "network_interface": "ib7",
    "env": {"HF_HUB_OFFLINE": "1"},
}


@pytest.mark.parametrize(
    ("broken", "changes", "setup", "words"),
    [
        (
            ["gpu", "import"],
            ALL_WRONG,
            "true",
            [
                "GPUs of the node: GPU 0 has 7 uncorrectable ECC errors",
                "network interface: site.options.network_interface 'ib7' has no address on",
                "secrets: ORCH_NO_SUCH_TOKEN is not set here; export it in the shell that submits",
                "environment verl@0.9.1: import vllm fails: ImportError: no libcudart.so",
                "model Qwen/Qwen2.5-7B: not in ",
            ],
        ),
        (["release"], {}, "true", ["environment verl@0.9.1: it has verl 0.8.0, and the launches"]),
        ([], {}, "no-such-command", ["environment verl@0.9.1: its Python ends when it is asked"]),
        ([], {}, "true", []),
    ],
    ids=["everything", "release", "setup", "nothing"],
)
def test_doctor_makes_the_jobs_own_preflight_on_a_node(
    cluster: Cluster,
    empty: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: list[str],
    changes: dict[str, object],
    setup: str,
    words: list[str],
) -> None:
    """Each was once told by the job itself, after its wait in the queue."""
    place = standin_verl.environment(empty / "verl")
    packages = place / "lib" / "python3" / "site-packages"
    if "import" in broken:
        (packages / "vllm" / "__init__.py").write_text("raise ImportError('no libcudart.so')")
    if "release" in broken:
        (packages / "verl-0.9.1.dist-info" / "METADATA").write_text("Name: verl\nVersion: 0.8.0\n")
    for number in range(4):
        cluster.spoil(f"a100-{number}", GPUS.format(7 if "gpu" in broken else 0))
    environments = {"verl": {"venv": str(place), "setup": [setup]}}
    env = {"HF_HOME": str(empty / "hf"), **changes.get("env", {})}
    lines = found(
        cluster, empty, monkeypatch, **changes | {"environments": environments, "env": env}
    )
    prompts = [line for line in lines if line.startswith("prepared prompts: the prompts of data")]
    assert len(prompts) == 1, lines
    others = [line for line in lines if line not in prompts]
    assert [line[: len(start)] for line, start in zip(others, words, strict=True)] == words


def test_doctor_ends_with_1_if_something_is_broken(slurm: Cluster, empty: Path) -> None:
    site(empty, partition="gpuu")
    done = at(slurm, empty, "doctor", SMOKE, "site=here", "--json")
    assert done.returncode == 1, done.stderr
    findings = [f for f in json.loads(done.stdout) if f["check"] != "disk for checkpoints"]
    [broken] = [f for f in findings if f["verdict"] == "broken"]
    assert broken["advice"] == "change site.options.partition"


VERL = "backend=verl@0.9.1"


def test_a_job_that_can_never_start_is_refused_and_leaves_nothing(
    cluster: Cluster, empty: Path
) -> None:
    site(empty, partition="short", time_limit_hours=2)
    spec = (SMOKE, "site=here", "backend=micro")
    done = at(cluster, empty, "run", *spec)
    assert done.returncode == 1
    assert "more than the partition 'short' allows" in done.stderr
    assert "change site.options.time_limit_hours" in done.stderr
    assert not (empty / "runs").exists(), "nothing is left of what was refused"
    site(empty, extra=["--nonsense"])
    done = at(cluster, empty, "run", *spec)
    assert done.returncode == 1
    assert "this SLURM does not know a flag" in done.stderr
    assert not (empty / "runs").exists(), "nor of what SLURM itself refused"


def test_a_whole_node_is_shown_by_plan_doctor_and_the_script(cluster: Cluster, empty: Path) -> None:
    site(empty)
    small = "model={name: small, path: Qwen/Qwen2.5-0.5B, chat_template: none}"  # fits a small disk
    spec = (SMOKE, "site=here", VERL, small)
    # Without SLURM, first: that there is no cluster is not remembered for one that is.
    nothing = empty / "slurm.conf"
    nothing.touch()
    nowhere = orch(empty, "plan", *spec, SLURM_CONF=str(nothing))
    assert "the cluster's default of memory" in nowhere.stdout
    shown = at(cluster, empty, "run", *spec, "--dry-run")
    assert "`orch run` will refuse: the prompts of data" in shown.stderr
    assert f"Next: orch data prepare {SMOKE}" in shown.stderr
    planned = at(cluster, empty, "plan", *spec)
    size = "1 node with 4 GPUs, 8 CPUs, all memory, no other job beside it; 24 h"
    assert size in planned.stdout, planned.stdout + planned.stderr
    doctor = at(cluster, empty, "doctor", *spec, "--no-probe")
    assert size in doctor.stdout
    assert "trainers take about 4 CPUs a GPU" in doctor.stdout
    assert "#SBATCH --exclusive\n" in shown.stdout
    assert "#SBATCH --gres=gpu:a100:4\n" in shown.stdout
    assert "#SBATCH --mem=0M\n" in shown.stdout


def test_a_runs_folder_that_a_node_does_not_see(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another")
    assert _shared(tmp_path, "token") == "this node sees another folder of that name"
    assert "does not see it" in _shared(tmp_path / "nowhere", "token")
    (tmp_path / "token").write_text("token")
    assert _shared(tmp_path, "token") == ""
