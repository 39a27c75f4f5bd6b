"""The benchmarks can be run, and those that compare two ways compare two ways of one thing."""

import runpy
from pathlib import Path

import pytest
import torch

from benchmarks import micro_update

FOLDER = Path(micro_update.__file__).parent


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_benchmark_finds_all_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    assert runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)["__doc__"]


def test_packed_and_unpacked_updates_are_the_same_update() -> None:
    states = [
        micro_update.State.fresh(micro_update.base_policy(micro_update.SETTINGS)) for _ in range(2)
    ]
    before = states[0].policy.clone()
    for state, packed in zip(states, (True, False), strict=True):
        micro_update.update(state, packed=packed)
    assert (states[0].policy - before).abs().max() > 1e-4
    torch.testing.assert_close(states[0].policy, states[1].policy, rtol=0, atol=2e-5)


def test_a_ratio_that_rose_is_found_in_the_committed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    table = runpy.run_path(str(FOLDER / "table.py"), run_name="table")
    lines = [table["Line"]("a, b", "1 s", "2 s", "3 s", 0.5), table["Line"]("c", "", "", "", 1e-5)]
    assert table["ratios"](table["table"](lines)) == {"a, b": 0.5, "c": 1e-5}
    assert table["ratios"]((FOLDER / "RESULTS.md").read_text())
