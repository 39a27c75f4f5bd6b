"""Running a library's files without its imports, on a small library made here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.probes import protocol
from lab.probes.protocol import (
    ProbeBatch,
    ProbeLaunch,
    ProbeQuestion,
)
from lab.probes.runner import Sources

LIBRARY = '''
"""A library."""
from __future__ import annotations

import math
import absent_framework as af
from absent_framework.inner import Trainer, decorated
from . import neighbour
import torch


@decorated("name")
def kl(logp: af.Tensor, ref: "unknown.Type") -> af.Tensor:
    return logp - ref


class Worker(Trainer):
    def __init__(self):
        self.loss_fn = make(3, scale=2)
        super().__init__()

    @torch.no_grad()
    def step(self, x):
        return x * math.pi

    async def later(self):
        return 1


@af.remote
def far(): ...
'''

PROBES = """
PACKAGE = "little"


class Little:
    def __init__(self, sources):
        self.module = sources.load("maths.py")
        sources.uses("maths.py", "kl")

    def read(self, argv, files):
        if "bad" in argv:
            raise ValueError("this launch is refused")
        return dict(a.split("=") for a in argv)

    def kl(self, config, place, batch):
        print("noise that must not be taken for an answer")
        return self.module.kl(batch["logp"], batch["ref"]) * float(config["scale"])

    def advantages(self, config, batch):
        return batch["old"], -batch["old"].float()

    def loss(self, config, batch):
        return (batch["advantages"] * batch["logp"]).sum()


def open_library(sources, version):
    return Little(sources)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a 'b' µ" / "little"
    place.mkdir(parents=True)
    (place / "maths.py").write_text(LIBRARY)
    (place.parent / "probes.py").write_text(PROBES)
    return place


def test_definitions_can_be_taken_one_by_one(folder: Path) -> None:
    sources = Sources(folder)
    module = sources.load(
        "maths.py",
        ["Worker.step", "Worker.later"],
        math=__import__("math"),
        torch=__import__("torch"),
    )
    assert module.step(None, 2.0) == pytest.approx(6.28318, abs=1e-5)
    assert not hasattr(module, "kl")
    assert list(sources.used) == ["maths.py:Worker.step", "maths.py:Worker.later"]
    line = LIBRARY[: LIBRARY.index("    def step")].count("\n") + 1
    assert sources.used["maths.py:Worker.step"]["line"] == line
    made = {"make": lambda n, scale: n * scale}
    assert sources.assigned("maths.py", "Worker.__init__", "loss_fn", made) == 6
    with pytest.raises(LookupError, match=r"maths\.py has no Worker\.leap"):
        sources.load("maths.py", ["Worker.leap"])
    with pytest.raises(LookupError, match=r"assigns no self\.other"):
        sources.assigned("maths.py", "Worker.__init__", "other", {})


def test_the_hash_changes_with_the_definition_alone(folder: Path) -> None:
    before = Sources(folder)
    before.uses("maths.py", "kl")
    text = (folder / "maths.py").read_text()
    (folder / "maths.py").write_text("# moved\n" + text)
    moved = Sources(folder)
    moved.uses("maths.py", "kl")
    (folder / "maths.py").write_text(text.replace("logp - ref", "ref - logp"))
    changed = Sources(folder)
    changed.uses("maths.py", "kl")
    digests = [each.used["maths.py:kl"]["sha256"] for each in (before, moved, changed)]
    assert digests[0] == digests[1] != digests[2]


# ---------------------------------------------------------------- through a process

BATCH = ProbeBatch(
    logp=[[-1.0, -2.0]],
    ref=[[-1.5, -1.0]],
    old=[[0.1, 0.2]],
    mask=[[1.0, 1.0]],
    rewards=[0.0],
    groups=[0],
)


def ask(folder: Path, launches: list[ProbeLaunch], questions: list[ProbeQuestion]) -> Any:
    inside = Path(protocol.__file__).with_name("runner.py")
    done = subprocess.run(
        [sys.executable, inside, folder.parent / "probes.py", "1.0", folder],
        input=json.dumps(
            {
                "launches": launches,
                "batches": {"b": BATCH},
                "questions": questions,
            }
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "noise" in done.stderr or not any(q["ask"] == "kl" for q in questions)
    return json.loads(done.stdout)


def test_questions_are_answered_in_order_and_faults_are_answers(folder: Path) -> None:
    launches: list[ProbeLaunch] = [
        {"argv": ["scale=2"], "files": {}},
        {"argv": ["bad"], "files": {}},
    ]
    told = ask(
        folder,
        launches,
        [
            {"ask": "kl", "launch": 0, "batch": "b", "place": "loss"},
            {"ask": "kl", "launch": 1, "batch": "b", "place": "loss"},
            {"ask": "update", "launch": 0, "batch": "b"},
        ],
    )
    kl, refused, update = told["answers"]
    assert kl == {"value": [[1.0, -2.0]], "slope": [[2.0, 2.0]]}
    assert refused == {"error": "ValueError: this launch is refused"}
    assert update["gradient"] == update["advantages"] == [[-0.1, -0.2]], ".float() rounds nothing"
    assert list(told["sources"]) == ["maths.py:kl"]
