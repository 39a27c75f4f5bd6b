"""docs/libraries.md says of the real libraries what the tests' records say."""

import re
from pathlib import Path

from orchestrator import plugins
from tests.lab import trained

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_the_records_say() -> None:
    again = "PYTHONPATH=tests python -m tests.lab.trained"
    text = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    assert trained.table() in text, again


def test_every_record_is_of_a_test_that_trains() -> None:
    records = [each for library in plugins.names() for each in trained.kept(library)]
    assert records
    for each in records:
        path, _, node = each.test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        names = re.findall(r"^def (\w+)\(", text, re.MULTILINE)
        assert node.partition("[")[0] in names, each.test
