"""What is kept of TRL's defaults is what its own loss computes here."""

import sys
from pathlib import Path

import pytest

from backends.trl.options import own_options
from lab.probes.defaults import measure_defaults, read_defaults
from lab.probes.protocol import ProbeTarget
from lab.trl import adoption
from orchestrator.evidence import stored
from tests.backends.environments import contract_python

RELEASES = ("1.9.2", "1.16.0")


def package(version: str) -> Path:
    (found,) = contract_python("trl", version).parents[1].glob("lib/python*/site-packages/trl")
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_the_measured_defaults_are_what_trl_computes(version: str) -> None:
    options = adoption.class_options(package(version))
    assert own_options("grpo")[version] == {
        key.partition(".")[2]: option for key, option in options.items() if key.startswith("grpo.")
    }
    where = ProbeTarget(Path(sys.executable), package(version))
    found = measure_defaults("trl", version, where)
    told = stored.differences(read_defaults("trl")[version], found)
    assert not told, "\n".join(told)


def test_the_change_of_1_10_0_is_in_the_measurements() -> None:
    kept = read_defaults("trl")
    objectives = {v: kept[v]["beta"]["on_policy"]["objective"] for v in ("1.9.2", "1.10.0")}
    assert objectives == {"1.9.2": "token_forward_kl", "1.10.0": "token_reverse_kl"}
    assert not [v for v, each in kept.items() if "error" in str(each)]
