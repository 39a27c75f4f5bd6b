"""The labelled real scripts, where a folder of them is at hand."""

import os
import warnings
from pathlib import Path

import pytest

from audit.wild import labels, scores


def test_every_label_has_a_verdict_that_audit_knows() -> None:
    from typing import get_args

    from orchestrator.library.launches import AuditVerdict

    for label in labels():
        verdicts = {*label["acceptable_verdicts"], label.get("verdict_in_regime", "no_kl")}
        assert verdicts <= set(get_args(AuditVerdict)), label["id"]


def test_a_verdict_in_a_regime_has_its_reason() -> None:
    """Off-policy, no label says that a term's gradient is the one it has on-policy."""
    regimes = [label for label in labels() if "regime" in label]
    assert len(regimes) > 150
    for label in regimes:
        assert label["regime_because"], label["id"]
        changed = label["verdict_in_regime"] != label["verdict"]
        rescaled = label["verdict_in_regime"] == "rescaled_reverse_kl"
        assert changed <= (rescaled or label["regime"] == "off_policy"), label["id"]
        off_policy_only = label["verdict_in_regime"].endswith("_of_old_samples")
        assert off_policy_only <= (label["regime"] == "off_policy"), label["id"]


def test_verdicts_on_labelled_scripts() -> None:
    folder = os.environ.get("ORCH_WILD_SCRIPTS")
    if not folder:
        warnings.warn(
            "ORCH_WILD_SCRIPTS is not set: the real scripts were not audited", stacklevel=1
        )
        pytest.skip("ORCH_WILD_SCRIPTS names no folder of real scripts")
    found = list(scores(Path(folder)))
    assert len(found) >= 0.95 * len(labels())
    assert not [each for each in found if not each.right and each.confident]
    assert not [each for each in found if each.misled]
    assert sum(each.right for each in found) >= 0.99 * len(found)
    assert sum(not each.confident for each in found) < 0.1 * len(found)
