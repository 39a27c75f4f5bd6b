"""Filters: every form, and every way to get one wrong."""

import pytest

from orchestrator.errors import SelectionError
from orchestrator.records import Cell
from orchestrator.spec.expand import expand
from orchestrator.spec.select import matches, parse
from tests.test_expand import GRID, spec, study

CELLS = expand(
    spec(study(GRID).model_copy(update={"seeds": (0, 1)}), study({"loss.clip": [None]}, "b"))
)


def chosen(*terms: str, state: str | None = None) -> list[Cell]:
    selection = parse(terms)
    return [cell for cell in CELLS if matches(selection, cell, state)]


@pytest.mark.parametrize(
    ("terms", "count"),
    [
        ([], 37),
        (["kl.estimator=k3"], 16),
        (["!kl.beta=0"], 33),
        (["kl.beta!=0"], 33),
        (["kl.beta=0.1"], 17),
        (["kl.beta=1e0"], 16),
        (["kl.beta=0,1"], 20),
        (["kl.beta>=0.1"], 33),
        (["kl.beta>0.1"], 16),
        (["kl.beta<0.1"], 4),
        (["!kl.beta<0.1"], 33),
        (["kl=k1.reward"], 9),
        (["model.path=some/two"], 18),
        (["study=b"], 1),
        (["async=0"], 37),
        (["loss.clip=none"], 1),
        (["loss.clip.low=0.2"], 36),
        (["backend=verl", "!study=b", " seed = 1 "], 18),
        ([f"id={CELLS[3].id[:8]}"], 1),
        ([f"slug={CELLS[3].slug}"], 1),
        (["resources.num_nodes=1"], 37),
    ],
)
def test_it_selects(terms: list[str], count: int) -> None:
    assert len(chosen(*terms)) == count


def test_state() -> None:
    assert len(chosen("state=failed", state="failed")) == 37
    assert not chosen("state=failed", state="running")
    assert not chosen("state=failed")
    assert len(chosen("!state=failed", state="running")) == 37


def test_a_rehearsed_cell_is_asked_in_the_words_of_the_spec() -> None:
    cell = CELLS[0]
    small = cell.model_copy(
        update={
            "declared": cell.settings,
            "settings": cell.settings.model_copy(update={"num_train_steps": 1}),
            "axes": cell.axes | {"backend": "verl | skyrl"},
        }
    )
    assert matches(parse(["num_train_steps=20", "backend=skyrl", "backend=verl"]), small)
    assert not matches(parse(["backend=prime_rl"]), small)


@pytest.mark.parametrize(
    ("term", "part"),
    [
        ("kl.estimatr=k3", "did you mean 'kl.estimator'?"),
        ("state=faild", "did you mean 'failed'?"),
        ("kl.beta", "is not FIELD=VALUE"),
        ("=3", "is not FIELD=VALUE"),
        ("kl.beta=", "is compared with nothing"),
        ("kl.beta>=x", "one number"),
        ("kl.beta>0,1", "one number"),
        ("zzz=1", "unknown field 'zzz'"),
    ],
)
def test_a_wrong_term_is_a_sentence(term: str, part: str) -> None:
    with pytest.raises(SelectionError) as caught:
        parse(["seed=0", term])
    assert part in str(caught.value)
