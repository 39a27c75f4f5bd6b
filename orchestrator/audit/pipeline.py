"""Turn the launches of a text into findings, and read the files of an audit.

The files are those that a person names, and those of a folder that may launch.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator import plugins
from orchestrator.audit.commands import (
    LARGEST,
    launches,
    plain,
    programs,
    runs_file,
)
from orchestrator.audit.documents import notebook
from orchestrator.audit.fix import chosen, conditional
from orchestrator.audit.judge import AuditFinding, judge
from orchestrator.audit.libraries import (
    STARTS,
    NeighbourFiles,
    Projects,
    found_beside,
    hint,
    library_packages,
    may_launch,
    pins,
    titles,
    unread,
)
from orchestrator.audit.own_code import entry_at, is_of_another, with_modules, with_own_code
from orchestrator.audit.verdicts import WITHOUT_KL
from orchestrator.library.launches import (
    Launch,
    LaunchReading,
    UnreadableScript,
)

MOST_FINDINGS = 200
_SETS_A_KL = re.compile(
    r"""(?m)(?:^\s*["']?|[(,]\s*|\s--)(?:\w+\.)*"""
    r"""(beta|(?!target_)(?:\w+_)?kl(?:_(?:coef|coeff|beta|penalty|weight|loss)\w*)?)["']?\s*(?:[:=]|\s\d)"""
)
"""A place in YAML, Python or a command that sets the weight of a KL."""
_MAKES_A_TRAINER = re.compile(r"\b((?:GRPO|RLOO|PPO)Trainer|hydra\.utils\.instantiate)\(")
_COMMAND = re.compile(r"((?:\\\n|[^\n])+)")
_PROGRAM = re.compile(r"(?m)^[^#\n]*?\bpython3?\s+(?:-u\s+)?([\w./-]+\.py)\b")
NOTEBOOK, LARGEST_NOTEBOOK = ".ipynb", 64_000_000


def findings(
    text: str, name: str, files: Mapping[str, str], versions: Mapping[str, str]
) -> list[AuditFinding]:
    """Return the findings on a text; see orchestrator.audit.audit."""
    if not text.strip():
        raise UnreadableScript("this file is empty")
    text, of_python = script_of(text, name)
    if len(text) > LARGEST:
        raise UnreadableScript(
            f"this file has {len(text):,} characters; a launch script has at most {LARGEST:,}"
        )
    # Bytes that are no UTF-8 were read as the replacement character; a few of them are allowed.
    if "\x00" in text or text.count("\ufffd") > len(text) // 50 + 8:
        raise UnreadableScript("this file is binary, not a script")
    answers: list[AuditFinding] = []
    of_itself: list[AuditFinding] = []
    for launch, reading, is_use in readings(text, of_python, files, versions):
        program = with_own_code(launch, reading, (name, plain(text)))
        finding = _finding(program, reading, name)
        if finding.release_guessed:
            finding = replace(finding, hint=hint(plain(text), reading.library))
        (of_itself if is_use else answers).append(finding)
    # A file that tells how to run itself has the same launch twice: the command, and its call.
    known = {_outcome(each) for each in answers}
    merged = _merged(answers + [each for each in of_itself if _outcome(each) not in known])
    return merged[:MOST_FINDINGS]


def _no_launch(text: str, name: str, started: list[Launch], files: Mapping[str, str]) -> str:
    """Return why no launch is read in a text, with the place that looks most like one."""
    commands = [entry_at(each.words)[1] for each in started if each.words]
    named = [found_beside(each, files) for each in (*commands, *_PROGRAM.findall(text))]
    programs = (("", text), *((path, files.get(path, "")) for path in named))
    if other := next(filter(None, (unread(code) for _, code in programs)), ""):
        return f"this is {other}; orch does not read it (it reads {titles()})"
    if re.search(r"^studies:", text, re.MULTILINE):
        return f"this is a spec of orch and no script: orch plan {name}"
    modules = [pair for each in programs for pair in with_modules(*each, files)]
    own = (each for each in commands if each.partition("/")[0] in library_packages())
    hidden, made, unread_kl = (
        "has one that orch cannot read there",
        "calls {}, whose settings are made elsewhere",
        "sets what may be a KL ({}) for a program that orch does not read",
    )
    clues = (
        *(_clue(each, _starting(each[1], each[0] or name), hidden) for each in programs),
        _clue(("", text), _SETS_A_KL.finditer(text), unread_kl),
        *(_clue(each, _MAKES_A_TRAINER.finditer(each[1]), made) for each in modules),
        *(_clue(e, _SETS_A_KL.finditer(e[1]), unread_kl) for e in modules if "kl" in e[1].lower()),
        *(f"; it starts {each}, which orch does not read" for each in own),
    )
    return f"no launch of {titles()} was found in it{next(filter(None, clues), '')}"


def _clue(program: tuple[str, str], matches: Iterator[re.Match[str]], words: str) -> str:
    """Return the line of the first match in a program, with what it does in words; empty: none."""
    path, text = program
    for match in matches:
        line = text.count("\n", 0, match.start(1)) + 1
        return f"; line {line}{path and f' of {path}'} {words.format(match[1])}"
    return ""


def _starting(text: str, name: str) -> Iterator[re.Match[str]]:
    """Yield the commands in a file that start a launch, over one line or several; not those
    that are printed, nor those by which a Python file tells its use."""
    own = rf"(?<![\w-]){re.escape(Path(name).name)}\b" if name.endswith(".py") else "(?!)"
    printed = r"(?:echo|printf)\b(?:[^|>]|>&2|<[\w.-]+>)*\Z"
    unlike = rf"\s*(?:#|{printed})|.*?(?:pip install|\s(?:--help|-h)\b|{own})"
    for command in _COMMAND.finditer(text):
        line = command[1]
        if STARTS.search(line) and not re.match(unlike, line, re.DOTALL) and may_launch(line):
            yield command


def script_of(text: str, name: str) -> tuple[str, str]:
    """Return text and name of a script; of a notebook, those of the Python file of its cells."""
    return (notebook(text), f"{name}.py") if name.endswith(NOTEBOOK) else (text, name)


def readings(
    text: str, name: str, files: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[tuple[Launch, LaunchReading, bool]]:
    """Yield every launch of a text that a library recognises, with its reading; and True if it is
    a line by which the file tells its use. Raise UnreadableScript if it has none.

    versions: library -> release, which count more than those of the text.
    """
    text, name = script_of(text, name)
    started, text = [*filter(_trains, launches(text, name, files))], plain(text)
    releases = {**dict(pins(text)), **versions}
    none = True
    for launch in started[: 4 * MOST_FINDINGS]:
        if not (none or launch.words or name.endswith(".py")):
            break  # a document, whose scripts are launches
        if pair := _recognised(launch, text, files, releases):
            none, program = False, pair[0]
            own = program.words is launch.words and program.documents is not launch.documents
            yield *pair, own and runs_file(program.words, name)
    if none:
        raise UnreadableScript(_no_launch(text, name, started, files))


def _trains(launch: Launch) -> bool:
    """Return False for a command that asks a program for its help."""
    at, named = entry_at(launch.words)
    after = {word.text for word in launch.words[at + 1 :]}
    return "--help" not in after and not (named and "-h" in after)


def _recognised(
    launch: Launch, text: str, files: Mapping[str, str], releases: Mapping[str, str]
) -> tuple[Launch, LaunchReading] | None:
    """Return the first program in the Python file that a launch runs, or the launch itself, that a
    library recognises, with its reading; None if no library does."""
    own = files.of_own_folder() if isinstance(files, NeighbourFiles) else files
    for each in (*programs(launch, files, text), launch):
        program = replace(each, versions=releases, beside=files, in_folder=own)
        if reading := _reading(program):
            return program, reading
    return None


def _finding(launch: Launch, reading: LaunchReading, name: str) -> AuditFinding:
    """Return the finding on a launch, with the chosen change."""
    finding = judge(reading, launch, name)
    change = None
    if finding.problem or finding.verdict in WITHOUT_KL:

        def again(changed: Launch) -> AuditFinding | None:
            reading = _reading(changed)
            return None if reading is None else judge(reading, changed, name)

        change = chosen(finding, launch, again)
    return replace(
        finding,
        changes=() if change is None or not finding.problem else (change,),
        for_a_kl=change if not finding.problem else None,
        conditional=conditional(reading, launch, name) if reading.unknown else finding.conditional,
    )


def _reading(launch: Launch) -> LaunchReading | None:
    for library in plugins.readers():
        reading = plugins.load_reader(library).audit(launch)
        if reading is not None and not is_of_another(launch, reading.library):
            bounds = "" if reading.library in launch.versions else launch.bounds(reading.library)[1]
            because = "; ".join(filter(None, (bounds, reading.version_because)))
            return replace(reading, version_because=because)
    return None


def _outcome(finding: AuditFinding) -> object:
    """Return what a launch does, without its place in the file."""
    return (
        finding.library,
        finding.version,
        finding.in_reward,
        finding.in_loss,
        finding.verdict,
        finding.rollout_kl,
        finding.advantage_estimator,
        finding.regime,
        finding.effects,
        finding.conditional,
        frozenset(replace(each, lines=()) for each in finding.key_findings),
    )


def _merged(findings_: Sequence[AuditFinding]) -> list[AuditFinding]:
    """Return one finding for all cases of one command that have the same result."""
    groups: dict[object, list[AuditFinding]] = {}
    for each in findings_:
        core = (each.line, each.entry_point, _outcome(each), each.key_findings)
        groups.setdefault(core, []).append(each)
    per_line = Counter(group[0].line for group in groups.values())
    merged = []
    for first, *more in groups.values():
        is_one = per_line[first.line] == 1
        case = None if is_one and more else first.case
        if case and more:
            case += f" (and {len(more)} more case{'s' if len(more) > 1 else ''})"
        merged.append(replace(first, case=case))
    return sorted(merged, key=lambda each: each.line)


STDIN = Path("-")
"""The name of standard input."""
_SUFFIXES = {NOTEBOOK, ".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py"}
_SKIPPED = {".git", "node_modules", "__pycache__", ".venv", "venv", "site-packages"}


def launch_files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each file to audit; and True if it was named, False if it was found in a folder."""
    for path in paths:
        if path == STDIN or not path.is_dir():
            yield path, True
            continue
        for each in sorted(path.rglob("*")):
            if each.suffix in _SUFFIXES and not _SKIPPED & set(each.parts) and each.is_file():
                yield each, False


def audit_file(
    path: Path, versions: Mapping[str, str], projects: Projects
) -> tuple[str, list[AuditFinding]]:
    """Return the text of a file and its findings. Raise UnreadableScript, with a sentence.

    versions: library -> release, which count more than those that the files around show.
    """
    text = _read(path)
    try:
        around, files = projects.versions(path), NeighbourFiles(path, projects)
        return text, findings(text, str(path), files, {**around, **versions})
    except UnreadableScript:
        raise
    except Exception as error:  # a fault of the reader costs this file, not the whole folder
        raise UnreadableScript(
            f"orch failed to read it ({type(error).__name__}: {error}); please report the file"
        ) from error


def _read(path: Path) -> str:
    """Return the text of a file or of standard input. Raise UnreadableScript."""
    # Bytes of a character in UTF-8: 1 to 4. A notebook may hold pictures, which are not read.
    most = LARGEST_NOTEBOOK if path.suffix == NOTEBOOK else 4 * LARGEST
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(most + 1)
        elif path.exists() and not path.is_file():
            raise UnreadableScript("this is not a file")
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
    except OSError as error:
        raise UnreadableScript(f"it cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise UnreadableScript(
            f"this file has over {most:,} bytes; a launch script has at most {LARGEST:,} characters"
        )
    return data.decode("utf-8", "replace")
