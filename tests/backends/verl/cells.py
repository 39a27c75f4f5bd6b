"""Cells for verl: those of the shipped specs, and any other."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from backends.verl import BACKEND
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Cadence, Resources, Settings
from tests.backends.specs import declared, every

PLACE = AttemptPaths(
    Path("/runs/e/cells/c/plan"), Path("/runs/e/attempts/1"), Path("/runs/e/checkpoints")
)
NASTY = AttemptPaths(*(Path(f'/runs/it\'s "q" = [a, b]\\ ü ${{x}}/{n}') for n in ("p", "a", "c")))


def shipped() -> list[Cell]:
    return [cell for cell in every() if cell.settings.backend.name == "verl"]


def base() -> dict[str, Any]:
    """Settings of the paper's on-policy runs, as plain data."""
    cell = next(c for c in declared("comedy_full") if "onpolicy" in c.studies)
    return cell.settings.model_dump()


def cell(
    changes: dict[str, Any] | None = None, *, nodes: int = 2, gpus: int = 4, **cadence: int
) -> Cell:
    """The paper's on-policy cell with some fields (dotted) changed."""
    plain = base()
    for field, value in (changes or {}).items():
        *sections, leaf = field.split(".")
        section = plain
        for name in sections:
            section = section[name]
        section[leaf] = value
    settings = Settings.model_validate(plain)
    return Cell(
        id=fingerprint(settings),
        slug="x",
        studies=("s",),
        axes={},
        settings=settings,
        resources=Resources(num_nodes=nodes, gpus_per_node=gpus),
        cadence=Cadence(**cadence),
    )


def translated(cell: Cell, place: AttemptPaths = PLACE) -> LaunchPlan | None:
    try:
        return BACKEND.translate(cell, place)
    except UnsupportedSetting:
        return None


def overrides(plan: LaunchPlan) -> list[str]:
    assert plan.argv[:3] == ("python", "-m", "verl.trainer.main_ppo")
    return list(plan.argv[3:])


_positive = st.floats(1e-9, 1e3)
_text = st.text(max_size=20).filter(lambda text: text.isprintable())
_path = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() and ":" not in text)


@st.composite
def drawn(draw: st.DrawFn) -> Cell:
    """Any cell that the settings allow and a cluster of 8 GPUs could hold."""
    updates = draw(st.sampled_from((1, 2, 4)))
    aggregation = draw(st.sampled_from(("token_mean", "sequence_mean", "constant")))
    estimator = draw(
        st.sampled_from(
            (
                "none",
                "k1",
                "k2",
                "k3",
                "abs",
                "rho_k1",
                "rho_k2",
                "sg_rho_k2",
                "rho_k3",
                "k1+",
                "k2+",
                "k3+",
                "abs+",
                "k1_to_go",
            )
        )
    )
    kl: dict[str, Any] = {"estimator": estimator}
    if estimator != "none":
        kl["placement"] = draw(st.sampled_from(("reward", "loss", "reward_and_loss")))
        kl["beta"] = draw(st.floats(0, 10))
    clip = st.fixed_dictionaries(
        {"low": _positive, "high": _positive, "dual": st.none() | st.floats(1.01, 100)}
    )
    schedule = draw(st.sampled_from(("constant", "constant", "cosine", "linear")))
    changes = {
        "model.path": draw(_path),
        "model.chat_template": draw(st.sampled_from(("default", "none"))),
        "data.path": draw(_path),
        "data.num_prompts": draw(st.none() | st.integers(512, 9999)),
        "data.instruction": draw(_text),
        "data.reward": draw(st.sampled_from(("math_boxed", "countdown", "exact"))),
        "advantage.estimator": draw(st.sampled_from(("rloo", "grpo", "dr_grpo", "reinforce"))),
        "loss": {
            "aggregation": aggregation,
            "constant_tokens": draw(st.integers(1, 9999)) if aggregation == "constant" else None,
            "clip": draw(st.none() | clip),
        },
        "kl": kl,
        "rollout.group_size": draw(st.sampled_from((2, 5, 16))),
        "rollout.max_response_tokens": draw(st.integers(1, 40000)),
        "rollout.temperature": draw(_positive),
        "rollout.top_p": draw(st.floats(0.01, 1)),
        "batch": {"num_prompts": draw(st.sampled_from((64, 512))), "num_minibatches": updates},
        "optimizer.learning_rate": draw(_positive),
        "optimizer.beta1": draw(st.floats(0, 0.999)),
        "optimizer.epsilon": draw(_positive),
        "optimizer.max_grad_norm": draw(st.none() | _positive),
        "optimizer.schedule": schedule,
        "optimizer.num_warmup_steps": draw(st.integers(0, 9)),
        "num_train_steps": updates * draw(st.integers(1, 500)),
        "backend.version": draw(st.sampled_from((None, "0.9.1", "0.8.0"))),
        "max_staleness_steps": draw(st.sampled_from((0, 0, 1, 4, 10, 12))),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }
    return cell(changes, nodes=draw(st.sampled_from((1, 2))))
