"""What `orch plan` says first of a spec that is right in form and cannot mean what it says."""

import json
from pathlib import Path

import pytest
from command_line import ROOT, orch

from orchestrator.launch.slurm import submissions
from orchestrator.runs.experiment import open_experiment
from tests.settings import SPEC

METRIC = "eval/in_domain/mean"
OWN = "data: {name: mine, path: mine.jsonl, num_prompts: 7500}\nclaims:"


def found(folder: Path, old: str = "", new: str = "") -> tuple[list[tuple[str, str, bool]], int]:
    """The doubts of a plan: field, sentence and whether it is a fault; and the exit code."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.jsonl").write_text('{"question": "1+1", "answer": "2"}\n', encoding="utf-8")
    (folder / "spec.yaml").write_text(SPEC.replace(old, new), encoding="utf-8")
    done = orch(folder, "plan", "spec.yaml", "--json")
    rows = json.loads(done.stdout)["doubts"]
    return [(row["field"], row["sentence"], row["fault"]) for row in rows], done.returncode


def test_a_sound_spec_has_none(tmp_path: Path) -> None:
    assert found(tmp_path / "a") == ([], 0)
    assert found(tmp_path / "a", METRIC, "eval/math500/pass@32") == ([], 0)
    assert found(tmp_path / "a", METRIC, "collapse") == ([], 0)


def test_what_cannot_work_is_said_first_and_nothing_is_started(tmp_path: Path) -> None:
    """tests/cli/mistakes.yaml has what else cannot work, and what is doubtful and fails nothing."""
    ((field, sentence, fault), *_), code = found(tmp_path / "a", "claims:", OWN)
    assert (field, fault, code) == ("data.path", True, 1)
    assert "in a file named validation.jsonl" in sentence
    told = orch(tmp_path / "a", "plan", "spec.yaml")
    assert told.stderr.startswith("CANNOT WORK  data.path: ")
    refused = orch(tmp_path / "a", "run", "spec.yaml")
    assert refused.returncode == 1
    assert "data.path" in refused.stderr
    assert not (tmp_path / "a" / "runs").exists()


def test_a_spec_that_scores_nothing_is_doubtful(tmp_path: Path) -> None:
    claims = SPEC[SPEC.index("claims:") :]
    (doubt,), code = found(tmp_path / "a", claims, "evaluation: {tasks: []}\n")
    assert (doubt[0], doubt[2], code) == ("evaluation", False, 0)


@pytest.mark.parametrize(
    "spec", sorted(path.stem for path in (ROOT / "experiments").glob("*.yaml"))
)
def test_the_shipped_specs_have_no_fault(spec: str, tmp_path: Path) -> None:
    done = orch(tmp_path, "plan", spec, "--json")
    assert done.returncode == 0, done.stderr
    assert [row for row in json.loads(done.stdout)["doubts"] if row["fault"]] == []


def test_a_folder_that_was_renamed_under_its_jobs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(tmp_path / "a") == ([], 0)
    monkeypatch.chdir(tmp_path / "a")
    folder = open_experiment("spec.yaml").folder
    folder.open()
    submissions.write_manifest(folder, "s1", {"kind": "train", "elements": []})
    about = {"kind": "train", "name": "x", "host": "h", "pid": 1, "birth": "", "cells": 1}
    submissions.note(folder, submissions.INTENT, "s1", launcher="slurm", **about)
    submissions.note(folder, submissions.SENT, "s1", launcher="slurm", job="7")
    assert found(tmp_path / "a")[1] == 0
    folder.path.parent.rename(tmp_path / "a" / "elsewhere")
    refused = orch(tmp_path / "a", "run", "spec.yaml", "--runs-dir", "elsewhere")
    assert refused.returncode == 1
    assert f"was {folder.path} when its jobs were sent" in refused.stderr


def test_a_dry_run_is_refused_as_the_run_is(tmp_path: Path) -> None:
    """Cells that a library cannot do and a model that is not there, told together."""
    spec, text = tmp_path / "two.yaml", SPEC.partition("claims")[0]
    for old, new in (
        ("verl@0.9.1", "trl@1.16.0"),
        ("path: org/m-7b", "path: /nowhere/m"),
        ("{kl.beta: 0.1}", "{kl.beta: 0.1, resources: {num_nodes: 1, gpus_per_node: 4}}"),
        ("none, k1.reward", "none, k2.loss"),
    ):
        assert old in text
        text = text.replace(old, new)
    spec.write_text(text, encoding="utf-8")
    for command in (("run", "--dry-run"), ("plan",)):
        done = orch(tmp_path, command[0], spec, *command[1:])
        assert done.returncode == 1
        assert "1 cell cannot be launched" in done.stderr
        assert "leaves cells out" in done.stderr
        assert "CANNOT WORK  model.path: /nowhere/m is not there" in done.stderr
    here = orch(tmp_path, "plan", spec, "site=local")
    assert here.returncode == 0, here.stderr
    assert "DOUBTFUL  kl.estimator: 1 cell here" in here.stderr
