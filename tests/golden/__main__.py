"""`python -m tests.golden --write`."""

import sys

from tests.golden import HERE, RELEASES, golden

if sys.argv[1:] != ["--write"]:
    sys.exit("usage: python -m tests.golden --write")
for name in RELEASES:
    blocks = (f"# {row}\n{text}\n" for row, text in golden(name).items())
    (HERE / f"{name}.txt").write_text("\n".join(blocks), encoding="utf-8")
