"""Write findings with their facts: rows and JSON.

The short answer for people is in summary.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from pydantic_core import to_jsonable_python

from orchestrator.analysis.text import few
from orchestrator.audit.judge import AuditFinding, ConditionalVerdict
from orchestrator.audit.key_check import KeyFinding
from orchestrator.audit.own_code import called
from orchestrator.audit.verdicts import VERDICTS, WITHOUT_A_TERM
from orchestrator.library.launches import (
    AuditNote,
    Edit,
    Inactive,
    InLoss,
    InReward,
)

_NAMES = {"in_reward": "kl_in_reward", "in_loss": "kl_in_loss"}
"""Field of a finding -> its name in the JSON."""
_OF_THE_READER = (
    *("chosen", "unknown", "possibilities", "no_gradient", "surroundings", "own_release", "held"),
    *("decided", "inactive"),
)
"""Fields of a reading from which the finding is judged, and which are in no output."""
_KEY_ROWS = {
    "would not start": "refused",
    "may not start": "refused",
    "is ignored": "ignored",
    "means something else": "misread",
    "unknown": "unknown",
}


def finding_as_json(finding: AuditFinding) -> dict[str, Any]:
    """Return the finding as a JSON object."""
    names = [each.name for each in fields(finding) if each.name not in _OF_THE_READER]
    told = {_NAMES.get(name, name): getattr(finding, name) for name in names}
    return {
        **to_jsonable_python(told),
        "inactive_flags": [each.flag for each in finding.inactive],
        "inactive_because": {each.flag: each.why for each in finding.inactive},
        "contradictions": [each.text for each in finding.contradictions],
        "stops": finding.stops,
        "confidence": finding.confidence,
        "problem": finding.problem,
    }


def rows(finding: AuditFinding, *, rules: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the facts behind a finding, a name and a text each; with `rules` all that is known."""
    entry = finding.entry_point or "a configuration file"
    yield "library", f"{finding.library} {finding.version} ({finding.version_because}); {entry}"
    yield "optimises", f"{headline(finding)}  ({finding.verdict})"
    yield "certainty", certainty(finding)
    yield "why", finding.why
    yield from (("if", conditional_text(each)) for each in finding.conditional)
    name = {True: "on-policy", False: "off-policy", None: "not known"}[finding.regime.on_policy]
    of_release = f", {finding.of_release}" if finding.of_release else ""
    yield "regime", f"{name}{of_release}: {finding.regime.because}"
    whose = "the library's, where the own code keeps it: " * (called(finding.own) == "loss")
    if not finding.conditional:  # its cases say it
        yield "in reward", f"{whose}{term_text(finding.in_reward)}"
        yield "in loss", f"{whose}{term_text(finding.in_loss)}"
    yield from _bounds(finding)
    for beta in finding.effective_beta:
        yield "effective β", beta.text
    for effect in finding.effects:
        if effect.headline or rules:
            yield "around it", effect.text
    yield from _settings(finding, verbose=rules)
    if rules:
        yield from (("rule", f"{rule.text}   [{rule.source}]") for rule in finding.rules)
    for flag in finding.inactive:
        yield "no effect", f"{flag.flag}{_at(flag)}: {flag.why}"
    for note in finding.contradictions:
        yield "conflict", f"{note.text}{_at(note)}"
    for wrong in finding.key_findings:
        if wrong.mistake or rules:
            yield _KEY_ROWS[wrong.consequence], f"{wrong.text}{_at(wrong)}: {wrong.consequence}"
    yield from (("assuming", text) for text in finding.assumes)
    for i, text in enumerate(change(finding)):
        yield "change", text if i else f"to get {goal(finding)}: {text}"


def _bounds(finding: AuditFinding) -> Iterator[tuple[str, str]]:
    """Yield what holds the policy to what beside a KL, and how to add one where there is none."""
    if finding.bound is not None:
        bound = finding.bound
        yield "bound", f"in one step to {bound.to}: {bound.step}; in all: no bound"
        yield from (("dropped", bound.dropped),) if bound.dropped else ()
        yield from (("known", bound.failure),) if bound.failure else ()
    for note in finding.bound_notes:
        yield "bound", f"{note.text}: write {note.instead}"
    if finding.for_a_kl is not None:
        edits = ", ".join(map(edit_text, finding.for_a_kl.edits))
        yield "for a KL", f"{finding.for_a_kl.words}: {edits}"


def conditional_text(case: ConditionalVerdict) -> str:
    """Return the verdict of one case in words."""
    terms = f", {case.terms}" if case.terms else ""
    return f"{case.when}: {VERDICTS[case.verdict].objective}{terms} ({case.verdict})"


def _settings(finding: AuditFinding, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield the settings in the file and the KL defaults that are not false; all if verbose."""
    for each in finding.settings:
        is_kl = "kl" in each.key and each.value.lower() != "false"
        if each.lines or verbose or is_kl:
            where = each.file or "default of the release"
            where = f"line {_numbers(each.lines)}" if each.lines else where
            if each.default_of:
                where += f"; the default of {', '.join(each.default_of)}, which nothing here sets"
            yield "setting", f"{each.key} = {each.value or '(empty)'}   {where}"


def certainty(finding: AuditFinding) -> str:
    """Return what the verdict stands on, in a sentence."""
    if finding.confidence == "none":
        return "it is not determined: see `why`"
    if finding.confidence == "conditional":
        return "it is known for each case, and not which case holds"
    sure = f"it stands on the file and on {finding.library} {finding.version}"
    if finding.release_guessed:
        sure += ", a guess from its keys: `--library NAME@VERSION` names the release"
    if finding.assumes:
        sure += "; it takes for granted what the rows `assuming` name"
    variables = dict.fromkeys(v for each in finding.settings for v in each.default_of)
    if variables:
        sure += f"; with the script's defaults of {few([*variables])}, which a caller may set"
    return sure


def cases(finding: AuditFinding) -> str:
    """Return the verdict of each case, after `if`."""
    return "; if ".join(
        f"{each.when}, {VERDICTS[each.verdict].objective}" for each in finding.conditional
    )


def goal(finding: AuditFinding) -> str:
    """Return the KL term to which the chosen change leads, in words."""
    return finding.changes[0].words if finding.changes else "a KL to a reference policy"


def headline(finding: AuditFinding) -> str:
    """Return the objective of the launch: the verdict in words, then the effects on it."""
    words = VERDICTS[finding.verdict].objective
    around = [each.headline for each in finding.effects if each.headline]
    if finding.verdict == "undetermined":
        return words
    if around and finding.verdict == "unbiased_reverse_kl":
        words = "the reverse KL"
    old = finding.regime.on_policy is False and finding.verdict not in WITHOUT_A_TERM
    return ", ".join([words, *around, *(["off-policy"] if old else [])])


def change(finding: AuditFinding) -> Iterator[str]:
    """Yield the edits of the chosen change, and its side effects."""
    if finding.change_note and finding.problem:
        yield finding.change_note
    for each in finding.changes:
        yield from map(edit_text, each.edits)
        if each.also:
            yield f"it also changes this: {each.also}"


def edit_text(edit: Edit) -> str:
    """Return `line 8: actor.kl_loss_type=mse`, with another script's name in place of the line,
    `add ...`, `remove --...`, or for a TOML file `add ... under [section]`."""
    at = f"line {_numbers(edit.lines)}: " if edit.lines else ""
    at = f"{edit.script}: " if edit.script and not at else at
    section = edit.key.rpartition(".")[0]
    if edit.text is not None and " = " in edit.text and section and not at:
        return f"add {edit.text} under [{section}]"
    return f"{at}remove --{edit.key}" if edit.text is None else f"{at or 'add '}{edit.text}"


def term_text(term: InReward | InLoss) -> str:
    """Return `k3, β = 0.001`, or why there is no such term."""
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
