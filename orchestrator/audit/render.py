"""Write findings for people and programs: a line, rows, JSON, SARIF, workflow annotations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator import __version__
from orchestrator.audit.findings import AuditFinding
from orchestrator.audit.key_check import KeyFinding
from orchestrator.library.launches import AuditNote, Inactive, InLoss, InReward

KEYS = (
    "library",
    "version",
    "entry_point",
    "kl_in_reward",
    "kl_in_loss",
    "advantage_estimator",
    "reference_policy_loaded",
    "group_size",
    "inactive_flags",
    "contradictions",
    "verdict",
    "why",
    "lines",
)
WORDS = {
    "no_kl": "no KL",
    "unbiased_reverse_kl": "the reverse KL, unbiased",
    "zero_mean_noise": "nothing: noise of mean zero",
    "token_forward_kl": "the forward KL of each token",
    "token_reverse_kl": "the reverse KL of each token",
    "biased_reward": "a biased reward",
    "both": "two KL terms at once",
    "rollout_policy_kl_only": "only the distance to the policy that sampled",
    "undetermined": "cannot be determined",
}


_OFF_POLICY_WORDS = {
    "unbiased_reverse_kl": "the reverse KL through PPO's surrogate, off-policy",
    "zero_mean_noise": "unlikelihood of old samples, off-policy",
}
"""Verdicts whose words hold on-policy only."""
_KEY_ROWS = {
    "would not start": "refused",
    "is ignored": "ignored",
    "means something else": "misread",
    "unknown": "unknown",
}


def finding_as_json(found: AuditFinding) -> dict[str, Any]:
    """Return the finding as a JSON object: the agreed keys first, then the reasons."""
    plain = asdict(found)
    agreed = {key: plain.pop(key) for key in KEYS}
    agreed["inactive_flags"] = [each.flag for each in found.inactive_flags]
    agreed["contradictions"] = [each.text for each in found.contradictions]
    rest = {key: value for key, value in plain.items() if key not in ("file", "line", "case")}
    rest["inactive_because"] = {e.flag: e.why for e in found.inactive_flags}
    return {
        "file": found.file,
        "line": found.line,
        "case": found.case,
        **agreed,
        **rest,
        "confidence": found.confidence,
        "problem": found.problem,
    }


def rows(found: AuditFinding, *, verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the rows of a finding: a name and a text."""
    entry = found.entry_point or "a configuration file"
    yield "library", f"{found.library} {found.version} ({found.version_because}); {entry}"
    yield "optimises", f"{headline(found).upper()}  ({found.verdict})"
    yield "why", found.why
    yield "in reward", _term(found.kl_in_reward)
    yield "in loss", _term(found.kl_in_loss)
    for each in found.settings:
        if (
            not each.lines
            and not verbose
            and ("kl" not in each.key or each.value.lower() == "false")
        ):
            continue
        where = f"line {_numbers(each.lines)}" if each.lines else "default of the release"
        yield "setting", f"{each.key} = {each.value or '(empty)'}   {where}"
    for rule in found.rules:
        yield "rule", f"{rule.text}   [{rule.source}]"
    for flag in found.inactive_flags:
        yield "no effect", f"{flag.flag}{_at(flag)}: {flag.why}"
    for note in found.contradictions:
        yield "conflict", f"{note.text}{_at(note)}"
    for wrong in found.key_findings:
        if wrong.mistake or verbose:
            yield _KEY_ROWS[wrong.consequence], f"{wrong.text}{_at(wrong)}: {wrong.consequence}"
    yield from _measured_rows(found)
    for text in found.notes if verbose else ():
        yield "note", text
    for text in found.assumes:
        yield "assuming", text
    for i, text in enumerate(change(found)):
        yield "change", text if i else f"to get k1 in the reward: {text}"


def _measured_rows(found: AuditFinding) -> Iterator[tuple[str, str]]:
    if found.measured:
        yield "measured", f"on-policy, {found.measured}" if found.off_policy else found.measured
    if found.regime:
        yield "regime", found.regime


def headline(found: AuditFinding) -> str:
    """Return the objective of the launch, in its regime."""
    if found.off_policy and found.verdict in _OFF_POLICY_WORDS:
        return _OFF_POLICY_WORDS[found.verdict]
    return WORDS[found.verdict]


def one_line(found: AuditFinding) -> str:
    """Return a finding in one line: place, objective, term, confidence, number of problems."""
    case = f" [{found.case}]" if found.case else ""
    terms = [
        f"{_term(term)} in the {place}"
        for place, term in (("reward", found.kl_in_reward), ("loss", found.kl_in_loss))
        if term.active
    ]
    wrong = [each.text for each in found.contradictions]
    wrong += [each.text for each in found.key_findings if each.mistake]
    parts = [
        f"{headline(found)} ({found.verdict})",
        *terms,
        f"{found.library} {found.version}",
        found.confidence,
        *(["conflict: " + wrong[0]] if wrong else []),
        *([f"{len(wrong) - 1} more"] if len(wrong) > 1 else []),
    ]
    return f"{found.file}:{found.line}{case}: {'; '.join(parts)}"


def annotations(found: AuditFinding) -> Iterator[str]:
    """Yield workflow commands of GitHub Actions, which shows them at the lines."""
    for result in _results(found):
        if result["level"] == "none":
            continue
        place = result["locations"][0]["physicalLocation"]
        level = "notice" if result["level"] == "note" else result["level"]
        line, title = place["region"]["startLine"], result["ruleId"]
        text = result["message"]["text"].replace("%", "%25").replace("\n", "%0A")
        yield f"::{level} file={_escaped(found.file)},line={line},title={title}::{text}"


def _escaped(text: str) -> str:
    """Return a text escaped as a property of a workflow command."""
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(character, code)
    return text


def change(found: AuditFinding) -> Iterator[str]:
    """Yield the edits that change a launch to k1 in the reward."""
    if found.change_note and found.problem:
        yield found.change_note
    for edit in found.change:
        at = f"line {_numbers(edit.lines)}: " if edit.lines else "add "
        yield (
            f"{at}{edit.text}"
            if edit.text is not None
            else (f"{at if edit.lines else ''}remove --{edit.key}")
        )


def _term(term: InReward | InLoss) -> str:
    if term.active is None:
        return "not known"
    if not term.active:
        return "off" + (", multiplied by 0" if term.beta == 0 else "")
    straight = " (k2's gradient)" if isinstance(term, InLoss) and term.straight_through else ""
    beta = "not known" if term.beta is None else f"{term.beta:g}"
    return f"{term.estimator or 'an estimator that is not known'}{straight}, β = {beta}"


def _numbers(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines))


def _at(each: Inactive | AuditNote | KeyFinding) -> str:
    return f" (line {_numbers(each.lines)})" if each.lines else ""


_LEVELS = {
    "undetermined": "note",
    "no_kl": "note",
    "rollout_policy_kl_only": "note",
    "unbiased_reverse_kl": "none",
    "token_reverse_kl": "none",
}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(
    found: Iterable[AuditFinding], unreadable: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return SARIF 2.1.0: results for verdicts, flags without effect, conflicts, wrong keys."""
    results = [each for finding in found for each in _results(finding)]
    results += [_result("unreadable", "note", text, name, 1) for name, text in unreadable]
    rules = [
        {"id": key, "shortDescription": {"text": f"The KL term optimises: {words}"}}
        for key, words in WORDS.items()
    ]
    rules += [
        {"id": "inactive_flag", "shortDescription": {"text": "A KL flag that has no effect"}},
        {"id": "contradiction", "shortDescription": {"text": "The launch contradicts itself"}},
        {
            "id": "wrong_key",
            "shortDescription": {"text": "A key or value that the release refuses"},
        },
        {"id": "unreadable", "shortDescription": {"text": "A file that cannot be audited"}},
    ]
    driver = {"name": "orch audit", "version": __version__, "rules": rules}
    return {
        "version": "2.1.0",
        "$schema": SCHEMA,
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _results(finding: AuditFinding) -> Iterable[dict[str, Any]]:
    level = _LEVELS.get(finding.verdict, "warning")
    text = f"{finding.library} {finding.version}: {finding.why}."
    if finding.regime:
        text += f" But {finding.regime}."
    if finding.case:
        text = f"Where {finding.case}: {text}"
    edits = "; ".join(change(finding))
    if edits and finding.problem:
        text += f" For k1 in the reward: {edits}."
    yield _result(finding.verdict, level, text, finding.file, _where(finding))
    for flag in finding.inactive_flags:
        line = flag.lines[-1] if flag.lines else finding.line
        yield _result(
            "inactive_flag", "note", f"{flag.flag} has no effect: {flag.why}.", finding.file, line
        )
    for note in finding.contradictions:
        line = note.lines[-1] if note.lines else finding.line
        yield _result("contradiction", "warning", f"{note.text}.", finding.file, line)
    for wrong in finding.key_findings:
        line = wrong.lines[-1] if wrong.lines else finding.line
        level = "warning" if wrong.mistake else "note"
        text = f"{wrong.text} ({wrong.consequence})."
        yield _result("wrong_key", level, text, finding.file, line)


def _where(finding: AuditFinding) -> int:
    """Return the line of the deciding setting, else the command's line."""
    given = [each.lines[-1] for each in finding.settings if each.lines and "kl" in each.key]
    return given[0] if given else finding.line


def _result(rule: str, level: str, text: str, name: str, line: int) -> dict[str, Any]:
    from urllib.parse import quote

    place = {"artifactLocation": {"uri": quote(name)}, "region": {"startLine": max(line, 1)}}
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }
