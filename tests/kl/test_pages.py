"""The pages of measured numbers are what their writers print."""

from collections.abc import Callable
from pathlib import Path

import pytest

from docs.tools import beyond, measured


@pytest.mark.parametrize(
    ("written", "page"),
    [
        (beyond.page, "beyond_the_paper.md"),
        (measured.comedy_page, "comedy.md"),
        (measured.anchors_picture, "pictures/anchors.svg"),
    ],
)
def test_the_page_is_what_its_tool_writes(written: Callable[[], str], page: str) -> None:
    path = Path(__file__).parents[2] / "docs" / page
    assert written() == path.read_text(encoding="utf-8"), beyond.__doc__
