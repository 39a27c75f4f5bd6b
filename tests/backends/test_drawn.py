"""Any cell is refused, or is launched and read back as itself, in a nasty place too."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths
from tests.golden import RELEASES, cell_of

PLACE = AttemptPaths(*(Path(f'/runs/it\'s "q" = [a]\\ ü ${{x}}/{part}') for part in "pac"))
POSITIVE = st.floats(1e-9, 1e3)
TEXT = st.text(max_size=20).filter(str.isprintable)
CLIP = {"low": POSITIVE, "high": POSITIVE, "dual": st.none() | st.floats(1.01, 100)}


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """Any settings that a cell can have, with resources for them."""
    updates = draw(st.sampled_from((1, 1, 2, 4)))
    estimator = draw(st.sampled_from(("none", "k1", "k2", "k3", "abs", "rho_k3", "k1+", "k3+")))
    kl: dict[str, Any] = {"estimator": estimator}
    if estimator != "none":
        kl["placement"] = draw(st.sampled_from(("reward", "loss", "reward_and_loss")))
        kl["beta"] = draw(st.floats(0, 10))
    aggregation = draw(st.sampled_from(("token_mean", "sequence_mean", "constant")))
    tokens = draw(st.integers(1, 9999)) if aggregation == "constant" else None
    clip = draw(st.none() | st.fixed_dictionaries(CLIP))
    return {
        "model.path": draw(TEXT.filter(lambda text: text and ":" not in text)),
        "model.chat_template": draw(st.sampled_from(("default", "none"))),
        "data.instruction": draw(TEXT),
        "data.num_prompts": draw(st.none() | st.integers(512, 9999)),
        "data.reward": draw(st.sampled_from(("math_boxed", "countdown", "exact"))),
        "advantage.estimator": draw(st.sampled_from(("rloo", "grpo", "dr_grpo", "reinforce"))),
        "loss": {"aggregation": aggregation, "constant_tokens": tokens, "clip": clip},
        "kl": kl,
        "rollout.group_size": draw(st.sampled_from((2, 5, 16))),
        "rollout.max_response_tokens": draw(st.integers(1, 40000)),
        "rollout.temperature": draw(st.just(1.0) | POSITIVE),
        "rollout.top_p": draw(st.just(1.0) | st.floats(0.01, 1)),
        "batch": {"num_prompts": draw(st.sampled_from((64, 512))), "num_minibatches": updates},
        "optimizer.learning_rate": draw(POSITIVE),
        "optimizer.beta1": draw(st.floats(0, 0.999)),
        "optimizer.max_grad_norm": draw(st.none() | POSITIVE),
        "optimizer.schedule": draw(st.sampled_from(("constant", "cosine", "linear"))),
        "optimizer.num_warmup_steps": draw(st.integers(0, 9)),
        "num_train_steps": updates * draw(st.integers(3, 500)),
        "max_staleness_steps": draw(st.sampled_from((0, 0, 0, 1, 4, 10))),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "resources": {"num_nodes": draw(st.sampled_from((1, 2))), "gpus_per_node": 4},
    }


@pytest.mark.parametrize("library", RELEASES)
@settings(max_examples=60, deadline=None)
@given(drawn=changes())
def test_a_drawn_cell_reads_back_or_is_refused(library: str, drawn: dict[str, Any]) -> None:
    cell = cell_of(library, RELEASES[library], drawn)
    try:
        plan = plugins.load(library).translate(cell, PLACE)
    except UnsupportedSetting:
        return
    assert fingerprint(plugins.load(library).parse(plan.argv, plan.files)) == cell.id
