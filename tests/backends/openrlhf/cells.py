"""Cells to translate: those of the shipped specs, moved to OpenRLHF, and drawn ones."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from backends.openrlhf.flags import MODULE, VERSIONS
from lab.libraries import folder
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Cadence,
    Clip,
    Data,
    EngineCorrection,
    Kl,
    Loss,
    Model,
    Optimizer,
    Resources,
    Rollout,
    Settings,
)
from tests.backends.child import ask
from tests.backends.environments import contract_python
from tests.backends.specs import every

PLACE = AttemptPaths(
    Path("/a 'b'\n/plan"), Path("/a 'b'\n/attempts/1"), Path("/a 'b'\n/checkpoints")
)


def cell_of(settings: Settings, **more: Any) -> Cell:
    resources = Resources(num_nodes=2, gpus_per_node=4)
    return Cell(
        id=fingerprint(settings),
        slug="x",
        studies=("x",),
        axes={},
        settings=settings,
        **{"resources": resources, **more},
    )


@cache
def shipped(version: str | None) -> tuple[Cell, ...]:
    """Every cell of every shipped spec, asked of OpenRLHF. Where a spec leaves the number of
    prompts or the loss to another library, the nearest that OpenRLHF has."""
    cells: dict[str, Cell] = {}
    for cell in every():
        settings = cell.settings
        loss = settings.loss
        if loss.aggregation == "constant":
            loss = Loss(clip=loss.clip)
        moved = settings.model_copy(
            update={
                "backend": BackendRef(name="openrlhf", version=version),
                "loss": loss,
                "data": settings.data.model_copy(
                    update={"num_prompts": settings.data.num_prompts or 50_000}
                ),
            }
        )
        made = cell.model_copy(update={"id": fingerprint(moved), "settings": moved})
        cells[made.id] = made
    return tuple(cells.values())


def base(**changes: Any) -> Settings:
    """The paper's on-policy cell, with `section={...}` or `field=value` changed."""
    plain = Settings(
        model=Model(name="qwen2.5-7b", path="Qwen/Qwen2.5-7B"),
        data=Data(name="math", path="org/math", num_prompts=7500),
        advantage=Advantage(estimator="rloo"),
        loss=Loss(),
        kl=Kl(estimator="k1", placement="reward", beta=0.05),
        rollout=Rollout(group_size=5, max_response_tokens=1024),
        batch=Batch(num_prompts=256),
        optimizer=Optimizer(learning_rate=1e-6),
        num_train_steps=240,
        backend=BackendRef(name="openrlhf"),
    ).model_dump()
    for field, value in changes.items():
        plain[field] = {**plain[field], **value} if isinstance(value, dict) else value
    return Settings.model_validate(plain)


FLOATS = st.floats(1e-12, 1e3)


@st.composite
def drawn(draw: st.DrawFn, version: str | None = None) -> Cell:
    """Any cell a spec could declare; most can be run, some are refused."""
    minibatches = draw(st.integers(1, 4))
    placement = draw(st.sampled_from([None, "reward", "loss"]))
    plain = ["k1", "k2", "k3"]
    unbiased = ["k1+", "k2+", "k3+", "sg_rho_k2", "rho_k3"] if placement == "loss" else []
    batches = draw(st.integers(1, 300))
    settings = Settings(
        model=Model(
            name="m",
            path=draw(st.sampled_from(["org/m", "/a 'b'/m", "./µ"])),
            chat_template=draw(st.sampled_from(["default", "none"])),
        ),
        data=Data(
            name="math",
            path="org/math",
            instruction=draw(st.text(max_size=8)),
            num_prompts=draw(st.integers(10_000, 20_000)),
            reward=draw(st.sampled_from(["math_boxed", "countdown"])),
            max_prompt_tokens=draw(st.integers(1, 4096)),
        ),
        advantage=Advantage(estimator=draw(st.sampled_from(["rloo", "grpo", "dr_grpo"]))),
        loss=Loss(
            aggregation=draw(st.sampled_from(["token_mean", "sequence_mean"])),
            clip=draw(
                st.none()
                | st.builds(Clip, low=FLOATS, high=FLOATS, dual=st.none() | st.floats(1.5, 9))
            ),
            correction=draw(
                st.none()
                | st.builds(
                    EngineCorrection,
                    kind=st.sampled_from(["tis_token", "mis_token"]),
                    least=st.floats(0, 1),
                    most=st.floats(1.5, 100),
                )
            ),
        ),
        kl=Kl(estimator="none")
        if placement is None
        else Kl(
            estimator=draw(st.sampled_from(plain + unbiased)),
            placement=placement,
            beta=draw(st.floats(0, 10)),
        ),
        rollout=Rollout(
            group_size=draw(st.integers(2, 16)),
            max_response_tokens=draw(st.integers(1, 8192)),
            temperature=draw(st.floats(0.01, 2)),
            top_p=draw(st.floats(0.01, 1)),
        ),
        batch=Batch(
            num_prompts=8 * minibatches * draw(st.integers(1, 32)), num_minibatches=minibatches
        ),
        optimizer=Optimizer(
            learning_rate=draw(FLOATS),
            weight_decay=draw(st.floats(0, 1)),
            beta1=draw(st.floats(0, 0.999)),
            beta2=draw(st.floats(0, 0.999)),
            epsilon=1e-8 if version == VERSIONS[-1] else draw(FLOATS),
            max_grad_norm=draw(st.none() | FLOATS),
            schedule="constant"
            if version == VERSIONS[-1]
            else draw(st.sampled_from(["constant", "linear", "cosine"])),
            num_warmup_steps=draw(st.integers(0, batches * minibatches)),
        ),
        num_train_steps=batches * minibatches,
        backend=BackendRef(name="openrlhf", version=version),
        max_staleness_steps=minibatches * draw(st.sampled_from([0, 0, 1, 10])),
        seed=draw(st.integers(0, 2**31)),
    )
    every = draw(st.none() | st.integers(1, 500))
    return cell_of(settings, cadence=Cadence(checkpoint_every_steps=every))


def environment(version: str) -> Path:
    """The Python of an environment with that release, without what it pulls in."""
    return contract_python("openrlhf", version)


def asked_of_library(version: str, launches: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What the library's own parser makes of each launch, in one process."""
    argvs = [list(argv[argv.index(MODULE) + 1 :]) for argv in launches]
    command = (environment(version), folder("openrlhf") / "resolve.py")
    answers: list[dict[str, Any]] = ask(command, argvs)
    return answers
