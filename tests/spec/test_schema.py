"""The JSON Schema accepts what `load` accepts and refuses what it can see."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from orchestrator.spec import schema
from tests.spec.spec_files import ROOT, study

SCHEMA = schema()
SPECS = sorted((ROOT / "experiments").glob("*.yaml"))


def errors(plain: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(plain)]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])
def test_the_shipped_specs_are_valid(path: Path) -> None:
    assert errors(OmegaConf.to_container(OmegaConf.load(path))) == []


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        ("axs: {}", False),
        ("axes: {kl: []}", False),
        ("axes: {kl: none}", False),
        ("axes: {kl: [k9.loss]}", False),
        ("axes: {kl.beta: [-1]}", False),
        ("axes: {kl.beta: [1, 1]}", False),
        ("axes: {seed: [1]}", False),
        ("base: {optimizer: {lr: 1}}", False),
        ("seeds: [-1]", False),
        ("exclude: [{kl.estimatr: k1}]", False),
        ("exclude: [{}]", False),
        ("include: [{kl: k1.nowhere}]", False),
        ("axes: {kl: [none, k1.both, {estimator: k1, placement: loss, beta: 1}]}", True),
        ("axes: {kl.beta: {values: [1, 2], when: {kl: '!none'}}}", True),
        ("axes: {t: {zip: {model: [a, b], data: [c, d]}}}", True),
        ("axes: {kl: {product: {estimator: [k1], batch.num_minibatches: [1, 4]}}}", True),
        ("axes: {kl: {beta: [0.1, 0.2]}}", True),
        ("axes: {loss.clip: [null, {low: 0.2}]}", True),
        ("base: {kl.beta: '${seeds}', rollout: {group_size: 4}}", True),
        ("include: [{kl: none, kl.beta: 0}]", True),
    ],
)
def test_it_accepts_what_loads_and_refuses_what_it_can_see(body: str, is_valid: bool) -> None:
    assert (errors(OmegaConf.to_container(OmegaConf.create(study(body)))) == []) == is_valid


def _properties(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, list):
        for each in node:
            yield from _properties(each, path)
    elif isinstance(node, dict):
        for name, each in node.get("properties", {}).items():
            yield f"{path}/{name}", each
        for name, each in node.items():
            yield from _properties(each, f"{path}/{name}")


def test_every_field_is_described() -> None:
    """By itself, or where its `$ref` leads."""
    fields = list(_properties(SCHEMA))
    assert len(fields) > 400
    for path, field in fields:
        target = field.get("$ref", "").rpartition("/")[2].replace("%20", " ")
        text = field.get("description") or SCHEMA["$defs"].get(target, {}).get("description", "")
        assert len(text) > 3, path
