"""A release that orch has no tables of can be used: as its nearest one, and never as verified."""

from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.evidence.cells import settings, term
from orchestrator.identity import fingerprint
from orchestrator.library import neighbour
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import BackendRef, Resources
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.command_line import orch

PLACE = AttemptPaths(Path("/p"), Path("/a"), Path("/c"))


def cell(library: str, version: str) -> Cell:
    backend = plugins.load(library)
    driven = neighbour.stands_in(backend, version) or version
    wanted = settings(library, driven, term("k3", "loss"))
    wanted = wanted.model_copy(update={"backend": BackendRef(name=library, version=version)})
    resources = Resources(num_nodes=1, gpus_per_node=8)
    return Cell(id="c1", slug="x", studies=("x",), axes={}, settings=wanted, resources=resources)


@pytest.mark.parametrize(
    ("library", "version", "other", "keys"),
    [
        ("verl", "0.9.0", "0.9.1", "its keys are those of 0.9.0 itself"),
        ("verl", "0.10.0", "0.9.1", "keys unseen"),
        ("trl", "1.12.0", "1.16.0", "its keys are those of 1.12.0 itself"),
        ("trl", "1.9.1", "1.9.2", "its keys are those of 1.9.1 itself"),
        ("trl", "2.0.0", "1.16.0", "keys unseen"),
        ("openrlhf", "0.11.1", "0.11.2", "keys unseen"),
    ],
)
def test_a_release_without_tables_is_its_neighbour_and_says_so(
    library: str, version: str, other: str, keys: str
) -> None:
    plan = neighbour.translated(plugins.load(library), cell(library, version), PLACE)
    assert (plan.version, plan.cell_id) == (version, "c1")
    known = plugins.load(library).translate(cell(library, other), PLACE)
    assert len(plan.argv) == len(known.argv)
    assert not any(f"{library}@{other}" in each for each in plan.argv)
    assert f"{library}=={other}" not in "".join(plan.files.values())
    statuses = {each.status for each in plan.ledger}
    assert "exact" in {each.status for each in known.ledger}
    assert "unverified" in statuses
    assert "exact" not in statuses
    (note,) = (each.note for each in plan.ledger if each.field == "backend.version")
    assert note == (f"unverified: read as {other}, the nearest release that orch drives; {keys}")


def test_a_key_that_the_release_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedSetting, match=r"TRL 0\.22\.0 has no .*Set backend\.version"):
        neighbour.translated(plugins.load("trl"), cell("trl", "0.22.0"), PLACE)


def test_the_id_stays_when_the_release_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    one = cell("verl", "0.9.0")
    before = fingerprint(one.settings)
    backend = plugins.load("verl")
    monkeypatch.setattr(backend, "versions", (*backend.versions, "0.9.0"))
    assert neighbour.stands_in(backend, "0.9.0") is None
    assert fingerprint(one.settings) == before


SPEC = """name: x
question: What does k3 do?
defaults: [recipe: onpolicy_math, _self_]
model: qwen2.5-7b
seeds: [0]
studies:
  main:
    axes:
      backend: [{backend}]
      kl: [k3.loss]
      kl.beta: [0.05]
"""


def test_a_plan_and_a_ledger_say_unverified(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SPEC.format(backend="verl@0.9.0"))
    rehearsed = orch(tmp_path, "plan", "x.yaml")
    assert rehearsed.returncode == 0, rehearsed.stderr
    assert "orch has no tables of verl 0.9.0" in rehearsed.stderr
    declared = orch(tmp_path, "plan", "x.yaml", "site=slurm_a100")
    told = " ".join(declared.stdout.split())
    assert "(verl 0.9.0 is unverified: read as 0.9.1)" in told
    assert "Traceback" not in declared.stderr


@pytest.mark.parametrize("name", ["verl@newest", "micro@9.9.9"])
def test_what_is_no_release_of_a_library_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(SPEC.format(backend=name))
    with pytest.raises(SpecError, match="has no release"):
        expand(load(file))
