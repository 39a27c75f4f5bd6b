"""Every shipped spec has a library that runs all of it, or says why it has none."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Model, Resources
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
GPUS = Resources(num_nodes=1, gpus_per_node=8)
WORDS = {
    "batch.num_minibatches": "one update a batch",
    "kl.placement": "in one place only",
    "loss.aggregation": "no mean over tokens",
    "max_staleness_steps": "no asynchronous trainer",
}
"""Field that a library refuses -> how a spec says so. Estimators are said by name: "no rb"."""


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
        assert sentence(text, name) or not refusals(cells, name), name


def sentence(text: str, library: str) -> str:
    """What a spec's head says of a library, as one line; empty if it says nothing."""
    title = re.escape(plugins.load(library).title)
    match = re.search(rf"^#   {title}  +(\w.*(?:\n#    +\w.*)*)", text, re.MULTILINE)
    return re.sub(r"\n#\s+", " ", match[1]) if match else ""


def refusals(cells: Sequence[Cell], library: str) -> dict[str, set[str]]:
    """Field -> the values that a library refuses in a spec on GPUs, with its own policy."""
    backend = plugins.load(library)
    refused: dict[str, set[str]] = {}
    for cell in cells:
        settings = cell.settings
        ref = settings.backend.model_copy(update={"name": library, "version": backend.versions[0]})
        own = {"model": Model(name="a", path="a/b"), "backend": ref}
        own["data"] = settings.data.model_copy(update={"path": "a/b", "num_prompts": 4096})
        changes = {"settings": settings.model_copy(update=own), "resources": GPUS}
        try:
            backend.translate(cell.model_copy(update=changes), PLACE)
        except UnsupportedSetting as error:
            refused.setdefault(error.field, set()).add(str(error.value))
    return refused


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("spec", ["phase_diagram", "quiet"])
def test_what_a_spec_says_of_a_library_is_what_it_refuses(spec: str, library: str) -> None:
    text = (EXPERIMENTS / f"{spec}.yaml").read_text()
    refused = refusals(expand(load(EXPERIMENTS / f"{spec}.yaml")), library)
    said = sentence(text, library)
    assert {field for field, words in WORDS.items() if words in said} == refused.keys() - {
        "kl.estimator"
    }
    estimators = set(re.findall(r"no (k1_to_go|full|rb|k1|k3)\b", said))
    assert estimators == refused.get("kl.estimator", set())
