"""What the audit says of small scripts stays as answers.jsonl has it, and its advice is taken."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.audit import AuditFinding
from orchestrator.audit.key_check import key_findings
from orchestrator.library.launches import Given
from tests.audit.answers import answers, found, said

Answers = list[tuple[dict[str, Any], list[AuditFinding] | str]]


@pytest.fixture(scope="module")
def now() -> Answers:
    return [(row, found(row)) for row in answers()]


def test_every_answer_is_the_one_that_was_read_and_kept(now: Answers) -> None:
    """After a change that is meant: `python -m tests.audit.answers --write`, and read its diff."""
    changed = [
        (row["name"], row["says"], text)
        for row, answer in now
        if (text := said(row, answer)) != row["says"]
    ]
    assert not changed, f"{len(changed)} answers differ; the first: {changed[0]}"


def advised(finding: AuditFinding) -> Iterator[tuple[str, str]]:
    """Yield the settings that a finding advises: key and value; a flag alone is true."""
    offers = (*finding.changes, *filter(None, [finding.for_a_kl]))
    for edit in (edit for offer in offers for edit in offer.edits):
        if edit.text is not None:
            value = re.sub(r"^-*[^\s=]+\s*=?\s*", "", edit.text)
            yield edit.key, value or "true"
    for note in finding.bound_notes:
        yield from re.findall(r"([A-Za-z_][\w.]*\w)=([\w.+-]+)", note.instead)


def test_no_advice_is_refused_by_the_table_of_its_release(now: Answers) -> None:
    refused, count = [], 0
    for row, answer in now:
        for finding in () if isinstance(answer, str) else answer:
            held = finding.held
            if held is None or not held.exact:
                continue
            for key, value in advised(finding):
                count += 1
                alone = replace(held, given={key: (Given(value),)}, pinned=True)
                known = held.table.has(key) or key in held.given or key in held.checkout
                if not known or (held.table.has(key) and [*key_findings(alone)]):
                    refused.append((row["name"], finding.version, key, value))
    assert not refused
    assert count > 300
