"""The grid: what multiplies, what is coupled, conditional, left out, put in, and merged."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import SpecError
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, Spec, Study
from orchestrator.spec.expand import expand

BASE: dict[str, Any] = {
    "model": {"name": "small", "path": "some/small"},
    "data": {"name": "sums", "path": "some/sums"},
    "advantage": {"estimator": "rloo"},
    "loss": {"aggregation": "token_mean"},
    "rollout": {"group_size": 4, "max_response_tokens": 16},
    "batch": {"num_prompts": 16},
    "optimizer": {"learning_rate": 1e-6},
    "num_train_steps": 20,
    "backend": {"name": "verl"},
    "kl": {"estimator": "k1", "placement": "reward", "beta": 0.1},
}
MODELS = {name: {"path": f"some/{name}"} for name in ("one", "two", "three")}


def spec(*studies: Study) -> Spec:
    return Spec(name="x", studies=studies, groups={"model": MODELS, "data": MODELS})


def study(axes: dict[str, Any], name: str = "a", **more: Any) -> Study:
    return Study(name=name, base=more.pop("base", BASE), axes=axes, seeds=(0,), **more)


def cells(axes: dict[str, Any], **more: Any) -> list[Cell]:
    return expand(spec(study(axes, **more)))


def seen(found: list[Cell], *labels: str) -> list[tuple[str, ...]]:
    return [tuple(cell.axes[label] for label in labels) for cell in found]


def fault(axes: dict[str, Any], **more: Any) -> str:
    with pytest.raises(SpecError) as caught:
        cells(axes, **more)
    return str(caught.value)


GRID = {
    "model": ["one", "two"],
    "kl": [
        "none",
        {"product": {"estimator": ["k1", "k3"], "placement": ["reward", "loss"], "beta": [0.1, 1]}},
    ],
}


def test_product_in_the_order_written() -> None:
    found = cells(GRID)
    assert len(found) == 2 * (1 + 2 * 2 * 2)
    assert seen(found, "model", "kl", "beta")[:4] == [
        ("one", "none", "0"),
        ("one", "k1.reward", "0.1"),
        ("one", "k1.reward", "1"),
        ("one", "k1.loss", "0.1"),
    ]


def test_zip_couples() -> None:
    found = cells({"task": {"zip": {"model": ["one", "two"], "data": ["three", "one"]}}})
    assert seen(found, "model", "data") == [("one", "three"), ("two", "one")]


def test_when_leaves_the_base_elsewhere() -> None:
    found = cells(
        {
            "batch.num_minibatches": {"values": [2, 4], "when": {"kl": "k3.loss"}},
            "kl": ["k1.reward", "k3.loss"],
        }
    )
    assert [(c.axes["kl"], c.settings.batch.num_minibatches) for c in found] == [
        ("k1.reward", 1),
        ("k3.loss", 2),
        ("k3.loss", 4),
    ]


def test_when_on_one_alternative_and_on_a_base_field() -> None:
    axes: dict[str, Any] = {
        "model": ["one", "two"],
        "kl": ["none", {"estimator": "k2", "placement": "loss", "when": {"model": "two"}}],
        "loss.clip": {"values": [None], "when": {"max_staleness_steps": ">0"}},
    }
    found = cells(axes)
    assert seen(found, "model", "kl") == [("one", "none"), ("two", "none"), ("two", "k2.loss")]
    assert all(c.settings.loss.clip is not None for c in found)
    both = {"values": [{"estimator": "k2", "placement": "loss", "when": {"model": "two"}}]}
    axes["kl"] = ["none", {**both, "when": {"max_staleness_steps": ">=0"}}]
    assert seen(cells(axes), "model", "kl") == seen(found, "model", "kl")


def test_exclusions_need_all_of_an_entry() -> None:
    found = cells(
        GRID, exclude=({"kl": ["k1.loss", "k3.reward"], "kl.beta": 1.0}, {"model": "two"})
    )
    assert len(found) == 9 - 2
    assert not [c for c in found if c.axes["kl"] == "k1.loss" and c.axes["beta"] == "1"]


def test_an_exclusion_comes_before_validation() -> None:
    axes = {"kl": ["none", "k1.loss"], "kl.beta": [0.1]}
    assert "'none' takes no placement and no beta" in fault(axes)
    assert seen(cells(axes, exclude=({"kl.estimator": "none"},)), "kl") == [("k1.loss",)]


def test_included_cells_stand_on_the_base() -> None:
    include = ({"kl": "k3.loss", "kl.beta": 0.3}, {"kl": "none"})
    found = cells({"model": ["one"]}, include=include)
    assert seen(found, "model", "kl", "beta", "seed") == [
        ("one", "k1.reward", "0.1", "0"),
        ("small", "k3.loss", "0.3", "0"),
        ("small", "none", "0", "0"),
    ]


def test_none_takes_the_base_kl_with_it_and_mappings_merge() -> None:
    found = cells({"kl": ["none", {"beta": 0.5}, {"placement": "loss"}]})
    assert seen(found, "kl", "beta") == [("none", "0"), ("k1.reward", "0.5"), ("k1.loss", "0.1")]


def test_a_section_can_be_cleared_and_changed_in_part() -> None:
    found = cells({"loss.clip": [None, {"low": 0.1}, {"high": 0.28, "dual": 3.0}]})
    clips = [c.settings.loss.clip for c in found]
    assert clips[0] is None
    assert (clips[1].low, clips[2].high, clips[2].dual) == (0.1, 0.28, 3.0)
    labels = ["none", "low0.1-high0.2", "low0.2-high0.28-dual3"]
    assert [c.axes["loss.clip"] for c in found] == labels


def test_resources_vary_and_change_no_id() -> None:
    found = cells(
        {
            "task": {"zip": {"model": ["one", "two"], "resources.num_nodes": [2, 1]}},
            "cadence.evaluate_every_steps": [5],
        }
    )
    assert [c.resources.num_nodes for c in found] == [2, 1]
    assert {c.cadence.evaluate_every_steps for c in found} == {5}
    assert "resources.num_nodes" not in found[0].axes
    assert found[0].id == cells({"model": ["one"]})[0].id


def test_a_cell_of_two_studies_is_one_cell() -> None:
    found = expand(spec(study(GRID), study({"model": ["one"], "kl": ["none", "k2.loss"]}, "b")))
    assert len(found) == 18 + 1
    assert [c.studies for c in found if c.axes["kl"] == "none"] == [("a", "b"), ("a",)]


def test_a_missing_beta_is_not_zero() -> None:
    base = {**BASE, "kl": {"estimator": "k1", "placement": "reward"}}
    assert "kl.beta is missing: estimator 'k1' needs one" in fault({}, base=base)
    assert cells({"kl.beta": [0]}, base=base)[0].settings.kl.beta == 0


def test_faults_are_told_once_with_their_place() -> None:
    message = fault({"model": ["one", "two", "tree"], "kl.beta": [0.1, -1, -2], "seed": [1]})
    assert message.count("\n") == 4
    assert message.count("kl.beta must be >= 0") == 2
    assert (
        "no model is called 'tree', did you mean 'three'?  @ $.studies.a.axes.model[2]" in message
    )
    message = fault({"model": ["one", "two"], "kl.beta": [0.1, -1, -2]})
    assert message.count("got -1  @ $.studies.a.axes['kl.beta'][1]") == 1
    assert message.count("got -2") == 1


def test_slugs_are_safe_and_unique() -> None:
    base = {
        **BASE,
        "model": {"name": "m" * 64, "path": "x"},
        "data": {"name": "d" * 64, "path": "x"},
    }
    found = cells(
        {"data.instruction": ["a b/../c\n'$(x)", "é", "."], "loss.clip": [None]}, base=base
    )
    slugs = [c.slug for c in found]
    assert len(set(slugs)) == 3
    assert all(
        len(s) <= 120 and set(s) <= set("abcdefghijklmnopqrstuvwxyz0123456789._+-") for s in slugs
    )


def test_too_many_cells() -> None:
    many = list(range(1, 401))
    axes = {"num_train_steps": many, "rollout.max_response_tokens": many}
    assert "expands to more than 100,000 cells" in fault(axes)
    nested = {"t": {"product": {"num_train_steps": many, "rollout.max_response_tokens": many}}}
    assert "expands to more than 100,000 cells" in fault(nested)


@settings(max_examples=40, deadline=None)
@given(
    betas=st.lists(st.floats(0, 10), min_size=1, max_size=4, unique=True),
    estimators=st.lists(st.sampled_from(["k1", "k2", "k3", "abs"]), min_size=1, unique=True),
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
)
def test_counts_ids_and_settings(
    betas: list[float], estimators: list[str], seeds: list[int]
) -> None:
    one = study({"kl.estimator": estimators, "kl.beta": betas})
    found = expand(spec(one.model_copy(update={"seeds": tuple(seeds)})))
    assert len(found) == len(betas) * len(estimators) * len(seeds)
    assert all(cell.id == fingerprint(cell.settings) for cell in found)
    wanted = {(e, float(b), s) for e in estimators for b in betas for s in seeds}
    got = {(c.settings.kl.estimator, c.settings.kl.beta, c.settings.seed) for c in found}
    assert got == wanted


def test_an_absent_section_is_reported_by_the_fields_that_it_needs() -> None:
    base = {k: v for k, v in BASE.items() if k not in ("loss", "rollout", "model")}
    said = fault({"kl.beta": [0.1]}, base=base)
    for name in ("loss.aggregation", "rollout.group_size", "rollout.max_response_tokens", "model"):
        assert f"  {name} is missing: give it in the recipe" in said
