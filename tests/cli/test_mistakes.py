"""A person's mistakes: each a sentence and a non-zero exit, no traceback, nothing lost."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import orch

from orchestrator.cli import answer

SMOKE = "experiments/smoke.yaml"


def refuses(done: subprocess.CompletedProcess[str], *words: str) -> None:
    said = done.stderr + done.stdout
    assert done.returncode not in (0, 2), said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


SPEC = """\
defaults: [recipe: onpolicy_math, site: slurm_a100, evaluation: comedy, _self_]
name: mine
seeds: [0]
model: {name: m-7b, path: org/m-7b}
backend: verl@0.9.1
base: {kl.beta: 0.1}
studies:
  s: {axes: {kl: [none, k1.reward]}}
claims: {a: "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=none]"}
"""
SEEDS, CLAIMS = "seeds: [0]\n", "claims:"
NO_OPTION = "has no option"

MISTAKES: dict[str, tuple[str, str, str, int, str]] = {
    # mistake -> text of the spec, text in its place, command, exit code, what stands first
    "a key for another": (SEEDS, "seed: [0]\n", "plan S", 1, "did you mean 'seeds'?"),
    "a placement": ("k1.reward]", "k1.rewrd]", "plan S", 1, "did you mean 'reward'?"),
    "an estimator": ("k1.reward]", "k4.loss]", "plan S", 1, "'k4', did you mean 'k3'?"),
    "a negative beta": ("beta: 0.1", "beta: -0.1", "plan S", 1, "kl.beta must be >= 0, got -0.1"),
    "a word for beta": ("beta: 0.1", "beta: abc", "plan S", 1, "kl.beta must be a number"),
    "a huge beta": ("beta: 0.1", "beta: 1000000", "plan S", 0, "kl.beta: 1e+06 is outside"),
    "a backend": ("verl@0.9.1", "veRL", "plan S", 1, "did you mean 'verl'?"),
    "a library only read": ("verl@0.9.1", "nemo-rl", "plan S", 1, "`orch audit` reads its"),
    "an old release": ("verl@0.9.1", "verl@0.7.0", "plan S", 1, "Set backend.version=0.8.0"),
    "an impossible cell": ("verl@0.9.1", "prime_rl@0.8.0", "plan S", 1, "Set max_staleness_st"),
    "an indent": ("  s: {", "   s: {}\n  t: {", "plan S", 1, "this line is indented by 2 spaces"),
    "a tab": ("  s: {", "\ts: {", "plan S", 1, "begins with a tab"),
    "a key twice": (SEEDS, 2 * SEEDS, "plan S", 1, "'seeds' is written twice"),
    "a recipe": ("onpolicy_math", "onpolicy_mth", "plan S", 1, "did you mean 'onpolicy_math'?"),
    "a word for GPUs": (": 0.1", ": 0.1, resources.gpus_per_node: four", "plan S", 1, "'four'"),
    "more than a node": (": 0.1", ": 0.1, resources.gpus_per_node: 8", "plan S", 0, "of this site"),
    "a data set": (SEEDS, SEEDS + "data: mth\n", "plan S", 1, "did you mean 'math'?"),
    "a claim on no cell": ("[kl=k1.reward]", "[kl=k2.reward]", "plan S", 1, "claim 'a': no cell"),
    "a claim's metric": ("eval/in_domain", "eval/in_domian", "plan S", 1, "'eval/in_domian/mean'"),
    "no evaluation": (", evaluation: comedy", "", "plan S", 1, "no task of `evaluation`"),
    "a task": (
        *(CLAIMS, "evaluation: {tasks: [{name: math50, domain: in}]}\nclaims:", "plan S", 1),
        "did you mean 'math500'?",
    ),
    "a command": ("", "", "plam S", 2, "did you mean 'plan'?"),
    "another tool's command": ("", "", "sweep S", 2, "did you mean 'tune'?"),
    "a field of -w": ("", "", "plan S -w klx=1", 1, "did you mean 'kl'?"),
    "a value of -w": ("", "", "plan S -w kl=k9.reward", 1, "did you mean 'k1.reward'?"),
    "a shipped spec": ("", "", "plan smok", 1, "did you mean 'smoke'?"),
    "a file": ("", "", "plan nosuch.yaml", 1, "there is no such file (there are: S.yaml)"),
    "a near file": ("", "", "plan SS.yaml", 1, "did you mean 'S.yaml'?"),
    "a range": (
        *(CLAIMS, "tune: {beta: [1, 0.1], maximize: eval/in_domain/mean}\nclaims:"),
        *("tune S --dry-run", 1, "low below high; got 1 and 0.1"),
    ),
    "British English": (
        *(CLAIMS, "tune: {beta: [0.1, 1], maximise: eval/in_domain/mean}\nclaims:"),
        *("tune S --dry-run", 1, "did you mean 'maximize'?"),
    ),
    "a logger": (SEEDS, SEEDS + "loggers: [wanbd]\n", "plan S", 1, "did you mean 'wandb'?"),
    "a reward file": (
        *(SEEDS, SEEDS + "data: {reward: {file: nope.py, function: f}}\n", "plan S", 1),
        "the reward file nope.py cannot be read",
    ),
    "an empty file": (SPEC, "", "plan S", 1, "the file is empty; a spec is a mapping"),
    "a text": (SPEC, "hello world\n", "plan S", 1, "a spec is a mapping of fields"),
    "a binary": (SPEC, "\0\1", "plan S", 1, "S.yaml"),
    "a tag that runs code": (
        SPEC,
        "a: !!python/object/apply:os.system [x]\n",
        "plan S",
        1,
        "line 1",
    ),
    "a climbing name": ("name: mine", "name: ../../etc", "plan S", 1, "name must be letters"),
    "a folder": ("", "", "plan .", 1, "is a folder; name a .yaml file in it"),
    "a script as a spec": ("", "", "plan train.sh", 1, "orch audit train.sh"),
    "eight fields missing": ("recipe: onpolicy_math, ", "", "plan S", 1, "data is missing"),
    "a number for a list": ("seeds: [0]", "seeds: 3", "plan S", 1, "such as [0, 1, 2], got 3"),
    "a model that is not there": ("org/m-7b", "/no/m-7b", "plan S", 1, "/no/m-7b is not there"),
    "data that is not there": (
        *(SEEDS, SEEDS + "data: {name: d, path: nope.jsonl}\n", "plan S", 1),
        "nope.jsonl is a file that is not in",
    ),
    "a high learning rate": (
        *(": 0.1", ": 0.1, optimizer.learning_rate: 0.001", "plan S", 0),
        "0.001 is above what is usual",
    ),
    "a key of Hydra": ("", "", "plan S kl.bta=0.1", 1, "settings are set by base.kl.beta=0.1"),
    "an option for seeds": ("", "", "run S --seeds 3", 2, "'seeds=[0,1,2]'"),
    "an option for GPUs": ("", "", "run S --gpu 4", 2, "base.resources.gpus_per_node=4"),
    "an option for trials": ("", "", "tune S --trials 3", 2, "tune.trials=20"),
    "a dry run of another": ("", "", "env create verl@0.9.1 --dry-run", 2, "orch plan SPEC"),
    "no placement": ("", "", "explain k3", 2, "orch explain k3.loss"),
    "no estimator": ("", "", "explain k9 loss", 2, "'k9' is no estimator"),
    "a library's name": ("", "", "explain low_vr_kl loss", 2, "did you mean 'low_var_kl'?"),
    "an unknown release": ("", "", "audit --library verl@9.9 train.sh", 1, "unverified"),
    "show without a cell": ("", "", "show S", 1, "names 2 cells: give one; for instance"),
    "diagnose before a run": ("", "", "diagnose S.yaml", 1, "no cell of S.yaml has begun"),
    "diagnose of no cell": ("", "", "diagnose m-7b", 1, "no launched cell is called 'm-7b'"),
    "a folder of no disk": (
        "",
        "",
        "init /proc/x.yaml",
        1,
        "/proc/x.yaml: it cannot be made there",
    ),
    "runs in no folder": (
        *("", "", "run S site=local --runs-dir /proc/x", 1),
        "/proc/x/mine.micro: it cannot be made there",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_its_first_lines(mistake: str, tmp_path: Path) -> None:
    """What was wrong and what to write, in the first two lines after a banner or a count."""
    old, new, words, code, first = MISTAKES[mistake]
    (tmp_path / "S.yaml").write_text(SPEC.replace(old, new, 1) if old else SPEC)
    (tmp_path / "train.sh").write_text("python3 -m verl.trainer.main_ppo a.b=1\n")
    argv = ["S.yaml" if word == "S" else word for word in words.split()]
    done = orch(tmp_path, *argv)
    said = f"{done.stderr}{done.stdout}"
    assert done.returncode == code, said
    assert "Traceback" not in said
    plain = " ".join("\n".join(said.split("MICRO SCALE")[-1].splitlines()[:4]).split())
    assert first in plain, said
    assert len(said.splitlines()[0]) < 400


def test_a_runs_folder_from_a_newer_orch(empty: Path) -> None:
    folder = empty / "runs" / "smoke.micro"
    folder.mkdir(parents=True)
    (folder / "format.json").write_text(json.dumps({"format": 99, "orch": "9.0"}))
    for command in ("plan", "run", "status"):
        refuses(orch(empty, command, SMOKE), "written by orch 9.0", "Upgrade orch")
    assert sorted(p.name for p in folder.iterdir()) == ["format.json"]


def test_a_runs_folder_that_is_a_file(empty: Path) -> None:
    (empty / "runs").write_text("mine")
    refuses(orch(empty, "run", SMOKE), "a part of its path is a file, not a folder")
    assert (empty / "runs").read_text() == "mine"


def test_a_disk_that_fills_up(empty: Path) -> None:
    """The file size limit stands for a full disk: the kernel refuses the same writes."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "run", SMOKE, "--train-only"],
        cwd=empty,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=small_files,
        stdin=subprocess.DEVNULL,
    )
    refuses(done)
    assert "run again" in done.stderr or "orch logs --failed" in done.stderr, done.stderr
    orch(empty, "retry", SMOKE)
    after = orch(empty, "run", SMOKE, "--train-only")
    assert after.returncode == 0, after.stderr
    states = json.loads(orch(empty, "status", SMOKE, "--json").stdout)[0]["states"]
    assert states == {"succeeded": 4}


@pytest.mark.slow
def test_a_checkpoint_cut_in_half_costs_only_itself(workspace: Path) -> None:
    cells = sorted((workspace / "runs" / "smoke.micro" / "cells").iterdir())
    shutil.rmtree(cells[0] / "eval")
    weights = next((cells[0] / "checkpoints").glob("step-*/model.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    done = orch(workspace, "eval", SMOKE)
    refuses(done, cells[0].name.rpartition("-")[0])
    assert "micro_sort" in done.stdout, "the other cells' scores are printed all the same"


@pytest.mark.slow
def test_a_torn_last_line_costs_only_itself(workspace: Path) -> None:
    cell = sorted((workspace / "runs" / "smoke.micro" / "cells").iterdir())[0]
    metrics = cell / "attempts" / "1" / "metrics.jsonl"
    os.truncate(metrics, metrics.stat().st_size - 20)
    done = orch(workspace, "report", SMOKE, "--format", "mlflow")
    refuses(done, "metrics.jsonl line", "is cut off", "the rest is kept")


@pytest.mark.slow
def test_a_tracking_server_that_is_down_costs_a_message(workspace: Path) -> None:
    done = orch(
        workspace,
        "report",
        SMOKE,
        "--format",
        "mlflow",
        MLFLOW_TRACKING_URI="http://me:hunter2@127.0.0.1:9",
    )
    refuses(done, "127.0.0.1:9")
    assert "hunter2" not in done.stderr + done.stdout
    assert orch(workspace, "report", SMOKE, "--format", "mlflow").returncode == 0


def test_cells_without_prompts_are_refused_before_anything_is_submitted(empty: Path) -> None:
    done = orch(empty, "run", SMOKE, "site=slurm_a100")
    refuses(done, "nothing was started", "orch data prepare")
    assert not list((empty / "runs").glob("*/cells/*"))


def test_a_report_without_the_extra_for_its_pictures(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(empty)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert answer(["report", "smoke", "--no-mlflow"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("this needs vl_convert, which this installation of orch leaves out")
    assert "pip install" in said
