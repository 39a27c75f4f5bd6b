"""The launches of each library and a report are golden (`python -m tests.golden --write`)."""

from typing import Any

import pytest

from orchestrator.report import markdown
from tests.golden import HERE, RELEASES, golden
from tests.golden.report import whole


def _kept(name: str) -> dict[str, str]:
    text = (HERE / f"{name}.txt").read_text(encoding="utf-8")
    blocks = (block.partition("\n") for block in text.removeprefix("# ").split("\n# "))
    return {name: rest.strip("\n") for name, _, rest in blocks}


def _are_kept(now: dict[str, str], name: str) -> None:
    kept = _kept(name)
    assert list(now) == list(kept)
    for row, text in now.items():
        assert text.strip("\n") == kept[row], row


@pytest.mark.parametrize("library", RELEASES)
def test_each_launch_is_the_golden_one(library: str) -> None:
    """And reads back as its cell."""
    _are_kept(golden(library), library)


def test_the_report_is_the_golden_one(synthetic: Any) -> None:
    kept = (HERE / "report.txt").read_text(encoding="utf-8")
    assert markdown(whole(synthetic)).splitlines() == kept.splitlines()
