"""The launches of each library are the golden ones (`python -m tests.golden --write`)."""

import pytest

from tests.golden import HERE, RELEASES, golden


def _kept(library: str) -> dict[str, str]:
    text = (HERE / f"{library}.txt").read_text(encoding="utf-8")
    blocks = (block.partition("\n") for block in text.removeprefix("# ").split("\n# "))
    return {name: rest.strip("\n") for name, _, rest in blocks}


@pytest.mark.parametrize("library", RELEASES)
def test_each_launch_is_the_golden_one(library: str) -> None:
    kept, now = _kept(library), golden(library)
    assert list(now) == list(kept)
    for name, text in now.items():
        assert text.strip("\n") == kept[name], name
