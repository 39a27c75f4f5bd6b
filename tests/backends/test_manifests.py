"""Manifests and verl's extension against the releases' tables, the measured arithmetic and what
orch ships."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends import openrlhf, skyrl
from backends.openrlhf.flags import FLAT_NAMES
from backends.verl import extension
from backends.verl.audit.reader import releases
from backends.verl.audit.reader import table as release_table
from backends.verl.manifest import (
    ADVANTAGE,
    LOSS_TYPE,
    MANIFEST,
    PENALTY,
    TABLES,
    VERSIONS,
)
from lab.verl.probes import DEFAULTS
from orchestrator.evidence import stored
from orchestrator.library.key_tables import load_options, load_tables
from tests import golden

PLACES = {"reward": PENALTY, "loss": LOSS_TYPE}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_of_verl_means_what_was_measured_of_it(version: str) -> None:
    """Every name of an estimator that verl takes, in both places, by value and gradient."""
    measured = stored.read("verl", version)
    assert measured is not None
    checked = set()
    for each in measured["names"]:
        key, name = PLACES[each["place"]], each["name"]
        meaning = str(MANIFEST.meanings(key, version).get(name))
        if "error" in each:
            assert meaning == "None"
            continue
        assert meaning.removesuffix("+") == each["value"]
        assert each["gradient"] == ("k2" if meaning.endswith("+") else each["value"])
        checked.add((key, name))
    taken = {(key, name) for key in PLACES.values() for name in TABLES[version].values[key]}
    assert checked == taken


@pytest.mark.parametrize("version", VERSIONS)
def test_only_verls_extension_brings_what_the_release_does_not_take(version: str) -> None:
    advantages = {extension.REINFORCE, *extension.TO_GO.values()}
    for key, brought in ((LOSS_TYPE, set(extension.WEIGHTED)), (ADVANTAGE, advantages)):
        sent = {name for name, ours in MANIFEST.meanings(key, version).items()}
        assert sent - TABLES[version].values[key] == brought
    rows = [row for row in MANIFEST.rows if row.key == LOSS_TYPE and isinstance(row.offer, tuple)]
    for row in rows:
        assert isinstance(row.offer, tuple)
        assert {each.ours for each in row.offer if each.status == "extension"} == set(
            extension.WEIGHTED
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_verls_probes_assume_the_defaults_of_the_releases(version: str) -> None:
    """probes.py runs in verl's environment and imports nothing of orch."""
    assert {key: TABLES[version].defaults[key] for key in DEFAULTS} == DEFAULTS


def test_verls_names_of_all_releases_agree_with_those_of_the_two_that_are_driven() -> None:
    """keys.json was composed by Hydra from each tag, options.json from the installed releases."""
    for version, table in TABLES.items():
        assert table.keys <= releases().facts_of(version).keys(), version
    switch, mode = "algorithm.use_kl_in_reward", "trainer.v1.trainer_mode"
    for version, keys in (("0.3.0", set()), ("0.4.0", {switch}), ("0.9.0", {switch, mode})):
        own = release_table(version)
        assert own is not None
        assert {switch, mode} & own.keys == keys, version
    assert release_table("0.7.5") is None
    assert release_table("0.9.1", megatron=True) is None


def test_openrlhfs_names_of_all_releases_agree_with_those_of_the_two_that_are_driven() -> None:
    """keys.json has the flags of every release, for audits; options.json all facts of two."""
    folder = Path(openrlhf.__file__).parent
    named = load_tables(folder / "audit" / "keys.json")
    for version, options in load_options(folder / "options.json").items():
        if version in named.versions:
            assert named.facts_of(version).keys() == options.keys(), version
    assert len(set(FLAT_NAMES.values())) == len([x for x in FLAT_NAMES.values() if x]) + 1


def test_values_of_orch_s_own_are_never_called_exact_in_skyrl() -> None:
    for cell in golden.cells("skyrl"):
        for entry in skyrl.BACKEND.translate(cell, golden.PLACE).ledger:
            assert "orch." not in entry.key or entry.status != "exact", entry


def test_k1_to_go_refuses_rewards_without_a_kl() -> None:
    registered: dict[str, Any] = {}
    core = SimpleNamespace(
        kl_penalty=None,
        register_adv_est=lambda name: lambda function: registered.setdefault(name, function),
    )
    extension.install(SimpleNamespace(kl_penalty=None, get_policy_loss_fn=None), core)
    rewards, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(RuntimeError, match="use_kl_in_reward"):
        registered["orch_to_go_rloo"](token_level_rewards=rewards, response_mask=mask)
