"""Running a library's files without its imports, on a small library made here."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.probes import runner
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
    def __init__(self, sources, version):
        self.module = sources.load("maths.py")
        sources.uses("maths.py", "kl")

    def read(self, argv, files):
        if "bad" in argv:
            raise ValueError("this launch is refused")
        return dict(a.split("=") for a in argv)

    def kl(self, config, place, batch):
        return self.module.kl(batch["logp"], batch["ref"]) * float(config["scale"])

    def advantages(self, config, batch):
        return batch["old"], -batch["old"].float()

    def loss(self, config, batch):
        return (batch["advantages"] * batch["logp"]).sum()


PROBES = Little
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a 'b' µ" / "little"
    place.mkdir(parents=True)
    (place / "maths.py").write_text(LIBRARY)
    (place.parent / "little_probes.py").write_text(PROBES)
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


def test_questions_are_answered_and_faults_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder.parent)
    numbers = {"logp": [[-1.0, -2.0]], "ref": [[-1.5, -1.0]], "old": [[0.1, 0.2]]}
    batch = {name: np.array(rows) for name, rows in numbers.items()}
    with ProcessPoolExecutor(1, get_context("forkserver")) as process:

        def ask(what: str, *argv: str) -> Any:
            return process.submit(runner.answer, what, argv, {}, batch, "loss").result()

        assert process.submit(runner.begin, "absent", "1.0", folder).result()
        assert not process.submit(runner.begin, "little_probes", "1.0", folder).result()
        kl, update = ask("kl", "scale=2"), ask("update", "scale=2")
        with pytest.raises(runner.LibraryFault) as refused:
            ask("kl", "bad")
        assert list(process.submit(runner.used).result()) == ["maths.py:kl"]
    assert (kl["value"].tolist(), kl["slope"].tolist()) == ([[1.0, -2.0]], [[2.0, 2.0]])
    assert refused.value.said == "ValueError: this launch is refused"
    assert str(refused.value).startswith("the library's own functions raised ValueError")
    assert update["gradient"].tolist() == update["advantages"].tolist() == [[-0.1, -0.2]], (
        ".float() rounds nothing"
    )
