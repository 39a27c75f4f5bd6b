"""Dialects as text, and which of their parts can change a cell."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.estimators import plain_names
from orchestrator.kl.library_semantics import (
    DIFFERENCES,
    PLAIN,
    Dialect,
    describe,
    parse,
    relevant,
)
from orchestrator.settings import (
    Batch,
    Loss,
    Settings,
)
from tests import golden

NUMBERS = st.none() | st.floats(1e-3, 1e6)
DIALECTS = st.builds(
    Dialect,
    kl_clamp=st.tuples(NUMBERS, NUMBERS),
    kl_clamp_of=st.sets(st.sampled_from(plain_names()), min_size=1).map(lambda x: tuple(sorted(x))),
    kl_ratio_max=NUMBERS,
    kl_reward=st.sampled_from(["inside", "outside", "to_go", "token"]),
    kl_reward_policy=st.sampled_from(["rollout", "batch_start"]),
    kl_loss_mean=st.sampled_from(["as_policy", "token_mean", "sequence_mean"]),
    ratio_to=st.sampled_from(["rollout", "batch_start"]),
    ratio_level=st.sampled_from(["token", "sequence_if_kl_reward"]),
    ratio_bound=NUMBERS,
    std_epsilon=st.floats(1e-12, 1.0),
    micro_batch=st.none() | st.integers(1, 64),
    mean_over=st.sampled_from(["minibatch", "batch"]),
    constant_is_tokens=st.booleans(),
    decay_of=st.sampled_from(["all", "matrices"]),
    warmup_from_zero=st.booleans(),
    schedule_per_batch=st.booleans(),
    staleness=st.sampled_from(["exact", "up_to"]),
    precision=st.tuples(*(st.sampled_from(["bf16", "fp16", "fp32", "model"]),) * 3),
)
LIBRARIES = [
    (name, version)
    for name in plugins.names()
    if name != "micro"
    for version in plugins.load(name).versions
]


def settings(
    estimator: str = "none", placement: str | None = None, beta: float = 0.0, **changed: Any
) -> Settings:
    kl = {"estimator": estimator, "placement": placement, "beta": beta}
    return golden.cell_of("verl", "0.9.1", {"kl": kl}).settings.but(**changed)


@given(DIALECTS)
def test_a_dialect_reads_back_from_its_text(dialect: Dialect) -> None:
    assert parse(dialect.text) == dialect
    assert " " not in dialect.text


def test_the_plain_dialect_is_the_empty_text() -> None:
    assert PLAIN.text == ""
    assert parse("") == PLAIN


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [
        ("kl_rewrd=to_go", "did you mean 'kl_reward'"),
        ("kl_reward=x", "'to_go'"),
        ("micro_batch=-1", "micro_batch"),
        ("kl_clamp=1", "kl_clamp"),
    ],
)
def test_a_text_that_is_no_dialect_is_told(text: str, said_of_it: str) -> None:
    with pytest.raises(EnvironmentFault, match=said_of_it):
        parse(text)


def test_every_field_is_part_of_one_cause_and_has_words() -> None:
    fields = list(itertools.chain.from_iterable(cause.fields for cause in DIFFERENCES.values()))
    assert sorted(fields) == sorted(Dialect.model_fields)
    for name, version in LIBRARIES:
        found = plugins.load(name).semantics(version)
        assert all(describe(found.dialect, cause) for cause in DIFFERENCES)
        assert found.dialect != PLAIN
        assert all(found.omits)


@given(DIALECTS)
def test_a_cell_without_kl_on_policy_knows_nothing_of_kl(dialect: Dialect) -> None:
    for kl in (settings(), settings("k3", "reward", 0.0)):
        found = relevant(dialect, kl)
        fields = [f for f in Dialect.model_fields if f.startswith("kl_")]
        assert all(getattr(found, f) == getattr(PLAIN, f) for f in fields)
        assert (found.ratio_to, found.ratio_bound, found.staleness) == ("rollout", None, "exact")


def test_a_clamp_matters_where_the_estimate_is_held_and_differentiated_or_rewarded() -> None:
    verl = plugins.load("verl").semantics(None).dialect
    assert relevant(verl, settings("k3", "loss", 0.1)).kl_clamp == (20, 10)
    assert relevant(verl, settings("k1", "loss", 0.1)) == PLAIN
    assert relevant(verl, settings("k3+", "loss", 0.1)) == PLAIN, "its gradient is not clamped"
    assert relevant(verl, settings("k3+", "reward", 0.1)).kl_clamp == (20, 10)


def test_a_mean_that_is_the_policys_anyway_is_no_difference() -> None:
    newest = plugins.load("openrlhf").semantics(None).dialect
    assert relevant(newest, settings("k1", "loss", 0.1)).kl_loss_mean == "as_policy"
    by_sequence = settings("k1", "loss", 0.1, loss=Loss(aggregation="sequence_mean"))
    assert relevant(newest, by_sequence).kl_loss_mean == "token_mean"
    skyrl = plugins.load("skyrl").semantics(None).dialect
    assert relevant(skyrl, by_sequence).kl_loss_mean == "as_policy"


@pytest.mark.parametrize(("name", "version"), LIBRARIES)
def test_what_is_relevant_stays_relevant(name: str, version: str) -> None:
    dialect = plugins.load(name).semantics(version).dialect
    several: dict[str, object] = {"batch": Batch(num_prompts=8, num_minibatches=4)}
    for kl in (("k3", "reward", 0.1), ("rho_k3", "loss", 0.1), ("none", None, 0.0)):
        for more in ({}, {"max_staleness_steps": 4}, several):
            cell = settings(*kl, **more)
            found = relevant(dialect, cell)
            assert relevant(found, cell) == found
            assert parse(found.text) == found
