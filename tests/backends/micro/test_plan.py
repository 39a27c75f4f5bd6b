"""Translation, its ledger, its reverse, and the rehearsal of declared cells."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from backends.micro import BACKEND
from backends.micro.rehearsal import MOST_ROLLOUTS, policy_for
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Settings
from tests.backends.micro.cells import cell_of as embedded_cell_of
from tests.backends.micro.cells import embedded
from tests.backends.test_drawn import changes
from tests.golden import cell_of

COUNTDOWN = {"name": "countdown", "path": "x", "reward": "countdown"}
PLACE = AttemptPaths(Path("/a 'b'/plan"), Path("/a 'b'/attempts/1"), Path("/a 'b'/checkpoints"))


def declared(changed: dict[str, Any]) -> Cell:
    """A cell that a spec could declare for a 7B model."""
    return cell_of("verl", "0.9.1", changed)


@given(changes())
def test_every_declared_cell_rehearses_to_one_that_trains(drawn: dict[str, Any]) -> None:
    cell = declared(drawn)
    small = BACKEND.rehearse(cell)
    assert small is not None
    was, now = cell.settings, small.settings
    assert Settings.model_validate(now.model_dump()) == now
    assert small.id == fingerprint(now) != cell.id
    assert (small.declared, small.axes, small.studies, small.slug) == (
        was,
        cell.axes,
        cell.studies,
        cell.slug,
    )
    assert small.scale == "micro"
    kept = [
        ("kl", "estimator"),
        ("kl", "placement"),
        ("advantage", "estimator"),
        ("loss", "aggregation"),
        ("loss", "clip"),
        ("rollout", "group_size"),
        ("rollout", "temperature"),
        ("batch", "num_minibatches"),
        ("optimizer", "weight_decay"),
    ]
    for group, name in kept:
        assert getattr(getattr(now, group), name) == getattr(getattr(was, group), name)
    assert (now.seed, now.max_staleness_steps) == (was.seed, was.max_staleness_steps)
    assert now.kl.beta == was.kl.beta * (10 if was.max_staleness_steps else 1)
    per_update = now.batch.num_prompts // now.batch.num_minibatches * now.rollout.group_size
    assert per_update <= max(MOST_ROLLOUTS, now.rollout.group_size) < 5 * per_update
    BACKEND.translate(small, PLACE)  # nothing of it is unsupported
    assert BACKEND.rehearse(small) == small


def rehearsed(**changed: Any) -> Settings:
    """The paper's on-policy recipe (§4.1) with some fields changed, at micro scale."""
    small = BACKEND.rehearse(declared({name.replace("__", "."): v for name, v in changed.items()}))
    assert small is not None
    return small.settings


def test_the_papers_recipes_at_micro_scale() -> None:
    sync = rehearsed()
    four = rehearsed(num_train_steps=1000, batch={"num_prompts": 1024, "num_minibatches": 4})
    assert (sync.num_train_steps, four.num_train_steps) == (100, 100)
    assert (sync.batch.num_prompts, four.batch.num_prompts) == (16, 64)
    assert sync.optimizer.learning_rate == 1.2e-3
    for declared_rate, rate in ((1e-7, 1.2e-4), (1e-5, 1.2e-3), (1.0, 1.2e-3)):
        other = rehearsed(optimizer__learning_rate=declared_rate)
        assert other.optimizer.learning_rate == rate
    assert (sync.model.path, sync.data.path) == ("micro:elder", "micro:sort")
    small = rehearsed(
        num_train_steps=350,
        max_staleness_steps=10,
        rollout={"group_size": 16, "max_response_tokens": 4096},
        model={"name": "qwen3-4b-instruct-2507", "path": "x"},
        data=COUNTDOWN,
        loss={"aggregation": "constant", "constant_tokens": 4096},
    )
    assert (small.num_train_steps, small.batch.num_prompts) == (140, 16)
    assert (small.model.path, small.data.path) == ("micro:hazel", "micro:reverse")
    assert small.loss.constant_tokens == small.rollout.max_response_tokens == 7
    assert small.max_staleness_steps == 10
    assert rehearsed(num_train_steps=150).num_train_steps == 60


def test_models_of_the_paper_map_to_different_policies() -> None:
    named = ["Qwen2.5-7B", "llama-3.1-8b-instruct", "qwen3-4b-instruct-2507"]
    assert len({policy_for(name) for name in named}) == 3
    assert policy_for("some-other-model") == policy_for("qwen2.5-7b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.path", "Qwen/Qwen2.5-7B"),
        ("model.path", "micro:../../etc"),
        ("data.path", "micro:poetry"),
        ("data.reward", "math_boxed"),
        ("data.split", "dev"),
        ("data.num_prompts", 7),
        ("data.instruction", "Think."),
        ("data.max_prompt_tokens", 7),
        ("rollout.max_response_tokens", 5),
        ("rollout.max_response_tokens", 57),
        ("batch.num_prompts", 100_000),
        ("backend.version", "0"),
    ],
)
def test_what_it_cannot_train_it_refuses_by_name(field: str, value: Any) -> None:
    group, _, name = field.partition(".")
    plain = embedded()
    BACKEND.translate(embedded_cell_of(plain), PLACE)
    changed = plain.but(**{group: getattr(plain, group).but(**{name: value})})
    with pytest.raises(UnsupportedSetting, match="micro cannot run") as caught:
        BACKEND.translate(embedded_cell_of(changed), PLACE)
    assert caught.value.field == field
    assert caught.value.offered
    assert caught.value.advice.startswith(("Set ", "Leave "))


def test_a_launch_that_names_no_cell_is_told() -> None:
    with pytest.raises(SpecError, match="which is not among its files"):
        BACKEND.parse(["python", "x.json"], {})
    with pytest.raises(SpecError, match=r"\$\.settings"):
        BACKEND.parse(["python", "x.json"], {"x.json": '{"id": "a", "slug": "b"}'})
