"""The audit's answers to small scripts: `answers.jsonl`, one a line, and what writes them.

    python -m tests.audit.answers --write

A row has the text, its name, the files beside it and the releases that something names. `says` has
what the audit prints of each launch, or why it refuses the text; of a row that is `read` only, what
it takes the launch for. Read the diff of the file before
it is committed: it is what a change does to 800 scripts.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.audit import AuditFinding, UnreadableScript, audit
from orchestrator.audit.render import rows
from orchestrator.audit.summary import one_line
from orchestrator.library.launches import NamedRelease

FILE = Path(__file__).with_name("answers.jsonl")
LEFT_OUT = ("library", "optimises", "certainty", "setting", "in reward", "in loss")
"""Rows that say the first line again, or the script."""


def answers() -> list[dict[str, Any]]:
    """Return every row of the file."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def found(row: dict[str, Any]) -> list[AuditFinding] | str:
    """Return the audit's findings on a row's script, or why it refuses the text."""
    versions = {
        name: NamedRelease(text, how) if how else text
        for name, (text, how) in row.get("versions", {}).items()
    }
    try:
        return audit(row["text"], row["file"], files=row.get("files", {}), versions=versions)
    except UnreadableScript as error:
        return str(error)


def said(row: dict[str, Any], found: list[AuditFinding] | str) -> list[str]:
    """Return what the audit says of a row's script."""
    if isinstance(found, str):
        return [f"refused: {found}"]
    kept = ("if",) if row.get("read") else None
    return [line for each in found for line in (one_line(each), *_facts(each, kept))]


def _facts(finding: AuditFinding, kept: tuple[str, ...] | None) -> Iterator[str]:
    for name, text in rows(finding):
        if name in kept if kept else name not in LEFT_OUT:
            yield f"{name}: {text}"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    lines = [
        json.dumps({**row, "says": said(row, found(row))}, ensure_ascii=False) for row in answers()
    ]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
