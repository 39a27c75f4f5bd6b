"""Findings in words: for a terminal, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.audit.types import Finding, Inactive, InLoss, InReward, Note

KEYS = (
    "library", "version", "entry_point", "kl_in_reward", "kl_in_loss", "advantage_estimator",
    "reference_policy_loaded", "group_size", "inactive_flags", "contradictions", "verdict", "why",
    "lines",
)  # fmt: skip
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


def as_json(found: Finding) -> dict[str, Any]:
    """The finding as a JSON object: the agreed keys first, what they rest on after them."""
    whole = asdict(found)
    told = {key: whole.pop(key) for key in KEYS}
    told["inactive_flags"] = [each.flag for each in found.inactive_flags]
    told["contradictions"] = [each.text for each in found.contradictions]
    rest = {key: value for key, value in whole.items() if key not in ("file", "line", "case")}
    rest["inactive_because"] = {e.flag: e.why for e in found.inactive_flags}
    return {"file": found.file, "line": found.line, "case": found.case, **told, **rest,
            "confidence": found.confidence, "problem": found.problem}  # fmt: skip


def lines_of(found: Finding, *, verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Rows of a finding: a name and a text."""
    entry = found.entry_point or "a configuration file"
    yield "library", f"{found.library} {found.version} ({found.version_because}); {entry}"
    yield "optimises", f"{WORDS[found.verdict].upper()}  ({found.verdict})"
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
    if found.measured:
        yield "measured", found.measured
    for text in found.notes if verbose else ():
        yield "note", text
    for text in found.assumes:
        yield "assuming", text
    for i, text in enumerate(change(found)):
        yield "change", text if i else f"to get k1 in the reward: {text}"


def change(found: Finding) -> Iterator[str]:
    """The edits that give k1 in the reward."""
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


def _at(each: Inactive | Note) -> str:
    return f" (line {_numbers(each.lines)})" if each.lines else ""
