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
        assert set(label["acceptable_verdicts"]) <= set(get_args(AuditVerdict)), label["id"]


def test_verdicts_on_labelled_scripts() -> None:
    folder = os.environ.get("ORCH_WILD_SCRIPTS")
    if not folder:
        warnings.warn(
            "ORCH_WILD_SCRIPTS is not set: the real scripts were not audited", stacklevel=1
        )
        pytest.skip("ORCH_WILD_SCRIPTS names no folder of real scripts")
    found = list(scores(Path(folder)))
    assert len(found) == len(labels())
    assert not [each for each in found if not each.right and each.confident]
    assert sum(each.right for each in found) >= 0.97 * len(found)
    assert sum(not each.confident for each in found) < 0.1 * len(found)
