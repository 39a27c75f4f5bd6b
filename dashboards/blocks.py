"""Parts of a large page that it opens when its reader looks at them.

A block is text, compressed by gzip, in base64, in an element that browsers neither run nor show. So
the page stays one file that needs no network, and a browser reads past a block without parsing it.
page.js opens the blocks that the reader's choice needs, and those of a table when it is unfolded.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MANY_VALUES = 500_000
"""Number of values in all curves from which on figures have their data in blocks."""
VALUES_IN_BLOCK = 20_000
"""Number of values of one metric after which a block is full."""
MANY_ROWS, FIRST_ROWS = 500, 50
"""Number of rows (of a table) or links (of a claim) from which on a part of them is in a block, and
the number that stays outside."""


def block(text: str, id_: str = "") -> str:
    """Return the element of a block."""
    packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    name = f' id="{id_}"' if id_ else ""
    return f'<script type="application/gzip"{name}>{packed}</script>'


def parted(parts: Sequence[str], separator: str = "") -> tuple[str, str]:
    """Return the parts of a long list that are outside of its block, and the block.

    The block of a short list is an empty text.
    """
    if len(parts) < MANY_ROWS:
        return separator.join(parts), ""
    rest = separator + separator.join(parts[FIRST_ROWS:])
    return separator.join(parts[:FIRST_ROWS]), block(rest)


def is_large(configurations: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the packed curves of these configurations are many."""
    return sum(map(_values, configurations)) >= MANY_VALUES


def data_blocks(data: dict[str, Any]) -> list[str]:
    """Move curves, and rows of figures, from the page's data into blocks. Return their texts.

    In their place a configuration has the number of a block, from 1: for each metric in `curves`,
    and in `rows` for its rows of every table. Rows of no configuration stay.
    """
    configurations = data["configurations"]
    by_place: dict[int, list[tuple[str, Any]]] = {}
    for name, rows in data["tables"].items():
        for row in rows:
            if "at" in row:
                by_place.setdefault(row["at"], []).append((name, row))
    data["tables"] = {
        name: [row for row in rows if "at" not in row] for name, rows in data["tables"].items()
    }
    texts: list[str] = []
    for group in _groups(configurations):
        own = {at: configurations[at]["curves"] for at in group}
        for metric in dict.fromkeys(name for curves in own.values() for name in curves):
            curves = {at: each[metric] for at, each in own.items() if metric in each}
            texts.append(_json({"metric": metric, "curves": curves}))
            for at in curves:
                own[at][metric] = len(texts)
        tables: dict[str, list[Any]] = {}
        for at in group:
            configurations[at]["rows"] = len(texts) + 1
            for name, row in by_place.get(at, ()):
                tables.setdefault(name, []).append(row)
        texts.append(_json({"tables": tables}))
    return texts


def _groups(configurations: Sequence[Mapping[str, Any]]) -> Iterator[list[int]]:
    """Yield indices of configurations that share a block. Those of one setting are neighbours."""

    def place(at: int) -> tuple[str, str, int]:
        return configurations[at]["study"], configurations[at]["setting"], at

    group: list[int] = []
    size = 0
    for at in sorted(range(len(configurations)), key=place):
        group.append(at)
        size += max(map(_length, configurations[at]["curves"].values()), default=1)
        if size >= VALUES_IN_BLOCK:
            yield group
            group, size = [], 0
    if group:
        yield group


def _values(configuration: Mapping[str, Any]) -> int:
    return sum(map(_length, configuration["curves"].values()))


def _length(curve: Mapping[str, Any]) -> int:
    """Return the number of values of a curve, over its seeds: 8/3 characters each."""
    return sum(len(text) for text in curve["s"].values()) * 3 // 8


def _json(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
