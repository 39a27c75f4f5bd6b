"""Cells to translate: the shipped specs' and drawn ones, asked of SkyRL."""

from pathlib import Path
from typing import get_args

from hypothesis import strategies as st

from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import CorrectionKind, Resources, Settings
from tests.backends.specs import declared, every

VERSIONS = ("0.4.0", "0.3.0", "0.2.0")
PLACE = AttemptPaths(Path("/runs/plan"), Path("/runs/attempts/1"), Path("/runs/checkpoints"))


def asked_of(cell: Cell, version: str | None) -> Cell:
    """The same cell in SkyRL."""
    backend = cell.settings.backend.model_copy(update={"name": "skyrl", "version": version})
    return changed(cell, backend=backend)


def changed(cell: Cell, **update: object) -> Cell:
    settings = cell.settings.model_copy(update=update)
    return cell.model_copy(update={"settings": settings, "id": fingerprint(settings)})


def shipped() -> list[Cell]:
    """Every declared cell, once, without regard to seed."""
    found = {}
    for cell in every():
        if cell.settings.seed == 0 and cell.settings.backend.name != "micro":
            found[asked_of(cell, None).id] = cell
    return list(found.values())


def onpolicy(version: str | None = None) -> Cell:
    """k1 in the reward, beta 0.05, on MATH: the paper's first."""
    cells = declared("cross_library")
    return asked_of(next(c for c in cells if c.settings.kl.label == "k1.reward"), version)


def asynchronous(version: str | None = None) -> Cell:
    cells = declared("comedy_full")
    return asked_of(
        next(c for c in cells if "async10" in c.studies and c.settings.kl.label == "k1.reward"),
        version,
    )


_SMALL = st.floats(1e-9, 10.0)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@st.composite
def corrections(draw: st.DrawFn) -> dict[str, object]:
    """A correction that SkyRL has: of every kind, with an upper bound."""
    kind = draw(st.sampled_from(get_args(CorrectionKind)))
    least = 0.0 if kind.startswith("tis") else draw(st.just(0.0) | st.floats(1e-9, 1.0))
    return {"kind": kind, "least": least, "most": draw(st.floats(1.5, 100.0))}


@st.composite
def drawn(draw: st.DrawFn) -> Cell:
    """A cell that SkyRL can express, of any shape."""
    minibatches = draw(st.integers(1, 4))
    bound = draw(st.sampled_from([0, 1, 10])) if minibatches == 1 else 0
    aggregation = draw(st.sampled_from(["token_mean", "sequence_mean", "constant"]))
    estimator = draw(st.sampled_from(["none", "k1", "k2", "k3", "abs"]))
    placements = st.sampled_from(["reward", "loss", "reward_and_loss"])
    kl: dict[str, object] = {"estimator": estimator}
    if estimator != "none":
        kl |= {"placement": draw(placements), "beta": draw(st.just(0.0) | _SMALL)}
    clip = st.builds(dict, low=_SMALL, high=_SMALL, dual=st.none() | st.floats(1.01, 20.0))
    settings = Settings.model_validate(
        {
            "model": {
                "name": "m",
                "path": draw(_TEXT.filter(lambda t: not t.startswith("micro:"))),
                "chat_template": draw(st.sampled_from(["default", "none"])),
            },
            "data": {
                "name": "d",
                "path": "p",
                "instruction": draw(_TEXT),
                "reward": draw(st.sampled_from(["math_boxed", "countdown", "exact"])),
                "max_prompt_tokens": draw(st.integers(1, 9999)),
            },
            "advantage": {
                "estimator": draw(st.sampled_from(["rloo", "grpo", "dr_grpo", "reinforce"]))
            },
            "loss": {
                "aggregation": aggregation,
                "constant_tokens": draw(st.integers(1, 9999))
                if aggregation == "constant"
                else None,
                "clip": draw(st.none() | clip),
                "correction": None if bound else draw(st.none() | corrections()),
            },
            "kl": kl,
            "rollout": {
                "group_size": draw(st.integers(2, 16)),
                "max_response_tokens": draw(st.integers(1, 99999)),
                "temperature": draw(_SMALL),
                "top_p": draw(st.floats(0.01, 1.0)),
            },
            "batch": {
                "num_prompts": 8 * minibatches * draw(st.integers(1, 40)),
                "num_minibatches": minibatches,
            },
            "optimizer": {
                "learning_rate": draw(_SMALL),
                "weight_decay": draw(st.just(0.0) | _SMALL),
                "beta1": draw(st.floats(0, 0.99)),
                "beta2": draw(st.floats(0, 0.9999)),
                "max_grad_norm": draw(st.none() | _SMALL),
                "schedule": draw(st.sampled_from(["constant", "linear", "cosine"])),
                "num_warmup_steps": draw(st.integers(0, 99)),
            },
            "num_train_steps": minibatches * draw(st.integers(1, 999)),
            "backend": {"name": "skyrl", "version": draw(st.none() | st.sampled_from(VERSIONS))},
            "max_staleness_steps": bound,
            "seed": draw(st.integers(0, 2**31 - 1)),
        }
    )
    return Cell(
        id=fingerprint(settings),
        slug="drawn",
        studies=("s",),
        axes={},
        settings=settings,
        resources=Resources(num_nodes=draw(st.sampled_from([1, 2])), gpus_per_node=4),
    )
