"""Every shipped spec has a library that runs all of it, or says why it has none."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths, Cell
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.spec.spec_files import ROOT

EXPERIMENTS = ROOT / "experiments"
SPECS = sorted(EXPERIMENTS.glob("*.yaml"))
PLACE = AttemptPaths(Path("plan"), Path("attempts/1"), Path("checkpoints"))
LIBRARIES = ("openrlhf", "prime_rl", "skyrl", "trl", "verl")
"""The libraries of the page. One that is added elsewhere changes neither page nor specs."""
RELEASES = [(name, version) for name in LIBRARIES for version in plugins.load(name).versions]
SENTENCE = "No library that orch drives runs all of these cells"


def runs_all(cells: Sequence[Cell], library: str, version: str) -> bool:
    backend = plugins.load(library)
    for cell in cells:
        ref = cell.settings.backend.model_copy(update={"name": library, "version": version})
        settings = cell.settings.model_copy(update={"backend": ref})
        try:
            backend.translate(cell.model_copy(update={"settings": settings}), PLACE)
        except UnsupportedSetting:
            return False
    return True


def table() -> dict[str, set[str]]:
    """What experiments/README.md says: spec -> the releases that run all of it."""
    text = (EXPERIMENTS / "README.md").read_text()
    rows = re.findall(
        r"^\| `(\w+\.yaml)` \| ((?:\w+@[\w., @]+)|none: the spec says why) \|$", text, re.M
    )
    return {spec: set(re.findall(r"\w+@[\w.]+", cell)) for spec, cell in rows}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_library_runs_all_of_it_or_the_spec_says_why_not(path: Path) -> None:
    cells = expand(load(path, ("site=slurm_a100",)))
    complete = {f"{name}@{version}" for name, version in RELEASES if runs_all(cells, name, version)}
    assert table()[path.name] == complete
    text = path.read_text()
    if complete:
        assert SENTENCE not in text
        return
    assert SENTENCE in text
    for name in LIBRARIES:
        assert re.search(rf"^#   {re.escape(plugins.load(name).title)} .*\w", text, re.M), name
