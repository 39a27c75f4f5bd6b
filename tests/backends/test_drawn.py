"""Any cell is refused, or is launched and read back as itself, in a nasty place too; and so is any
value in the words of verl and SkyRL."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.skyrl import overrides as skyrl
from backends.verl import overrides as verl
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


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS


@given(st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3), max_leaves=4))
def test_any_value_comes_back_through_hydras_own_grammar(value: object) -> None:
    assert verl.read(verl.write("a.b", value)) == ("a.b", value)


@pytest.mark.parametrize(
    "text",
    ["", "null", "True", "Infinity", "1e5", "0.9.1", " a", "a,b", "${x}", "\\", 'a\\"', "#no: {x}"],
)
def test_text_stays_text(text: str) -> None:
    assert verl.read(verl.write("+a", text)) == ("a", text)
    assert skyrl.read([skyrl.write("a", text), skyrl.write("b", [text])]) == {
        "a": text,
        "b": [text],
    }


@given(TEXTS | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans())
def test_any_value_comes_back_from_omegaconfs_dotlist(value: object) -> None:
    assert skyrl.read([skyrl.write("a.b", value)]) == {"a.b": value}


def test_a_mapping_and_a_number_without_end() -> None:
    assert verl.read(verl.write("a", {"eps": 1e-8})) == ("a", {"eps": 1e-8})
    assert verl.read(verl.write("a", math.inf)) == ("a", math.inf)
