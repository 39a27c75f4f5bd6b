"""Findings as SARIF 2.1.0, which code review shows beside the lines."""

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator import __version__
from orchestrator.audit.say import WORDS, change
from orchestrator.audit.types import Finding

_LEVELS = {"undetermined": "note", "no_kl": "note", "rollout_policy_kl_only": "note",
           "unbiased_reverse_kl": "none", "token_reverse_kl": "none"}  # fmt: skip
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(found: Iterable[Finding], unreadable: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """One run: a result for each verdict, flag without effect and contradiction."""
    results = [each for finding in found for each in _results(finding)]
    results += [_result("unreadable", "note", text, name, 1) for name, text in unreadable]
    rules = [{"id": key, "shortDescription": {"text": f"The KL term optimises: {words}"}}
             for key, words in WORDS.items()]  # fmt: skip
    rules += [
        {"id": "inactive_flag", "shortDescription": {"text": "A KL flag that has no effect"}},
        {"id": "contradiction", "shortDescription": {"text": "The launch contradicts itself"}},
        {"id": "unreadable", "shortDescription": {"text": "A file that cannot be audited"}},
    ]
    driver = {"name": "orch audit", "version": __version__, "rules": rules}
    return {"version": "2.1.0", "$schema": SCHEMA,
            "runs": [{"tool": {"driver": driver}, "results": results}]}  # fmt: skip


def _results(finding: Finding) -> Iterable[dict[str, Any]]:
    level = _LEVELS.get(finding.verdict, "warning")
    text = f"{finding.library} {finding.version}: {finding.why}."
    if finding.case:
        text = f"Where {finding.case}: {text}"
    told = "; ".join(change(finding))
    if told and finding.problem:
        text += f" For k1 in the reward: {told}."
    yield _result(finding.verdict, level, text, finding.file, _where(finding))
    for flag in finding.inactive_flags:
        line = flag.lines[-1] if flag.lines else finding.line
        yield _result("inactive_flag", "note", f"{flag.flag} has no effect: {flag.why}.",
                      finding.file, line)  # fmt: skip
    for note in finding.contradictions:
        line = note.lines[-1] if note.lines else finding.line
        yield _result("contradiction", "warning", f"{note.text}.", finding.file, line)


def _where(finding: Finding) -> int:
    """The line of the setting that decides, else the command's."""
    given = [each.lines[-1] for each in finding.settings if each.lines and "kl" in each.key]
    return given[0] if given else finding.line


def _result(rule: str, level: str, text: str, name: str, line: int) -> dict[str, Any]:
    from urllib.parse import quote

    place = {"artifactLocation": {"uri": quote(name)}, "region": {"startLine": max(line, 1)}}
    return {"ruleId": rule, "level": level, "message": {"text": text},
            "locations": [{"physicalLocation": place}]}  # fmt: skip
