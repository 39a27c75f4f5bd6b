"""What docs/drift.md says of TRL is what its own loss computes here."""

import pytest

from docs.tools import drift
from orchestrator.evidence import stored
from tests.backends.environments import contract_python
from tests.backends.trl.history import measured


@pytest.mark.parametrize("version", ["1.9.2", "1.16.0"])
def test_the_measured_defaults_are_what_trl_computes(version: str) -> None:
    (package,) = contract_python("trl", version).parents[1].glob("lib/python*/site-packages/trl")
    told = stored.differences(drift.read_defaults("trl")[version], measured(package, version))
    assert not told, "\n".join(told)


def test_the_change_of_1_10_0_is_in_the_measurements() -> None:
    kept = drift.read_defaults("trl")
    objectives = {v: kept[v]["beta"]["on_policy"]["objective"] for v in ("1.9.2", "1.10.0")}
    assert objectives == {"1.9.2": "token_forward_kl", "1.10.0": "token_reverse_kl"}
    assert not [v for v, each in kept.items() if "error" in str(each)]
