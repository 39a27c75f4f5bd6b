"""The launches of each library are the golden ones (`python -m tests.golden --write`)."""

import pytest

from tests.golden import HERE, RELEASES, golden


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
