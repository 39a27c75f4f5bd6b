"""`python -m tests.golden --write`."""

import sys

from tests.golden import HERE, RELEASES, golden
from tests.golden.strangers import read_back

if sys.argv[1:] != ["--write"]:
    sys.exit("usage: python -m tests.golden --write")
for name, texts in {**{each: golden(each) for each in RELEASES}, "strangers": read_back()}.items():
    blocks = (f"# {row}\n{text}\n" for row, text in texts.items())
    (HERE / f"{name}.txt").write_text("\n".join(blocks), encoding="utf-8")
