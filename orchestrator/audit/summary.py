"""Say the answer of a finding to people: at most six lines, or one.

The six lines are what was written, what that does and how much of it there is at this β, how far
off it is, what to write instead, and what else counts. They use no word of the laboratory; the
facts behind them are the rows of render.py.
"""

import re
from collections.abc import Iterator

from orchestrator.analysis.text import few
from orchestrator.audit.judge import AuditFinding
from orchestrator.audit.own_code import called
from orchestrator.audit.render import cases, edit_text, goal, term_text
from orchestrator.audit.verdicts import VERDICTS, WITHOUT_A_TERM, WITHOUT_KL
from orchestrator.kl.verdicts import percent
from orchestrator.library.launches import LaunchChange

MOST_EDITS = 3
"""Maximum number of edits of a change that a summary names."""
DRIFT = 10
"""Nats of KL of a response for which a summary says what they cost."""
LITTLE, MUCH = 0.05, 0.5
"""Shares of a solved task's reward below which that cost is little, and above which it is much."""


def summary(finding: AuditFinding) -> Iterator[tuple[str, str]]:
    """Yield the lines of a finding, a label and a text each: first a head, whose label is empty."""
    yield "", _head(finding)
    yield "You wrote", _written(finding)
    mask = finding.bound.mask if finding.bound is not None else ""
    yield "It does", " ".join(filter(None, (_plain(finding), mask, _weight(finding))))
    if finding.verdict not in WITHOUT_A_TERM:
        yield "How far off", _distance(finding)
    yield "Instead", instead(finding)
    if more := list(_also(finding)):
        yield "Also", "; ".join(more)


def one_line(finding: AuditFinding) -> str:
    """Return a finding in one line: place, mark, objective, terms, release, the first mistake."""
    wrong = _mistakes(finding)
    sure: str = finding.confidence
    if finding.release_guessed and not finding.assumes and sure == "assumed":
        sure = "if that is the release"
    parts = [
        f"{mark(finding)}: {VERDICTS[finding.verdict].objective} ({finding.verdict})",
        *([f"if {cases(finding)}"] if finding.conditional else []),
        *_terms(finding),
        *(["the reference moves"] if finding.moving_reference else []),
        f"{finding.library} {finding.version}",
        sure,
        *([f"conflict: {wrong[0]}"] if wrong else []),
        *([f"{len(wrong) - 1} more"] if len(wrong) > 1 else []),
    ]
    return f"{_place(finding)}: {'; '.join(parts)}"


_MARKS = {"teacher_kl": "a KL to a teacher", "does_not_train": "does not train"}


def mark(finding: AuditFinding) -> str:
    """Return the answer in two or three words."""
    if finding.stops:
        return "would not start"
    if finding.own:
        return f"undetermined: own {called(finding.own)}"
    if finding.verdict == "undetermined":
        return "not determined"
    if _mistakes(finding):
        whose = finding.of_release and not finding.release_guessed  # a guess is beside the mark
        return f"has a mistake, {finding.of_release}" if whose else "has a mistake"
    if finding.problem:
        return "needs a look"
    if finding.unverified:
        return "unverified: orch has not read this release"
    if finding.verdict in _MARKS:
        return _MARKS[finding.verdict]
    if finding.verdict in WITHOUT_KL:
        return "no KL to a reference"
    if finding.held is None:
        return "nothing wrong seen: orch has no table of its keys"
    if finding.changed_code:
        return "nothing wrong seen: the code beside it is in no release"
    if _of_a_fork(finding):
        return "nothing wrong seen: it has keys of a fork"
    return "fine but for its bound" if finding.bound_notes else "fine"


def instead(finding: AuditFinding) -> str:
    """Return what to write instead: the chosen change, or why there is none."""
    wrong = _mistakes(finding)
    if refused := finding.stops:
        return f"mend this first: {refused[0]}"
    if finding.own:
        places = ", ".join(each.where or each.name for each in finding.own)
        first = f"mend this first: {wrong[0]}" if wrong else f"read {places}"
        functions = [each for each in finding.own if each.lines and each.name.isidentifier()]
        test = f": orch explain --of {functions[0].path}:{functions[0].name}" if functions else ""
        return f"{first}. Audit runs no code of a launch{test}"
    if finding.changes:
        apart = [each.text for each in finding.contradictions if each.apart]
        first = f"mend this first: {apart[0]}; then " if apart else ""
        return f"{first}{goal(finding)}{_edits(finding, finding.changes[0])}"
    if finding.verdict == "undetermined":
        return _what_decides(finding, wrong)
    if wrong:
        return f"mend this first: {wrong[0]}"
    if finding.problem:
        return "orch knows no small change of this launch to a KL that does what its name says"
    if finding.verdict in WITHOUT_KL:
        return _for_a_kl(finding)
    if finding.unverified:
        return f"nothing, if {finding.library} {finding.version} is as the releases before it"
    return _nothing(finding)


def _nothing(finding: AuditFinding) -> str:
    """Return what is left to do for a launch whose KL does what its name says."""
    if finding.inactive:
        return f"leave out what has no effect: {_named_flags(finding)}"
    if finding.bound_notes:
        return _for_a_kl(finding)
    if finding.held is None:
        return "nothing, for the settings of the KL: orch does not know the others"
    if finding.changed_code:
        names = few([each.name for each in finding.changed_code])
        return f"nothing, if the code beside it does what the library's does: {names}"
    if forks := _of_a_fork(finding):
        return f"nothing, if the KL and the samples are the library's under {few(forks)}"
    return "nothing: each setting of the KL does what its name says"


def _what_decides(finding: AuditFinding, wrong: list[str]) -> str:
    """Return what to write down or to name of an undetermined launch, and its first mistake."""
    decides = f"write down what decides: {finding.why}"
    if finding.release_guessed and any(each.release for each in finding.possibilities):
        hint = f" ({finding.hint})" if finding.hint else ""
        decides = f"name the release: --library {finding.library}@VERSION{hint}"
    if of_text := [each.text for each in finding.contradictions if each.of_text]:
        return f"mend this first: {of_text[0]}; then {decides}"
    if not wrong or _is_of_a_fork(finding):
        return decides
    return f"{decides}; in {finding.library} {finding.version} mend this, too: {wrong[0]}"


def _is_of_a_fork(finding: AuditFinding) -> bool:
    """Return True if keys of a fork decide: its other defaults are not the release's either."""
    return finding.verdict == "undetermined" and bool(_of_a_fork(finding))


def _of_a_fork(finding: AuditFinding) -> list[str]:
    return [each.key for each in finding.key_findings if each.fork]


def _for_a_kl(finding: AuditFinding) -> str:
    """Return the smallest change of a launch without a KL: of its bound, or to a KL."""
    if finding.bound_notes:
        note = finding.bound_notes[0]
        return f"{note.instead}, for {note.text}{_unless(finding, 'bound')}"
    change = finding.for_a_kl
    if change is None:
        return "nothing, if that is meant"
    rest = f"; {change.also}" if change.also else ""
    text = f"nothing, if that is meant; for a bound on the drift, {change.words}"
    return f"{text}{_edits(finding, change)}{rest}"


def _edits(finding: AuditFinding, change: LaunchChange) -> str:
    """Return the edits of a change, after the condition on the code that it goes through."""
    more = len(change.edits) - MOST_EDITS
    edits = ", ".join(map(edit_text, change.edits[:MOST_EDITS]))
    hidden = f" (and {more} more: -v)" if more > 0 else ""
    return f"{_unless(finding, 'kl', 'weight')}: {edits}{hidden}"


def _place(finding: AuditFinding) -> str:
    case = f" [{finding.case}]" if finding.case else ""
    return f"{finding.file}:{finding.line}{case}"


def _head(finding: AuditFinding) -> str:
    guessed = " (a guess)" if finding.release_guessed else ""
    marks = mark(finding) + ("; the reference moves" if finding.moving_reference else "")
    named = f"{finding.held.named}, read as " if finding.held and finding.held.named else ""
    release = f"{finding.library} {named}{finding.version}{guessed}"
    return f"{_place(finding)}   {release}   {marks}"


def _terms(finding: AuditFinding) -> Iterator[str]:
    """Yield `k3, β = 0.001 in the loss` for each active KL term."""
    around = finding.surroundings
    for place, term in (("reward", finding.in_reward), ("loss", finding.in_loss)):
        if term.active:
            moves = f" ({around.controller} moves β)" if around and around.controller else ""
            yield f"{term_text(term)} in the {place}{moves}"


def _mistakes(finding: AuditFinding) -> list[str]:
    wrong = [each.text for each in finding.contradictions]
    wrong += [each.text for each in finding.key_findings if each.mistake]
    first = finding.stops
    return [*first, *(each for each in wrong if each not in first)]


def _written(finding: AuditFinding) -> str:
    """Return the KL terms of the launch, and the lines that say so."""
    terms = list(_terms(finding))
    if finding.own or finding.verdict == "undetermined":
        terms = [f"the setting of {each}" for each in terms]
    if finding.own:
        off = {finding.in_reward.active, finding.in_loss.active} == {False}
        none = ["a KL that the file alone does not fix" if finding.unknown else "no KL that acts"]
        terms = [f"the {called(finding.own)} itself", *(terms or none * off)]
    elif finding.verdict == "undetermined":
        terms = terms or ["a KL that the file alone does not fix"]
    elif finding.rollout_kl:
        terms.append(f"a KL to the policy that sampled, weight {finding.rollout_kl:g}")
    of_kl = [s for s in finding.settings if re.search(r"kl|(^|\.)(beta|teacher_tau)$", s.key, re.I)]
    numbers = sorted({n for s in of_kl for n in s.lines})
    word = "line" if len(numbers) == 1 else "lines"
    named = dict.fromkeys(s.file for s in of_kl if s.file)
    at = [f"{word} {', '.join(map(str, numbers))}"] if numbers else []
    nowhere = "not here" if finding.verdict == "undetermined" else "by the release's defaults"
    defaults = dict.fromkeys(f"the default of {v}" for s in of_kl for v in s.default_of)
    where = ", ".join([*at, *named, *defaults]) or nowhere
    return f"{' and '.join(terms) or 'no KL that acts'} ({where})"


def _plain(finding: AuditFinding) -> str:
    if finding.own:
        return f"{finding.why[:1].upper()}{finding.why[1:]}."
    if finding.conditional:
        return f"That depends on what the file does not say: if {cases(finding)}."
    if finding.verdict in WITHOUT_KL and finding.bound is not None:
        why = f"{finding.why}. " if any(_terms(finding)) else ""
        step = f"I{_step(finding)[1:]}: {finding.bound.step}"
        return f"{why}{_effect(finding)} {step}."
    if finding.moving_reference:
        moves = f"The reference moves: {finding.moving_reference}"
        return f"{_effect(finding)} {moves}. Over the training no bound on the drift."
    return _effect(finding)


def _effect(finding: AuditFinding) -> str:
    text = VERDICTS[finding.verdict].effect
    decides = "updates" if finding.verdict == "does_not_train" else "kl"
    if not _changed(finding, decides):
        return text
    return f"I{_if_as(finding, decides)[1:]}: {text[:1].lower()}{text[1:]}"


def _step(finding: AuditFinding) -> str:
    is_known = finding.bound is None or finding.bound.to != "not known"
    return ", ".join(filter(None, ["in one step", _if_as(finding, "bound") if is_known else ""]))


def _changed(finding: AuditFinding, *what: str) -> list[str]:
    """Return the functions beside, as in no release, that decide what a summary says."""
    changed = (each.name for each in finding.changed_code if set(what) & set(each.decides))
    return [*dict.fromkeys(re.sub(r"^\w+\.(?=\w{9})", "", name) for name in changed)]


def _if_as(finding: AuditFinding, *what: str) -> str:
    """Return the condition of a claim: on those functions, else on the release; empty: none."""
    names = _changed(finding, *what)
    if not names:
        return finding.of_release
    verb = "does" if len(names) == 1 else "do"
    return f"if {few(names)} {verb} what {finding.library}'s {verb}"


def _unless(finding: AuditFinding, *what: str) -> str:
    """Return the condition on those functions alone, after a comma; empty without one."""
    return f", {_if_as(finding, *what)}" if _changed(finding, *what) else ""


def _weight(finding: AuditFinding) -> str:
    """Return how much the KL weighs beside the task's reward at the launch's β."""
    why = finding.surroundings.no_reward if finding.surroundings else ""
    if why and finding.verdict == "teacher_kl":
        return f"Every task reward is 0 ({why}): this KL is all that it learns from."
    if not finding.effective_beta or finding.verdict == "undetermined":
        return ""
    betas = " and ".join(f"{each.beta:g}" for each in finding.effective_beta)
    if finding.verdict == "zero_mean_noise":
        return f"β = {betas} scales the noise."
    if finding.verdict in ("unlikelihood_of_old_samples", "other_objective"):
        return f"β = {betas} scales that, and no KL, so a KL has no price here."
    known = [each.at_most for each in finding.effective_beta]
    if finding.verdict == "rescaled_reverse_kl":
        return (
            f"How much β = {betas} weighs differs: in groups whose task rewards are equal the KL "
            "acts alone, at unit size."
        )
    if None in known:
        return f"How much β = {betas} weighs beside the task, the launch does not show."
    cost = DRIFT * sum(abs(each) for each in known if each is not None)
    much = "little" if cost < LITTLE else "much" if cost > MUCH else "some"
    return (
        f"At β = {betas} it weighs {much}{_unless(finding, 'weight')}: {DRIFT} nats of KL cost at "
        f"most {percent(cost)} of a solved task."
    )


def _distance(finding: AuditFinding) -> str:
    """Return the distance of the KL's gradient from that of the reverse KL."""
    if finding.verdict == "rescaled_reverse_kl" or (finding.bias and None in finding.bias):
        return "no one number: each prompt has a factor of its own"
    if finding.bias is None:
        return "not computed: the laboratory has no number for this form"
    near, far = (each or 0.0 for each in finding.bias)
    if near == far == 0:
        return "not at all: its mean gradient is that of the reverse KL"
    return (
        f"{percent(near)} near the reference, {percent(far)} far from it (of the reverse KL's "
        "gradient, in a small model)"
    )


def _named_flags(finding: AuditFinding) -> str:
    first = finding.inactive[0]
    at = f" (line {first.lines[-1]})" if first.lines else ""
    more = len(finding.inactive) - 1
    return f"{first.flag}{at}" + (f" and {more} more" if more else "")


def _also(finding: AuditFinding) -> Iterator[str]:
    """Yield what else counts, the most important first."""
    wrong = _mistakes(finding)
    if wrong and finding.changes and wrong[0] not in instead(finding):
        yield wrong[0]
    unbounded = finding.verdict in WITHOUT_KL
    for note in finding.bound_notes:
        if not note.wrong and not instead(finding).startswith(note.instead):
            release = f"{finding.of_release}: " if finding.of_release else ""
            yield f"{release}{note.text}: write {note.instead}"
            break
    if unbounded and finding.bound is not None and not _changed(finding, "bound"):
        dropped, failure = finding.bound.dropped, finding.bound.failure
        yield from [f"dropped without a word: {dropped}"] if dropped else []
        yield from [f"known: {failure}"] if failure else []
    is_step = called(finding.own) == "advantage" or not finding.own
    told = finding.bound is not None and is_step and not _is_of_a_fork(finding)
    if not unbounded and told and finding.bound is not None:
        yield f"{_step(finding)}: {finding.bound.step.partition('; ')[0].partition(': ')[0]}"
    if finding.inactive and not instead(finding).startswith("leave out"):
        yield f"no effect: {_named_flags(finding)}"
    if finding.otherwise:
        yield f"if its samples are old: {VERDICTS[finding.otherwise].objective}"
    elif finding.regime.on_policy is False and is_step:
        unweighed = finding.surroundings.unweighed if finding.surroundings else ""
        steps = finding.regime.because.partition(" (")[0] + unweighed
        said = finding.bound is not None and not _changed(finding, "updates")  # with the bound
        yield ", ".join(filter(None, [steps, "" if said else _if_as(finding, "updates")]))
    acts = [each.headline for each in finding.effects if each.headline]
    yield from (f"{each}{_unless(finding, 'around')}" for each in acts[:1])
    hidden = max(len(acts) - 1, 0) + len(finding.assumes)
    if finding.assumes and finding.verdict != "undetermined":
        yield f"taken for granted: {finding.assumes[0]}"
        hidden -= 1
    if hidden:
        yield f"{hidden} more: -v"
