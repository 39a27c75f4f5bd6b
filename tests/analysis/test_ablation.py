"""What a gap is made of, on values whose parts are known."""

from itertools import permutations
from pathlib import Path

import pytest

from orchestrator.analysis.ablation import Ablation, explain_differences, plan_ablation
from orchestrator.analysis.libraries import LibraryCell, LibraryQuestion, questions
from orchestrator.identity import fingerprint
from orchestrator.kl.library_semantics import parse, relevant
from orchestrator.records import Cell
from orchestrator.settings import BackendRef
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse, semantics

SPEC = Path(__file__).parents[2] / "experiments" / "cross_library.yaml"
VERL, OPENRLHF = "verl@0.9.1", "openrlhf@0.11.2"


@pytest.fixture(scope="module")
def made() -> Ablation:
    declared = expand(load(SPEC))
    asked = [LibraryCell(cell, rehearse([cell])[0].id) for cell in declared]
    return plan_ablation(questions(asked), VERL, OPENRLHF)


def version(cell: Cell) -> str:
    return cell.settings.backend.version or ""


def test_a_step_is_one_cause_of_the_other_library(made: Ablation) -> None:
    here = [s for s in made.steps if s.question == "k3.reward β=0.3" and s.seed == 0]
    assert {s.cause for s in here} == {"kl_clamp", "kl_reward", "decay_of"}
    told = {s.cause: parse(version(s.cell).partition("+")[2]) for s in here}
    assert told["kl_reward"].kl_reward == "to_go"
    assert told["kl_reward"].kl_clamp == (20, 10), "all else as verl has it"
    assert told["kl_clamp"].kl_clamp == (None, 10)
    assert told["kl_clamp"].kl_reward == "inside"
    ids = {s.cell.id for s in here}
    assert len(ids) == 3
    assert ids.isdisjoint(cell.id for _, _, a, b in made.ends for cell in (a, b))


LIBRARIES = {
    name: BackendRef(name=name, version=version)
    for name, version in (
        ("verl", "0.9.1"),
        ("openrlhf", "0.11.2"),
        ("skyrl", "0.4.0"),
        ("prime_rl", "0.5.0"),
        ("micro", None),
    )
}


def in_every_library(cell: Cell) -> list[LibraryCell]:
    """One cell of the paper, asked of each."""
    asked = []
    for name, backend in LIBRARIES.items():
        settings = cell.settings.model_copy(update={"backend": backend})
        axes = {**cell.axes, "backend": name}
        own = cell.model_copy(
            update={"settings": settings, "id": fingerprint(settings), "axes": axes}
        )
        asked.append(LibraryCell(own, rehearse([own])[0].id))
    return asked


def test_every_step_changes_something() -> None:
    """No step for a cause that has no effect alone: in asynchronous cells verl's ratio is 1, so a
    bound of it, which OpenRLHF has as well, changes nothing there."""
    paper = SPEC.with_name("comedy_full.yaml")
    cells = [cell for cell in expand(load(paper)) if cell.settings.seed == 0]
    steps, stale = 0, 0
    for cell in cells:
        asked = {one.cell.settings.backend.name: one for one in in_every_library(cell)}
        for one, other in permutations(LIBRARIES, 2):
            question = LibraryQuestion(cell.slug, {name: {0: asked[name]} for name in (one, other)})
            for step in plan_ablation([question], one, other).steps:
                whole = semantics(asked[one].cell.settings.backend).dialect
                taken = parse((step.cell.settings.backend.version or "").partition("+")[2])
                settings = cell.settings
                assert relevant(taken, settings) != relevant(whole, settings), (one, other, step)
                steps += 1
                stale += settings.max_staleness_steps > 0
    assert steps > 500
    assert stale > 100


def test_cells_are_ordinary_and_named_apart(made: Ablation) -> None:
    assert len({cell.id for cell in made.cells}) == len(made.cells)
    assert len({cell.slug for cell in made.cells}) == len(made.cells)
    ends = {cell.id for _, _, a, b in made.ends for cell in (a, b)}
    rehearsed = {cell.id for cell in rehearse(expand(load(SPEC)))}
    assert ends <= rehearsed, "the ends are the cells of the experiment itself"


def test_one_cause_alone_is_the_whole_gap(made: Ablation) -> None:
    """Without a KL the two part in weight decay only: the step is the other end, id and all."""
    steps = [s for s in made.steps if s.question == "none"]
    assert {s.cause for s in steps} == {"decay_of"}
    for step in steps:
        (end,) = [b for q, seed, _, b in made.ends if (q, seed) == ("none", step.seed)]
        assert step.cell.id == end.id


def test_parts_and_the_rest(made: Ablation) -> None:
    name = "k3.reward β=0.3"
    values = {}
    for question, seed, a, b in made.ends:
        if question == name:
            values[a.id], values[b.id] = 0.80 + seed / 100, 0.60 + seed / 100
    alone = {"kl_clamp": -0.05, "kl_reward": -0.12, "decay_of": 0.0}
    for step in made.steps:
        if step.question == name:
            values[step.cell.id] = 0.80 + step.seed / 100 + alone[step.cause]
    (found,) = explain_differences(made, values.get)
    assert found.difference.mean == pytest.approx(-0.2)
    parts = {s.cause: s.part for s in found.effects}
    assert parts == pytest.approx({"kl_clamp": 0.25, "kl_reward": 0.6, "decay_of": 0.0})
    assert found.rest.mean == pytest.approx(-0.03)
    assert found.difference.excludes_zero


def test_a_gap_that_is_noise_has_no_parts_and_missing_seeds_are_left_out(made: Ablation) -> None:
    name = "none"
    values = {}
    for question, seed, a, b in made.ends:
        if question == name and seed < 2:
            values[a.id], values[b.id] = 0.8, 0.8 + (0.1 if seed else -0.1)
    (found,) = explain_differences(made, values.get)
    assert found.difference.n == 2
    assert not found.difference.excludes_zero
    assert found.rest.mean == pytest.approx(0.0)
    assert explain_differences(made, {}.get) == []
