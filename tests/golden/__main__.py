"""`python -m tests.golden --write`."""

import sys

from orchestrator.report import markdown
from tests.conftest import SYNTHETIC
from tests.golden import HERE, RELEASES, golden
from tests.golden.report import whole

if sys.argv[1:] != ["--write"]:
    sys.exit("usage: python -m tests.golden --write")
for name in RELEASES:
    blocks = (f"# {row}\n{text}\n" for row, text in golden(name).items())
    (HERE / f"{name}.txt").write_text("\n".join(blocks), encoding="utf-8")
(HERE / "report.txt").write_text(markdown(whole(SYNTHETIC)), encoding="utf-8")
