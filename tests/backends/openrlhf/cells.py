"""Cells to translate: those of the shipped specs, moved to OpenRLHF, and drawn ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.openrlhf.flags import MODULE
from lab.libraries import folder
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Data,
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


def environment(version: str) -> Path:
    """The Python of an environment with that release, without what it pulls in."""
    return contract_python("openrlhf", version)


def asked_of_library(version: str, launches: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What the library's own parser makes of each launch, in one process."""
    argvs = [list(argv[argv.index(MODULE) + 1 :]) for argv in launches]
    command = (environment(version), folder("openrlhf") / "resolve.py")
    answers: list[dict[str, Any]] = ask(command, argvs)
    return answers
