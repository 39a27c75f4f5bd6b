"""Translation, its ledger, its reverse, and the rehearsal of declared cells."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.micro import BACKEND
from backends.micro.rehearsal import MOST_ROLLOUTS, policy_for
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.records import AttemptPaths, Cell
from orchestrator.runs.experiment import open_experiment
from orchestrator.runs.planned import rehearsed_values
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Cadence,
    Clip,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Resources,
    Rollout,
    Settings,
)

PLACE = AttemptPaths(Path("/a 'b'/plan"), Path("/a 'b'/attempts/1"), Path("/a 'b'/checkpoints"))


@st.composite
def declared(draw: st.DrawFn) -> Cell:
    """Any cell a spec could declare for a 7B model."""
    minibatches = draw(st.integers(1, 8))
    aggregation = draw(st.sampled_from(["token_mean", "sequence_mean", "constant"]))
    tokens = draw(st.integers(1, 8192))
    settings = Settings(
        model=Model(name=draw(st.sampled_from(["qwen2.5-7b", "Llama-3.1-8B", "x"])), path="x/y"),
        data=Data(
            name=draw(st.sampled_from(["math", "countdown"])),
            path="x/y",
            instruction=draw(st.text(max_size=5)),
            num_prompts=draw(st.none() | st.just(7500)),
        ),
        advantage=Advantage(estimator=draw(st.sampled_from(["rloo", "grpo", "dr_grpo"]))),
        loss=Loss(
            aggregation=aggregation,
            constant_tokens=tokens if aggregation == "constant" else None,
            clip=draw(st.none() | st.just(Clip(low=0.1, high=0.3))),
        ),
        kl=Kl(
            estimator=draw(st.sampled_from(["k1", "k3", "sg_rho_k2"])),
            placement=draw(st.sampled_from(["reward", "loss", "reward_and_loss"])),
            beta=draw(st.floats(0, 10)),
            reset_reference_every_steps=draw(st.none() | st.integers(1, 500)),
        ),
        rollout=Rollout(group_size=draw(st.integers(2, 100)), max_response_tokens=tokens),
        batch=Batch(
            num_prompts=minibatches * draw(st.integers(1, 300)), num_minibatches=minibatches
        ),
        optimizer=Optimizer(learning_rate=1e-6, num_warmup_steps=draw(st.integers(0, 50))),
        num_train_steps=minibatches * draw(st.integers(1, 400)),
        backend=BackendRef(name="verl"),
        max_staleness_steps=draw(st.integers(0, 16)),
        seed=draw(st.integers(0, 2**40)),
    )
    cadence = Cadence(checkpoint_every_steps=draw(st.none() | st.integers(1, 100)))
    return Cell(
        id=fingerprint(settings),
        slug="s",
        studies=("a", "b"),
        axes={"kl": "k1"},
        settings=settings,
        resources=Resources(num_nodes=2, gpus_per_node=4),
        cadence=cadence,
    )


@given(declared())
def test_every_declared_cell_rehearses_to_one_that_trains(cell: Cell) -> None:
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


@given(declared())
def test_a_launch_reads_back_as_its_settings(cell: Cell) -> None:
    small = BACKEND.rehearse(cell)
    assert small is not None
    plan = BACKEND.translate(small, PLACE)
    assert BACKEND.parse(plan.argv, plan.files) == small.settings
    assert {entry.field for entry in plan.ledger} == {
        name for name, _ in flatten(small.settings.model_dump())
    }
    assert dict(flatten(small.settings.model_dump()))["kl.beta"] == pytest.approx(
        float(next(entry.value for entry in plan.ledger if entry.field == "kl.beta"))
    )


def paper(minibatches: int, steps: int, **changed: Any) -> Settings:
    """The paper's on-policy and four-minibatch recipes (§4.1)."""
    plain: dict[str, Any] = {
        "model": Model(name="qwen2.5-7b", path="Qwen/Qwen2.5-7B"),
        "data": Data(name="math", path="x"),
        "advantage": Advantage(estimator="rloo"),
        "loss": Loss(),
        "kl": Kl(estimator="k1", placement="reward", beta=0.1),
        "rollout": Rollout(group_size=5, max_response_tokens=1024),
        "batch": Batch(num_prompts=256 * minibatches, num_minibatches=minibatches),
        "optimizer": Optimizer(learning_rate=1e-6),
        "num_train_steps": steps,
        "backend": BackendRef(name="verl"),
    }
    return Settings(**{**plain, **changed})


def rehearsed(settings: Settings, cell_of: Callable[..., Cell]) -> Settings:
    small = BACKEND.rehearse(cell_of(settings))
    assert small is not None
    return small.settings


def test_the_papers_recipes_at_micro_scale(cell_of: Callable[..., Cell]) -> None:
    sync, four = rehearsed(paper(1, 250), cell_of), rehearsed(paper(4, 1000), cell_of)
    assert (sync.num_train_steps, four.num_train_steps) == (100, 100)
    assert (sync.batch.num_prompts, four.batch.num_prompts) == (16, 64)
    assert sync.optimizer.learning_rate == 1.2e-3
    for declared_rate, rate in ((1e-7, 1.2e-4), (1e-5, 1.2e-3), (1.0, 1.2e-3)):
        other = paper(1, 250, optimizer=Optimizer(learning_rate=declared_rate))
        assert rehearsed(other, cell_of).optimizer.learning_rate == rate
    assert (sync.model.path, sync.data.path) == ("micro:elder", "micro:sort")
    asynchronous = paper(
        1,
        350,
        max_staleness_steps=10,
        rollout=Rollout(group_size=16, max_response_tokens=4096),
        model=Model(name="qwen3-4b-instruct-2507", path="x"),
        data=Data(name="countdown", path="x", reward="countdown"),
        loss=Loss(aggregation="constant", constant_tokens=4096),
    )
    small = rehearsed(asynchronous, cell_of)
    assert (small.num_train_steps, small.batch.num_prompts) == (140, 16)
    assert (small.model.path, small.data.path) == ("micro:hazel", "micro:reverse")
    assert small.loss.constant_tokens == small.rollout.max_response_tokens == 7
    assert small.max_staleness_steps == 10
    assert rehearsed(paper(1, 150), cell_of).num_train_steps == 60


def test_models_of_the_paper_map_to_different_policies() -> None:
    named = ["Qwen2.5-7B", "llama-3.1-8b-instruct", "qwen3-4b-instruct-2507"]
    assert len({policy_for(name) for name in named}) == 3
    assert policy_for("some-other-model") == policy_for("qwen2.5-7b")


def test_the_trained_skill_is_the_domain(cell_of: Callable[..., Cell]) -> None:
    small = BACKEND.rehearse(
        cell_of(paper(1, 250, data=Data(name="countdown", path="x", reward="countdown")))
    )
    assert small is not None
    domains = {task.name: task.domain for task in BACKEND.rehearse_tasks(small)}
    assert domains == {
        "micro_sort": "out",
        "micro_reverse": "in",
        "micro_copy": "out",
        "micro_increment": "out",
    }


@pytest.mark.parametrize(
    ("field", "group", "value"),
    [
        ("model.path", "model", Model(name="a", path="Qwen/Qwen2.5-7B")),
        ("model.path", "model", Model(name="a", path="micro:../../etc")),
        ("data.path", "data", Data(name="a", path="micro:poetry", reward="exact")),
        ("data.reward", "data", Data(name="a", path="micro:sort")),
        ("data.split", "data", Data(name="a", path="micro:sort", split="dev", reward="exact")),
        (
            "data.num_prompts",
            "data",
            Data(name="a", path="micro:sort", num_prompts=7, reward="exact"),
        ),
        (
            "data.instruction",
            "data",
            Data(name="a", path="micro:sort", instruction="Think.", reward="exact"),
        ),
        (
            "data.max_prompt_tokens",
            "data",
            Data(name="a", path="micro:sort", max_prompt_tokens=7, reward="exact"),
        ),
        ("rollout.max_response_tokens", "rollout", Rollout(group_size=2, max_response_tokens=5)),
        ("rollout.max_response_tokens", "rollout", Rollout(group_size=2, max_response_tokens=57)),
        ("batch.num_prompts", "batch", Batch(num_prompts=100_000)),
        ("backend.version", "backend", BackendRef(name="micro", version="0")),
    ],
)
def test_what_it_cannot_train_it_refuses_by_name(
    field: str,
    group: str,
    value: Any,
    embedded: Callable[..., Settings],
    cell_of: Callable[..., Cell],
) -> None:
    BACKEND.translate(cell_of(embedded()), PLACE)
    with pytest.raises(UnsupportedSetting, match="micro cannot run") as caught:
        BACKEND.translate(cell_of(embedded().model_copy(update={group: value})), PLACE)
    assert caught.value.field == field
    assert caught.value.offered
    assert caught.value.advice.startswith(("Set ", "Leave "))


def test_a_launch_that_names_no_cell_is_told(embedded: Callable[..., Settings]) -> None:
    with pytest.raises(SpecError, match="which is not among its files"):
        BACKEND.parse(["python", "x.json"], {})
    with pytest.raises(SpecError, match=r"\$\.settings"):
        BACKEND.parse(["python", "x.json"], {"x.json": '{"id": "a", "slug": "b"}'})


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys; from backends.micro import BACKEND; BACKEND.capabilities;"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plan_tells_a_rate_and_a_beta_as_declared_and_as_rehearsed() -> None:
    spec = Path(__file__).parents[3] / "experiments" / "comedy_full.yaml"
    told = rehearsed_values(open_experiment(spec, ["seeds=[0]"]))
    assert "learning rate 1e-06 as 0.0012" in told
    assert "β 0.005 with stale samples as 0.05" in told
