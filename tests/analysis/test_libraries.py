"""One cell in several libraries: questions, differences, verdicts, and what keeps them apart."""

from pathlib import Path

import pytest

from orchestrator.analysis.libraries import (
    LibraryCell,
    LibraryQuestion,
    ledger_differences,
    library_differences,
    limits,
    missing_seeds,
    questions,
)
from orchestrator.errors import SelectionError
from orchestrator.records import Cell
from orchestrator.settings import Loss
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse

SPEC = Path(__file__).parents[2] / "experiments" / "cross_library.yaml"
VERL, OPENRLHF, SKYRL, PRIME = "verl@0.9.1", "openrlhf@0.11.2", "skyrl@0.4.0", "prime_rl@0.5.0"


@pytest.fixture(scope="module")
def declared() -> list[Cell]:
    backends = "[verl@0.9.1,openrlhf@0.11.2,skyrl@0.4.0,prime_rl@0.5.0,micro]"
    return expand(load(SPEC, [f"studies.libraries.axes.backend={backends}", "~studies.with_trl"]))


@pytest.fixture(scope="module")
def asked(declared: list[Cell]) -> list[LibraryCell]:
    return [LibraryCell(cell, rehearse([cell])[0].id) for cell in declared]


@pytest.fixture(scope="module")
def found(asked: list[LibraryCell]) -> list[LibraryQuestion]:
    return questions(asked)


def named(found: list[LibraryQuestion], name: str) -> LibraryQuestion:
    return next(q for q in found if q.name == name)


def test_libraries_share_a_run_where_they_mean_the_same(found: list[LibraryQuestion]) -> None:
    k1 = named(found, "k1.reward β=0.3").cells
    assert k1[VERL][0].id == k1[SKYRL][0].id == k1["micro"][0].id
    assert len({k1[name][0].id for name in (VERL, OPENRLHF, PRIME)}) == 3
    k3 = named(found, "k3.loss β=0.3").cells
    assert k3[PRIME][0].id == k3["micro"][0].id
    assert len({k3[name][0].id for name in (VERL, SKYRL, OPENRLHF, "micro")}) == 4


def spread(found: list[LibraryQuestion], by: dict[str, list[float]]) -> dict[str, float]:
    """Values by cell id: the same for every question, one a seed."""
    return {
        each.id: by[library][seed]
        for q in found
        for library, seeds in q.cells.items()
        if library in by
        for seed, each in seeds.items()
    }


def test_verdicts(found: list[LibraryQuestion]) -> None:
    only = [named(found, "k3.reward β=0.3")]
    values = spread(
        only,
        {
            VERL: [0.80, 0.81, 0.82],
            OPENRLHF: [0.60, 0.61, 0.625],
            PRIME: [0.805, 0.812, 0.824],
            "micro": [0.7, 0.9, 0.75],
        },
    )
    told = {gap.right: gap for gap in library_differences(only, VERL, values.get)}
    assert told[OPENRLHF].verdict == "differs"
    assert told[OPENRLHF].difference.mean == pytest.approx(-0.198, abs=1e-3)
    assert told[PRIME].verdict == "indistinguishable"
    assert told["micro"].verdict == "open"
    assert told[SKYRL].verdict == "same mathematics"
    assert (told[SKYRL].difference.mean, told[SKYRL].p_corrected) == (0.0, 1.0)


def test_one_seed_has_no_verdict(found: list[LibraryQuestion]) -> None:
    values = spread(found, {VERL: [0.8] * 3, OPENRLHF: [0.1] * 3})
    kept = {q.cells[name][0].id for q in found for name in (VERL, OPENRLHF)}
    (gap, *_) = [
        g
        for g in library_differences(found, VERL, lambda i: values.get(i) if i in kept else None)
        if g.right == OPENRLHF
    ]
    assert gap.verdict == "open"


def test_a_missing_seed_is_told_with_what_to_run(found: list[LibraryQuestion]) -> None:
    only = [named(found, "k3.loss β=0.3")]
    values = spread(only, {name: [0.8, 0.81, 0.82] for name in (VERL, OPENRLHF, PRIME, "micro")})
    values |= {only[0].cells[SKYRL][0].id: 0.8, only[0].cells[SKYRL][1].id: 0.8}
    (sentence,) = missing_seeds(only, values.get, "spec.yaml")
    assert "skyrl@0.4.0 has no result for seed 2" in sentence
    assert "`orch run spec.yaml -w backend=skyrl -w seed=2`" in sentence
    (gap,) = [g for g in library_differences(only, VERL, values.get) if g.right == SKYRL]
    assert gap.difference.n == 2, "the seeds both have"


def test_a_seed_that_is_not_declared_is_told(asked: list[LibraryCell]) -> None:
    fewer = [a for a in asked if not (a.library == PRIME and a.seed == 2)]
    values = dict.fromkeys((a.id for a in asked), 0.8)
    (sentence,) = missing_seeds(questions(fewer), values.get, "spec.yaml")
    assert "prime_rl@0.5.0 declares no seed 2" in sentence


def test_nothing_finished_is_no_difference(found: list[LibraryQuestion]) -> None:
    listed = library_differences(found, VERL, {}.get)
    assert {gap.verdict for gap in listed} == {"not comparable yet", "same mathematics"}


def test_cells_that_are_not_the_same_are_refused_with_what_they_differ_in(
    asked: list[LibraryCell],
) -> None:
    def other(each: LibraryCell) -> LibraryCell:
        settings = each.cell.settings.model_copy(update={"loss": Loss(clip=None)})
        return LibraryCell(each.cell.model_copy(update={"settings": settings}), each.id + "x")

    mixed = [a if a.library == VERL else other(a) for a in asked if a.library in (VERL, SKYRL)]
    with pytest.raises(SelectionError, match=r"differ in loss\.clip.*make `backend` an axis"):
        questions(mixed)
    with pytest.raises(SelectionError, match="name two libraries"):
        questions([a for a in asked if a.library == VERL])


def test_what_was_only_read_is_told_where_it_matters(declared: list[Cell]) -> None:
    """All libraries bound the lag alike, so no difference between two of them would say so."""
    asked = [cell for cell in declared if cell.settings.backend.name in ("verl", "skyrl")]
    late = [
        cell.model_copy(
            update={"settings": cell.settings.model_copy(update={"max_staleness_steps": 4})}
        )
        for cell in asked
    ]
    omitted, told = (
        limits(questions([LibraryCell(cell, cell.id) for cell in cells])) for cells in (asked, late)
    )
    assert all(", not imitated: " in each for each in omitted)
    more = [each for each in told if each not in omitted]
    assert [each.partition(": ")[0] for each in more] == [
        f"{VERL}, lag not compared",
        f"{SKYRL}, lag not compared",
    ]


def test_ledgers_are_told_where_one_is_not_exact(found: list[LibraryQuestion]) -> None:
    listed = ledger_differences(found, VERL, OPENRLHF)
    fields = {gap["field"] for gap in listed}
    assert "kl.placement" in fields
    assert all(gap["base"] != "exact" or gap["other"] != "exact" for gap in listed)
    (placement,) = [g for g in listed if g["field"] == "kl.placement"]
    assert "reward to go" in placement["other"]
    assert "refused" not in fields
