"""What the audit says of small scripts stays as answers.jsonl has it, and its advice is taken."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from lab.adopt.adoption import adoption_of
from orchestrator import plugins
from orchestrator.audit import AuditFinding
from orchestrator.audit.key_check import key_findings
from orchestrator.library.launches import UNKNOWN, UNSET, Given
from tests import golden
from tests.audit.answers import answers, found, said
from tests.backends.asked import ask

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


Advice = tuple[tuple[str, str], ...]
"""Settings that are advised together: key and value; a flag alone is true."""


def advised(finding: AuditFinding) -> Iterator[Advice]:
    for offer in (*finding.changes, *filter(None, [finding.for_a_kl])):
        texts = [(edit.key, edit.text) for edit in offer.edits if edit.text is not None]
        values = [(key, re.sub(r"^-*[^\s=]+\s*=?\s*", "", text)) for key, text in texts]
        yield tuple((key, value or "true") for key, value in values)
    for note in finding.bound_notes:
        yield tuple(re.findall(r"([A-Za-z_][\w.]*\w)=([\w.+-]+)", note.instead))


def test_no_advice_is_refused_by_the_table_of_its_release(now: Answers) -> None:
    refused, count = [], 0
    for row, answer in now:
        for finding in () if isinstance(answer, str) else answer:
            held = finding.held
            if held is None or not held.exact:
                continue
            for key, value in (each for together in advised(finding) for each in together):
                count += 1
                alone = replace(held, given={key: (Given(value),)}, pinned=True)
                known = held.table.has(key) or key in held.given or key in held.checkout
                if not known or (held.table.has(key) and [*key_findings(alone)]):
                    refused.append((row["name"], finding.version, key, value))
    assert not refused
    assert count > 300


def refused_by_parser(
    library: str, version: str, advice: list[Advice]
) -> Iterator[tuple[Advice, str]]:
    """Yield the advice that a release's own parser refuses, with its sentence."""
    words = [[f"{key}={value}" for key, value in each] for each in advice]
    if library == "verl":
        answers = ask(library, version, words, [])
    elif library == "skyrl":
        answers = ask(library, version, [["trainer.logger=tensorboard", *w] for w in words])
    else:
        cell = golden.cell_of(library, version, {})
        plan = plugins.load(library).translate(cell, golden.PLACE)
        if library == "openrlhf":
            flags = [
                [word for k, v in each if v.lower() != "false" for word in (f"--{k}", v)]
                for each in advice
            ]
            flags = [[word for word in each if word.lower() != "true"] for each in flags]
            launch = adoption_of(library).configuration(plan)
            answers = ask(library, version, [[*launch, *each] for each in flags])
        else:
            plain = yaml.safe_load(plan.files["grpo.yaml"])
            own = [{key: yaml.safe_load(value) for key, value in each} for each in advice]
            texts = [yaml.safe_dump({**plain, **each}) for each in own]
            answers = ask(library, version, [("grpo", text) for text in texts])
    for each, answer in zip(advice, answers, strict=True):
        if "error" in answer:
            yield each, answer["error"]


def with_the_launchs_own(finding: AuditFinding) -> Iterator[Advice]:
    """Yield the advice of a finding, each with what its launch says of the KL."""
    if (held := finding.held) is None:
        return
    given = {key: values[-1].text for key, values in held.given.items() if "kl" in key}
    own = {k: v for k, v in given.items() if held.table.has(k) and not {UNKNOWN, UNSET} & {*v}}
    for each in advised(finding):
        if each and all(held.table.has(key) for key, _ in each):
            yield tuple({**own, **dict(each)}.items())


@pytest.mark.thorough  # in a library's environment
@pytest.mark.slow
@pytest.mark.parametrize("library", ["verl", "skyrl", "openrlhf", "trl"])
def test_no_advice_is_refused_by_the_releases_own_parser(library: str, now: Answers) -> None:
    """Of each release that orch drives; a key that only the launch's own fork has is left out."""
    by_release: dict[str, dict[Advice, None]] = {}
    for _, answer in now:
        for finding in () if isinstance(answer, str) else answer:
            if finding.library == library and finding.version in plugins.load(library).versions:
                own = with_the_launchs_own(finding)
                by_release.setdefault(finding.version, {}).update(dict.fromkeys(own))
    assert by_release
    for version, advice in by_release.items():
        assert not list(refused_by_parser(library, version, list(advice))), version
