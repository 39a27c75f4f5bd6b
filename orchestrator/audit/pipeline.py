"""Turn a text into its launches, and the launches into findings; and read the files of an audit.

The files are those that a person names, and those of a folder that may launch.
"""

import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from orchestrator import plugins
from orchestrator.audit.bash.script import launches as shell_launches
from orchestrator.audit.bash.syntax import Budget
from orchestrator.audit.documents import (
    container_scripts,
    scalars,
    toml_document,
    yaml_document,
    yaml_node,
    yaml_nodes,
)
from orchestrator.audit.fix import WITHOUT_KL, chosen, conditional
from orchestrator.audit.judge import AuditFinding, judge
from orchestrator.audit.libraries import (
    NeighbourFiles,
    Projects,
    may_configure,
    may_launch,
    pins,
    titles,
    unread,
)
from orchestrator.audit.python import HOLE, PUT_IN, as_module, read_python
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    CarriageReturn,
    CommandWord,
    ConfigDocument,
    Launch,
    LaunchReading,
    UnreadableScript,
)

LARGEST = 200_000
"""Maximum number of characters. The largest launch script among those collected has 60,000."""
MOST_FINDINGS = 200
MOST_SCRIPTS = 200
_HYDRA_MAIN = re.compile(r"@hydra\.main\(([^()]{0,400})\)")
_HYDRA_ARGUMENT = re.compile(r"""(config_path|config_name)\s*=\s*["']([^"']*)["']""")
_YAML_FIRST = re.compile(r"[A-Za-z_][\w.-]*:(?:\s|$)|- ")


def findings(
    text: str, name: str, files: Mapping[str, str], versions: Mapping[str, str]
) -> list[AuditFinding]:
    """Return the findings on a text; see orchestrator.audit.audit."""
    if not text.strip():
        raise UnreadableScript("this file is empty")
    if len(text) > LARGEST:
        raise UnreadableScript(
            f"this file has {len(text):,} characters; a launch script has at most {LARGEST:,}"
        )
    # Bytes that are no UTF-8 were read as the replacement character; a few of them are allowed.
    if "\x00" in text or text.count("\ufffd") > len(text) // 50 + 8:
        raise UnreadableScript("this file is binary, not a script")
    followed = _followed(_launches(text, name, files))
    text = _plain(text)
    releases = dict(pins(text)) | dict(versions)
    own = files.of_own_folder() if isinstance(files, NeighbourFiles) else files
    answers: list[AuditFinding] = []
    of_itself: list[AuditFinding] = []
    for launch in followed[: 4 * MOST_FINDINGS]:
        for each in (launch, *programs(launch, files, text)):
            finding = _judged(replace(each, versions=releases, beside=files, in_folder=own), name)
            if finding is not None:
                is_own = each is not launch and _runs(each.words, name)
                (of_itself if is_own else answers).append(finding)
                break
    # A file that tells how to run itself has the same launch twice: the command, and its call.
    known = {_outcome(each) for each in answers}
    merged = _merged(answers + [each for each in of_itself if _outcome(each) not in known])
    if not merged and (other := unread(text)):
        raise UnreadableScript(f"this is {other}; orch does not read it (it reads {titles()})")
    if not merged and re.search(r"^studies:", text, re.MULTILINE):
        raise UnreadableScript(f"this is a spec of orch and no script: orch plan {name}")
    if not merged:
        raise UnreadableScript(
            f"no launch of {titles()} was found in it"
            + (" (other commands were)" if followed else "")
        )
    return merged[:MOST_FINDINGS]


def launches(text: str, name: str, files: Mapping[str, str]) -> list[Launch]:
    """Return every program that a text starts, whether or not a library recognises it.

    Raise UnreadableScript if the text cannot be read.
    """
    return _followed(_launches(text, name, files))


def readings(
    text: str, name: str, files: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[tuple[Launch, LaunchReading]]:
    """Yield every launch of a text that a library recognises, with its reading.

    versions: library -> release, which count more than those of the text.
    """
    releases = dict(pins(text)) | dict(versions)
    for launch in launches(text, name, files):
        for each in (launch, *programs(launch, files, text)):
            reading = _reading(replace(each, versions=releases, beside=files))
            if reading is not None:
                yield each, reading
                break


def programs(launch: Launch, files: Mapping[str, str], audited: str = "") -> Iterator[Launch]:
    """Yield a command as the configurations that the Python file creates which it runs.

    Nothing for a file that is not at hand, or that creates no trainer's configuration. The last
    document of each launch is the configuration (`call`). audited: the text of the audited file;
    only its lines are kept.
    """
    at = next((i for i, word in enumerate(launch.words) if word.text.endswith(".py")), None)
    text = None if at is None else files.get(launch.words[at].text)
    if at is None or text is None or len(text) > LARGEST or not may_configure(text):
        return
    try:
        program = read_python(text, launch.words[at].text, _options(launch.words[at + 1 :]))
    except UnreadableScript:
        return
    for _, document in program.documents:
        if document.kind == "call":
            shown = document if text == audited else _elsewhere(document)
            documents = (*launch.documents, shown)
            yield replace(launch, documents=documents, names=program.names)


def _options(words: Sequence[CommandWord]) -> dict[str, str]:
    """Return option -> value of a program's arguments: `--a b`, `--a=b`, `--switch`."""
    options: dict[str, str] = {}
    for word, following in zip_longest(words, words[1:]):
        if word is not None and word.text.startswith("--"):
            key, equals, value = word.text[2:].partition("=")
            if not equals:
                alone = following is None or following.text.startswith("--")
                value = "True" if alone else following.text
            options[key.replace("-", "_")] = value.replace(UNSET, UNKNOWN)
    return options


def judged(launch: Launch, name: str, library: str) -> AuditFinding | None:
    """Return the finding on a launch, or None if this library does not recognise the launch."""
    reading = plugins.load_reader(library).audit(launch)
    return None if reading is None else judge(reading, launch, name)


def _followed(started: Iterator[Launch]) -> list[Launch]:
    """Return the launches that are read before reading fails.

    Raise UnreadableScript if reading fails before the first launch.
    """
    launches: list[Launch] = []
    try:
        for launch in started:
            launches.append(launch)  # noqa: PERF402 - what came before an error is kept
    except UnreadableScript as error:
        if not launches:
            raise
        note = f"what came before was looked at: {error}"
        launches = [replace(each, caveats=(*each.caveats, note)) for each in launches]
    return launches


def _judged(launch: Launch, name: str) -> AuditFinding | None:
    """Return the finding on a launch with the chosen change, or None if no library reads it."""
    reading = _reading(launch)
    if reading is None:
        return None
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
        if reading is not None:
            return reading
    return None


def _plain(text: str) -> str:
    """Return a text with line ends of Unix, without a byte order mark and the reader's marks."""
    return text.replace("\r\n", "\n").lstrip("\ufeff").replace("\x01", "")


def _carriage_return(text: str) -> CarriageReturn | None:
    """Return the carriage returns that bash would take for text; None if none is in a command."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith("\r") and line.strip() and not line.lstrip().startswith("#"):
            return CarriageReturn(number, "\\\r\n" in text)
    return None


def _launches(text: str, name: str, files: Mapping[str, str]) -> Iterator[Launch]:
    carriage_return, text = _carriage_return(text), _plain(text)
    suffix = name.rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""
    if suffix == "toml" or (not suffix and _starts_as_toml(text)):
        yield _alone(_toml(toml_document(text, name), files))
        return
    if suffix in ("yaml", "yml") or (
        suffix not in ("sh", "bash", "slurm", "sbatch", "py")
        and _starts_as_yaml(text)
        and "#!" not in text[:2]
    ):
        yield from _of_yaml(text, name, files)
        return
    if suffix == "py":
        yield from _of_python(text, name, files)
        return
    for launch in _shell(text, files, 1, {}, Budget()):
        yield replace(launch, carriage_return=carriage_return)


def _starts_as_toml(text: str) -> bool:
    """Return True if a text has a section header of TOML and can be parsed as TOML."""
    if re.search(r"(?m)^\[\[?[\w.-]+\]\]?[ \t]*(#.*)?$", text) is None:
        return False
    try:
        return bool(toml_document(text, "").values)
    except UnreadableScript:
        return False


def _starts_as_yaml(text: str) -> bool:
    """Return True if the first line with content is a line of YAML."""
    for line in text.splitlines()[:500]:
        stripped = line.strip()
        if stripped and stripped != "---" and not stripped.startswith("#"):
            return _YAML_FIRST.match(stripped) is not None
    return False


def _shell(
    text: str,
    files: Mapping[str, str],
    first_line: int,
    environment: Mapping[str, str],
    budget: Budget,
    unknown: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Launch]:
    launches, written = shell_launches(
        text,
        first_line=first_line,
        environment=environment,
        unknown=unknown,
        files=files,
        budget=budget,
    )
    for launch in launches:
        module = as_module(launch.words)
        if module is not None:
            launch = replace(launch, words=module)
        launch = _configured(launch, {**written} if written else {}, files)
        own_programs = list(programs(launch, written))  # those that the script writes itself
        yield from own_programs or [launch]


def _configured(launch: Launch, written: Mapping[str, str], files: Mapping[str, str]) -> Launch:
    """Return the launch with the configuration files that its command names.

    `missing` lists the TOML files that cannot be read. `written`: texts of files that the script
    writes, by path.
    """
    documents: list[ConfigDocument] = []
    missing: list[str] = []
    paths = list(_named(launch.words)) or list(_of_entry(launch.words, files))
    for path in paths:
        text = written.get(path) or files.get(path)
        if text is None:
            missing.append(path)
            continue
        try:
            if path.endswith(".toml"):
                documents += _toml(toml_document(text, path), files)
            else:
                built = _built(yaml_document(yaml_node(text), path), files)
                documents += built
                missing += _without_file(built)
        except UnreadableScript:
            missing.append(path)
    lines = tuple(_elsewhere(each) for each in documents)
    shown = [m for m in missing if m.endswith(".toml") or m not in paths]
    return replace(launch, documents=lines, missing=tuple(dict.fromkeys(shown)))


def _without_file(documents: Sequence[ConfigDocument]) -> Iterator[str]:
    """Yield the whole configurations that these documents build on and that are not among them."""
    read = {document.name.removesuffix(".yaml") for document in documents}
    for document in documents:
        for base in document.builds_on:
            whole = "/" not in base and not base.endswith((".yaml", ".yml"))
            if whole and not any(name == base or name.endswith(f"/{base}") for name in read):
                yield base


def _of_entry(words: Sequence[CommandWord], files: Mapping[str, str]) -> Iterator[str]:
    """Yield the configuration of the Python file that a command runs: its `@hydra.main(...)`."""
    for word in words:
        text = files.get(word.text) if word.text.endswith(".py") else None
        match = _HYDRA_MAIN.search(text) if text is not None else None
        if match is None:
            continue
        named = {each[1]: each[2] for each in _HYDRA_ARGUMENT.finditer(match[1])}
        if "config_name" in named:
            folder = posixpath.join(posixpath.dirname(word.text), named.get("config_path", ""))
            name = named["config_name"].removesuffix(".yaml")
            yield posixpath.normpath(posixpath.join(folder, f"{name}.yaml"))
        return


def _elsewhere(document: ConfigDocument) -> ConfigDocument:
    """Return a document without line numbers: they count in another file than the audited one."""
    return replace(document, values={k: replace(g, lines=()) for k, g in document.values.items()})


def _named(words: Sequence[CommandWord]) -> Iterator[str]:
    """Yield the paths of the configuration files that a command names.

    These are TOML files after `@`, Hydra's --config-name in --config-path, `config=FILE` and
    `--config FILE`.
    """
    folder = name = ""
    for i, word in enumerate(words):
        following = words[i + 1].text if i + 1 < len(words) else ""
        if word.text == "@" and following:
            yield following
        elif word.text.startswith("@") and word.text.endswith(".toml"):
            yield word.text[1:]
        key, _, value = word.text.partition("=")
        if key in ("--config-path", "--config_path", "--config-dir", "-cd", "-cp"):
            folder = (value or following).strip("'\"")
        elif key == "config" and value.endswith((".yaml", ".yml")):
            yield value
        elif key == "--config" and (value or following).endswith((".yaml", ".yml")):
            yield value or following
        elif key in ("--config-name", "--config_name", "-cn"):
            name = (value or following).strip("'\"").removesuffix(".yaml")
    if name:
        yield f"{folder or 'config'}/{name}.yaml"


def _alone(documents: Sequence[ConfigDocument]) -> Launch:
    """Return the launch of a configuration file without a command.

    The last document is the file itself. The documents before it are the files it builds on.
    """
    missing = list(documents[-1].builds_on) if len(documents) == 1 else []
    others = [_elsewhere(each) for each in documents[:-1]]
    return Launch(documents=(*others, documents[-1]), missing=tuple(missing))


def _toml(
    document: ConfigDocument, files: Mapping[str, str], depth: int = 0
) -> list[ConfigDocument]:
    """Return the files that a TOML file builds on, followed by the file itself."""
    documents: list[ConfigDocument] = []
    for path in document.builds_on:
        text = files.get(path)
        if text is not None and depth < 5:
            documents += _toml(toml_document(text, path), files, depth + 1)
    return [*documents, document]


def _built(
    document: ConfigDocument, files: Mapping[str, str], depth: int = 0
) -> list[ConfigDocument]:
    """Return the configurations in a YAML file's defaults list, followed by the file itself.

    A default is either a Hydra group, found from the folder of the file or one above it, or a file
    (`../base.yaml`), found from the folder of the file that names it.
    """
    documents: list[ConfigDocument] = []
    for base in document.builds_on:
        folder = posixpath.dirname(document.name)
        paths = [posixpath.join(each, f"{base}.yaml") for each in (*_with_above(folder), "")]
        if base.endswith((".yaml", ".yml")):
            paths = [posixpath.normpath(posixpath.join(folder, base))]
        path = next((each for each in paths if files.get(each) is not None), paths[0])
        text = files.get(path) if path != document.name else None
        if text is not None and depth < 5:
            documents += _built(yaml_document(yaml_node(text), path), files, depth + 1)
    return [*documents, document]


def _with_above(folder: str) -> Iterator[str]:
    """Yield a relative folder and the folders above it, the deepest first."""
    while folder and folder != "/":
        yield folder
        folder = posixpath.dirname(folder)


def _of_yaml(text: str, name: str, files: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the launches of the scripts and containers inside a YAML file.

    If there are none, yield the first document itself as a configuration.
    """
    nodes = yaml_nodes(text)
    budget = Budget()
    launches: list[Launch] = []
    for node in nodes:
        for container in container_scripts(node):
            if may_launch(container.text):
                launches += _shell(
                    container.text,
                    files,
                    container.first_line,
                    container.environment,
                    budget,
                    container.unknown,
                )
        environment: dict[str, str] = {}
        scripts: list[tuple[str, int]] = []
        for path, scalar in scalars(node):
            head, _, rest = path.partition(".")
            if head in ("envs", "env", "environment") and rest:
                environment[rest] = scalar.value
            elif re.search(r"\s", scalar.value) and may_launch(scalar.value):
                # Marks count lines from 0, and the text of a block begins in the line after its
                # `|`.
                block = 2 if scalar.style in ("|", ">") else 1
                scripts.append((scalar.value, scalar.start_mark.line + block))
        if len(scripts) > MOST_SCRIPTS:
            raise UnreadableScript(f"this YAML holds more than {MOST_SCRIPTS} scripts")
        # A container's script is among the scalars too, and is read once.
        read = {launch.line for launch in launches}
        for script, line in scripts:
            if read.isdisjoint(range(line, line + script.count("\n") + 1)):
                launches += _shell(script, files, line, environment, budget)
    yield from launches
    if not launches and nodes:
        # `files` are looked up from the file's folder, so the document has no folder in its name.
        alone = yaml_document(nodes[0], name.rpartition("/")[2])
        *bases, _ = _built(alone, files)
        yield _alone([*bases, replace(alone, name=name)])


def _of_python(text: str, name: str, files: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the launches in a Python file: commands in strings and lists, and configurations."""
    program, budget, own = read_python(text, name), Budget(), posixpath.basename(name)
    unknown = {name: f"${name}, which Python sets" for name in program.environment}
    for line, command_text in program.texts:
        for launch in _shell(command_text, files, line, {}, budget, {**unknown, HOLE: PUT_IN}):
            yield replace(launch, names=program.names) if _runs(launch.words, own) else launch
    for command in program.commands:
        caveats = (f"{command.open_end}: none of them changes the KL",) if command.open_end else ()
        launch = Launch(
            command.words, line=command.line, open_end=command.open_end, caveats=caveats
        )
        yield _configured(launch, {}, files)
    for line, document in program.documents:
        yield Launch(documents=(document,), line=line, names=program.names)


def _runs(words: Sequence[CommandWord], name: str) -> bool:
    """Return True if a command names the file of this name, in any folder."""
    own = posixpath.basename(name)
    return any(posixpath.basename(word.text) == own for word in words)


def _outcome(finding: AuditFinding) -> object:
    """Return what a launch does, without its place in the file."""
    return (
        finding.library,
        finding.version,
        finding.kl_in_reward,
        finding.kl_in_loss,
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
    lines: dict[int, int] = {}
    for group in groups.values():
        lines[group[0].line] = lines.get(group[0].line, 0) + 1
    merged = []
    for group in groups.values():
        first = next((each for each in group if each.usual), group[0])
        case = first.case if lines[first.line] > 1 or len(group) == 1 else None
        more = len(group) - 1
        if case and more and lines[first.line] > 1:
            case += f" (and {more} more case{'s' if more > 1 else ''})"
        merged.append(replace(first, case=case, usual=any(each.usual for each in group)))
    return sorted(merged, key=lambda each: each.line)


STDIN = Path("-")
"""The name of standard input."""
_SUFFIXES = {".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py"}
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
    most = 4 * LARGEST  # bytes of a character in UTF-8: 1 to 4
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(most + 1)
            size = len(data)
        elif path.exists() and not path.is_file():
            raise UnreadableScript("this is not a file")
        else:
            size = path.stat().st_size
            data = path.read_bytes() if size <= most else b""
    except OSError as error:
        raise UnreadableScript(f"it cannot be read: {error.strerror}") from None
    if size > most:
        raise UnreadableScript(
            f"this file has {size:,} bytes; a launch script has at most {LARGEST:,} characters"
        )
    return data.decode("utf-8", "replace")
