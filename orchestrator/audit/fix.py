"""Change a launch, read it again and judge it again.

`chosen` returns the best change after which the launch is not criticised; `diff` writes it.

`conditional` returns the verdicts of an undetermined launch, for every value of the facts that
decide it. The library's reader lists the values of a fact. Each is put into the launch: a case has
the reader's own rules and no others.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator import plugins
from orchestrator.audit.judge import AuditFinding, ConditionalVerdict, judge, terms_text
from orchestrator.audit.verdicts import PROBLEMS, WITHOUT_KL
from orchestrator.library.launches import (
    CommandWord,
    Edit,
    Given,
    Launch,
    LaunchChange,
    LaunchReading,
)

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'\\;)]+)*"""
_ARGUMENT = r"""(?:"[^"\n]*"|'[^'\n]*'|[\w.+-]+)(?=\s*[,)])"""
"""The value of an argument in a call of Python."""


def chosen(
    finding: AuditFinding, launch: Launch, judged: Callable[[Launch], AuditFinding | None]
) -> LaunchChange | None:
    """Return the best change after which a KL term is there and not criticised, or None.

    The order of advice of kl.table decides, as in `orch explain`: bias near the reference
    policy, then far from it. Of equals the smallest change is first. One that changes the task's
    own gradient too (`also`) is last, unless that gradient is what is wrong. `judged` reads and
    judges a launch. `also` of the result lists the side effects.
    """
    criticised = finding.verdict in PROBLEMS or _contradicts(finding)
    wanted = finding.verdict in WITHOUT_KL and not finding.problem
    if not (wanted or criticised) or finding.verdict == "undetermined":
        return None
    offers: list[tuple[LaunchChange, AuditFinding]] = []
    for change in finding.changes:
        after = judged(applied(launch, change.edits)) if change.edits else None
        if after is None or _contradicts(after) or _refused(after) - _refused(finding):
            continue
        if after.in_reward.active and any(kind == "advantage" for kind, _ in finding.chosen):
            continue  # what an advantage of one's own makes of it, nobody knows
        names = {after.verdict, after.otherwise or after.verdict}  # on- and off-policy
        if names.isdisjoint((*PROBLEMS, *WITHOUT_KL, "undetermined")):
            offers.append((change, after))
    if not offers:
        return None
    divided = finding.verdict == "rescaled_reverse_kl"
    none = (math.inf, math.inf)
    change, after = min(
        offers, key=lambda o: (bool(o[0].also) and not divided, *(o[1].order or none))
    )
    return replace(change, also="; ".join([*_differences(finding, after, change)]))


def _refused(finding: AuditFinding) -> set[str]:
    """Return the keys and values that the release's own table does not take as they are meant."""
    return {each.key for each in finding.key_findings}


def _contradicts(finding: AuditFinding) -> bool:
    return any(not each.apart for each in finding.contradictions)


def _differences(before: AuditFinding, after: AuditFinding, change: LaunchChange) -> Iterator[str]:
    """Yield one sentence for each side effect of a change."""
    was, now = before.in_loss.active, after.in_loss.active
    if now != was and after.in_reward.active != before.in_reward.active:
        where = "from the reward to the loss" if now else "from the loss to the reward"
        yield f"the KL moves {where}"
    old, new = before.effective_beta, after.effective_beta
    if old and new and (old[0].text != new[0].text):
        yield f"effective β becomes {new[0].text} (it was {old[0].text})"
    if change.also:
        yield change.also


def applied(launch: Launch, edits: Sequence[Edit]) -> Launch:
    """Return the launch after the edits of its words, or of its last configuration file."""
    words, documents = list(launch.words), list(launch.documents)
    for edit in edits:
        if edit.text is None or edit.text.startswith("--"):
            words = _without(words, edit.key)
            name, _, value = (edit.text or "").partition(" ")
            added = [name, *([value] if value else [])] if edit.text else []
            words += [CommandWord(each, edit.lines) for each in added]
        elif launch.words and " = " not in edit.text:
            words = [each for each in words if each.text.lstrip("+").partition("=")[0] != edit.key]
            words.append(CommandWord(edit.text, edit.lines))
        elif documents:
            value = edit.text.partition("=")[2].strip()
            last = documents[-1]
            values = {**last.values, edit.key: Given(value, edit.lines)}
            documents[-1] = replace(last, values=values)
    return replace(launch, words=tuple(words), documents=tuple(documents))


def _without(words: Sequence[CommandWord], key: str) -> list[CommandWord]:
    """Return the words without a flag and its value."""
    kept: list[CommandWord] = []
    dropping = False
    for word in words:
        if word.text.startswith("--"):
            flag = word.text.partition("=")[0].lstrip("-")
            dropping = flag.replace("-", "_") == key.replace("-", "_")
            if dropping:
                dropping = "=" not in word.text
                continue
        elif dropping:
            dropping = False
            continue
        kept.append(word)
    return kept


def fixed(text: str, findings: Sequence[AuditFinding]) -> tuple[str, list[str]]:
    """Return the changed text, and one line for each edit that could not be made."""
    lines = text.splitlines(keepends=True)
    unfixed: list[str] = []
    done: set[tuple[str, tuple[int, ...], str | None, int]] = set()
    for finding in findings:
        if not finding.problem:
            continue
        if slips := [each.text for each in finding.key_findings if each.mistake and each.meant]:
            unfixed += (f"line {finding.line}: {each}" for each in slips)
            continue  # what else to change, the launch as it is meant tells
        words = next((e.words for e in finding.changes if e.words.startswith("if ")), "")
        if words and finding.release_guessed:
            named = f"--library {finding.library}@VERSION"
            unfixed.append(f"line {finding.line}: {words}: name the release, {named}")
            continue  # the release that runs may refuse it
        for edit in (edit for change in finding.changes for edit in change.edits):
            mark = (edit.key, edit.lines, edit.text, 0 if edit.lines else finding.line)
            if mark in done:
                continue
            done.add(mark)
            if not _apply(lines, edit, finding):
                what = edit.text if edit.text is not None else f"remove --{edit.key}"
                files = [e.file for e in finding.settings if e.key == edit.key and e.file]
                unfixed.append(f"{next(iter(files), f'line {finding.line}')}: {what}")
    return "".join(lines), unfixed


def diff(text: str, findings: Sequence[AuditFinding], name: str) -> tuple[str, list[str]]:
    """Return a unified diff (empty if nothing changes), and the edits that it lacks."""
    changed, unfixed = fixed(text, findings)
    lines = difflib.unified_diff(
        text.splitlines(keepends=True), changed.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(
        each if each.endswith("\n") else each + "\n\\ No newline at end of file\n" for each in lines
    ), unfixed


def diff_path(path: Path) -> Path:
    """Return the file for the changes of a launch, beside it."""
    return path.with_name(f"{path.name}.orch.diff")


def write_diff(path: Path, changes: str) -> Path:
    """Write the changes of a launch beside it. Return the file. Raise OSError."""
    target = diff_path(path)
    target.write_text(changes, encoding="utf-8")
    return target


def _apply(lines: list[str], edit: Edit, finding: AuditFinding) -> bool:
    """Make an edit in the lines. Return False if they have no place for it."""
    if edit.lines:
        is_python = finding.file.endswith(".py")
        return any(_replace(lines, number, edit, is_python) for number in edit.lines)
    return edit.text is not None and _add(lines, edit.key, edit.text, finding)


def _replace(lines: list[str], number: int, edit: Edit, is_python: bool) -> bool:
    """Change the value of a key on line `number`. Return False if the line does not set the key."""
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    key, text = re.escape(edit.key), edit.text
    if text is None:
        changed = re.sub(rf"(?<!\S)--{key}\b ?", "", line, count=1)
        # The flag had the line for itself: the line goes, with the `\` at its end.
        if changed != line and changed.strip() in ("\\", ""):
            changed = ""
    elif text.startswith("--"):
        flag = rf"(?<!\S)--{key}(?:[ =]{_VALUE}(?<!\\))?"
        changed = re.sub(flag, lambda _: text, line, count=1)
    else:
        value = text.partition("=")[2]
        before, argument = rf"((?<![\w.]){key}=)", _ARGUMENT if is_python else "(?!)"
        changed = re.sub(before + argument, lambda m: f"{m[1]}{_python(value)}", line, count=1)
        if changed == line:
            changed = re.sub(before + _VALUE, lambda m: f"{m[1]}{value}", line, count=1)
        if changed == line:
            changed = re.sub(
                rf"""({_in_file(edit.key)}){_VALUE_IN_FILE}""",
                lambda m: f"{m[1]}{_python(value) if m['quote'] else value}",
                line,
                count=1,
            )
    if changed == line:
        return False
    lines[number - 1] = changed
    return True


_VALUE_IN_FILE = r"""(?:"[^"\n]*"|'[^'\n]*'|[\w.+-]*)"""


def _in_file(key: str) -> str:
    """Return the pattern of a dotted key and its colon, in a line of YAML or of a dictionary."""
    last = re.escape(key.rpartition(".")[2])
    return rf"""(?P<quote>["']?)(?<![\w.]){last}(?P=quote)[ \t]*:[ \t]*"""


def _python(value: str) -> str:
    """Return a value as a Python literal."""
    plain = value in ("True", "False") or re.fullmatch(r"[\d.e-]+", value)
    return value if plain else f'"{value}"'


def _add(lines: list[str], key: str, text: str, finding: AuditFinding) -> bool:
    """Add a setting before another one: a word of the command, or a key of the same section of a
    file. Else add the word after the entry point. Return False if there is no such place."""
    section, _, last = key.rpartition(".")
    value = text.partition("=")[2]
    for setting, number in ((e, n) for e in finding.settings for n in e.lines):
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        word = f"--{setting.key}" if text.startswith("--") else f"{setting.key}="
        in_file = re.search(_in_file(setting.key), line)
        argument = re.search(rf"(?<![\w.]){re.escape(word)}{_ARGUMENT}", line)
        if argument is not None and finding.file.endswith(".py"):
            at, added = argument.start(), f"{key}={_python(value)}, "
        elif word in line:
            at, added = _before(line, line.index(word), text)
        elif in_file is not None and setting.key.rpartition(".")[0] == section:
            at, quote = in_file.start(), in_file["quote"]
            is_alone = not line[:at].strip()
            ends = ("," if quote or not is_alone else "") + (f"\n{line[:at]}" if is_alone else " ")
            added = f"{quote}{last}{quote}: {_python(value) if quote else value}{ends}"
        else:
            continue
        lines[number - 1] = f"{line[:at]}{added}{line[at:]}"
        return True
    entry = finding.entry_point
    for number in range(finding.line, min(finding.line + 12, len(lines) + 1)) if entry else ():
        before, found, after = lines[number - 1].partition(entry or "")
        if found:
            lines[number - 1] = f"{before}{found} {text}{after}"
            return True
    return False


_OPTION = re.compile(r"(?<!\S)(?!-m |--multirun )--?[A-Za-z][\w-]* +(?=[\"']?$)")
"""An option that stands before each setting: `-S a.b=c`. Hydra's own stand before them once."""
_IN_QUOTES = re.compile(r"""(?<![=\w])(["'])(?:(?!\1)\S)*\1(,?)""")
"""A word in quotes, and the comma of a list of Python; no text of several words."""


def _before(line: str, at: int, text: str) -> tuple[int, str]:
    """Return where a setting goes before the one at `at`, and its text, in the same quotes."""
    at = len(line[:at].rstrip("+~"))
    option = None if text.startswith("--") else _OPTION.search(line[:at])
    if option is not None:
        return option.start(), f"{option[0]}{text} "
    quoted = _IN_QUOTES.match(line, at - 1) if at else None
    if quoted is None:
        return at, f"{text} "
    quote, comma = quoted[1], quoted[2]
    words = text.split(" ", 1) if text.startswith("--") else [text]
    return at - 1, "".join(f"{quote}{word}{quote}{comma} " for word in words)


MOST = 6
"""Maximum number of cases. Where more are left, too many facts are missing for an answer."""
DEEPEST = 3
"""Maximum number of unknown facts in one condition."""


def conditional(
    reading: LaunchReading, launch: Launch, file: str
) -> tuple[ConditionalVerdict, ...]:
    """Return the verdict of each case, or nothing if a case has none or all have the same reason.

    The cases are exhaustive: if the verdict of one case is not known, none is returned.
    """
    cases: list[ConditionalVerdict] = []
    for case in _cases(reading, launch, file, ()):
        if case is None or len(cases) == MOST:
            return ()
        cases.append(case)
    return tuple(cases)


def _cases(
    reading: LaunchReading, launch: Launch, file: str, conditions: tuple[str, ...]
) -> Iterator[ConditionalVerdict | None]:
    """Yield each case of a launch; None for a case without a verdict."""
    if not reading.possibilities or len(conditions) == DEEPEST:
        yield None
    for each in reading.possibilities:
        changed = applied(launch, each.edits)
        if each.release:
            released = {reading.library: f"{each.release} if it is the release"}
            changed = replace(changed, versions={**launch.versions, **released})
        again = plugins.load_reader(reading.library).audit(changed)
        if again is None:
            yield None
            return
        named = (*conditions, each.when)
        if again.unknown:
            yield from _cases(again, changed, file, named)
            continue
        finding = judge(again, changed, file)
        when = " and ".join(named)
        terms = terms_text(finding.in_reward, finding.in_loss)
        yield ConditionalVerdict(when, finding.verdict, finding.term_verdict, terms)
