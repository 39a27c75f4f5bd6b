"""`python -m tests.golden --write`."""

import sys

from tests.golden import HERE, RELEASES, golden

if sys.argv[1:] != ["--write"]:
    sys.exit("usage: python -m tests.golden --write")
for library in RELEASES:
    blocks = (f"# {name}\n{text}\n" for name, text in golden(library).items())
    (HERE / f"{library}.txt").write_text("\n".join(blocks), encoding="utf-8")
