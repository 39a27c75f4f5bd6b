"""Turn a text into launches: every program that it starts, with the configurations it names.

A text is a shell script, a Python file, or a YAML or TOML document. Nothing of it runs.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from types import MappingProxyType

from orchestrator.audit.bash.script import launches as shell_launches
from orchestrator.audit.bash.syntax import Budget
from orchestrator.audit.documents import (
    scalars,
    toml_document,
    with_its_bases,
    yaml_document,
    yaml_node,
    yaml_nodes,
)
from orchestrator.audit.libraries import (
    NeighbourFiles,
    found_beside,
    library_packages,
    may_launch,
)
from orchestrator.audit.own_code import entry_at, trainer_beside
from orchestrator.audit.python import HOLE, read_python
from orchestrator.audit.python_values import PUT_IN
from orchestrator.audit.reading import as_number, hydra_overrides
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    CarriageReturn,
    CommandWord,
    ConfigDocument,
    Given,
    Launch,
    UnreadableScript,
)

LARGEST = 200_000
"""Maximum number of characters. The largest launch script among those collected has 60,000."""
MOST_SCRIPTS = 200
MOST_FILES = 8
"""Maximum number of configurations that a launch is read with, where it does not say which."""
_OF_A_KL = re.compile(r"(?m)^\s*(?:beta|\w*kl\w*|loss_fn|num_generations)\s*:")
_RUNS = re.compile(
    r"(?m)^(?:if __name__\b|(?!print\b)\w+\(|[\w.]+\.(?:train|run|exit|main|Fire|\w+Trainer)\()"
)
"""A line that shows that a Python file is a program."""
_HYDRA_MAIN = re.compile(r"@hydra\.main\(([^()]{0,400})\)")
_HYDRA_ARGUMENT = re.compile(r"""(config_path|config_name)\s*=\s*["']([^"']*)["']""")
_YAML_FIRST = re.compile(r"[A-Za-z_][\w.-]*:(?:\s|$)|- ")


def launches(text: str, name: str, files: Mapping[str, str]) -> list[Launch]:
    """Return every program that a text starts, whether or not a library recognises it.

    Return the launches that are read before reading fails. Raise UnreadableScript if it fails
    before the first one.
    """
    started: list[Launch] = []
    try:
        for launch in _launches(text, name, files):
            started.append(launch)  # noqa: PERF402 - what came before an error is kept
    except UnreadableScript as error:
        if not started:
            raise
        note = f"what came before was looked at: {error}"
        started = [replace(each, caveats=(*each.caveats, note)) for each in started]
    return started


def plain(text: str) -> str:
    """Return a text with line ends of Unix, without a byte order mark and the reader's marks."""
    return text.replace("\r\n", "\n").lstrip("\ufeff").replace("\x01", "")


def _carriage_return(text: str) -> CarriageReturn | None:
    """Return the carriage returns that bash would take for text; None if none is in a command."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith("\r") and line.strip() and not line.lstrip().startswith("#"):
            return CarriageReturn(number, "\\\r\n" in text)
    return None


def _launches(text: str, name: str, files: Mapping[str, str]) -> Iterator[Launch]:
    carriage_return, text = _carriage_return(text), plain(text)
    suffix = name.rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""
    if suffix == "toml" or (not suffix and _starts_as_toml(text)):
        yield _alone(with_its_bases(toml_document(text, name), files))
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


def _of_yaml(text: str, name: str, files: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the launches of scripts inside a YAML file, then its first document as settings."""
    nodes = yaml_nodes(text)
    budget = Budget()
    launches: list[Launch] = []
    for node in nodes:
        environment, unknown = dict[str, str](), dict[str, str]()
        scripts: list[tuple[str, int]] = []
        for path, scalar in scalars(node):
            head, _, rest = path.partition(".")
            if path.endswith(".name"):  # of Kubernetes: a name and a value
                unknown[scalar.value] = f"${scalar.value}, which a container may have"
            elif head in ("envs", "env", "environment") and rest:
                environment[rest] = scalar.value
            elif re.search(r"\s", scalar.value) and may_launch(scalar.value):
                # Marks count lines from 0, and the text of a block begins in the line after its
                # `|`.
                block = 2 if scalar.style in ("|", ">") else 1
                scripts.append((scalar.value, scalar.start_mark.line + block))
        if len(scripts) > MOST_SCRIPTS:
            raise UnreadableScript(f"this YAML holds more than {MOST_SCRIPTS} scripts")
        for script, line in scripts:
            launches += _shell(script, files, line, environment, budget, unknown)
    yield from launches
    if nodes:
        # `files` are looked up from the file's folder, so the document has no folder in its name.
        alone = yaml_document(nodes[0], name.rpartition("/")[2])
        *bases, _ = with_its_bases(alone, files)
        yield _alone([*bases, replace(alone, name=name)])


def _of_python(text: str, name: str, files: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the launches in a Python file: commands in strings and lists, and configurations."""
    own = posixpath.basename(name)
    configuration = _of_hydra(text, own, files)
    program, budget = read_python(text, own, configuration=configuration, files=files), Budget()
    is_hydra = _HYDRA_MAIN.search(text) and may_launch(text)
    imports_one = _RUNS.search(text) and trainer_beside(own, text, files) not in ("", own)
    itself = not (program.commands or program.documents) and (is_hydra or imports_one)
    unknown = {name: f"${name}, which Python sets" for name in program.environment}
    for line, command_text in program.texts:
        for launch in _shell(command_text, files, line, {}, budget, {**unknown, HOLE: PUT_IN}):
            if line in program.usage and (itself or not runs_file(launch.words, own)):
                continue  # a docstring tells how other programs are run, or this one
            itself = False
            if (
                configuration
                and not launch.documents
                and any(UNKNOWN in each for each in _named(launch.words))
            ):
                # The file hands what @hydra.main gives it to the program, in a file that it makes.
                made = ConfigDocument(hydra_file(text, own), configuration)
                launch = replace(launch, documents=(made,))
            launch = replace(launch, placeholder=None) if line in program.usage else launch
            names = program.names if runs_file(launch.words, own) else launch.names
            yield replace(launch, names=names, caveats=(*launch.caveats, *program.assumes))
    for command in program.commands:
        why, caveats = command.open_end, program.assumes
        if why:
            caveats = (*caveats, f"{why}: none of them changes the KL")
        launch = Launch(command.words, line=command.line, open_end=why, caveats=caveats)
        yield _configured(launch, {}, files)
    for line, document in program.documents:
        yield Launch((), (document,), line=line, names=program.names, caveats=program.assumes)
    if itself:
        yield _configured(Launch((CommandWord(own),), names=program.names), {}, files)


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
        launch = _configured(launch, {**written} if written else {}, files)
        own_programs = list(programs(launch, written))  # those that the script writes itself
        yield from own_programs or _with_each_file(launch, files) or [launch]


def _with_each_file(launch: Launch, files: Mapping[str, str]) -> list[Launch]:
    """Return a launch whose configuration is an argument once for each file that lies beside it and
    has settings of a KL; empty for another launch."""
    pairs = enumerate(pairwise(word.text for word in launch.words), 1)
    names_file = (".py", "--config")
    opened = (UNSET, UNKNOWN)
    at = next((i for i, (a, b) in pairs if b in opened and a.endswith(names_file)), 0)
    if not at or launch.documents or not isinstance(files, NeighbourFiles):
        return []
    given = []
    word = launch.words[at]
    for name in files.named(".yaml", ".yml")[:MOST_FILES]:
        if _OF_A_KL.search(files.get(name) or ""):
            named = replace(word, text=name, why=())
            own = replace(
                launch,
                words=(*launch.words[:at], named, *launch.words[at + 1 :]),
                case=", ".join(filter(None, (launch.case, f"its file is {name}"))),
                caveats=(*launch.caveats, f"{word.why[0]} is one of the files beside it"),
            )
            given.append(_configured(own, {}, files))
    return given


def programs(launch: Launch, files: Mapping[str, str], audited: str = "") -> Iterator[Launch]:
    """Yield a command as the configurations that the Python file creates which it runs, or the one
    module beside that it imports; else as the one command that the file starts.

    Nothing for a file that is not at hand, or that does neither. The last document of each launch
    is the configuration (`call`). audited: the text of the audited file; only its lines are kept.
    """
    at, named = entry_at(launch.words)
    entry = found_beside(named, files)
    path = trainer_beside(entry, files.get(entry, ""), files)
    text = files.get(path, "")
    if not text or len(text) > LARGEST:
        yield from _started(launch, entry, launch.words[at + 1 :], files)
        return
    if entry != launch.words[at].text:
        is_module = at > 0 and launch.words[at - 1].text in ("-m", "--module")
        words = (*launch.words[: at - is_module], replace(launch.words[at], text=entry))
        launch = replace(launch, words=(*words, *launch.words[at + 1 :]))
        at -= is_module
        if named.endswith(f"/{entry}") and "/" not in entry.removeprefix("./"):
            taken = f"{named.replace(UNKNOWN, '…').replace(UNSET, '')} is {entry} beside it"
            launch = replace(launch, caveats=(*launch.caveats, taken))
    try:
        words = launch.words[at + 1 :]
        configuration = dict(_of_hydra(text, path, files, words))
        for key, given in hydra_overrides(words):
            configuration |= {key: given} if key in configuration or given.mark else {}
        program = read_python(text, path, _options(words), configuration, files)
        names = read_python(files[entry], entry, files=files).names if path != entry else ()
    except UnreadableScript:
        return
    launch = replace(launch, caveats=(*launch.caveats, *program.assumes))
    caveats = (*launch.caveats, f"{entry} trains as {path} does, which it imports")
    calls = [each for _, each in program.documents if each.kind == "call"]
    acting = [each for each in calls if id(each) not in program.idle]
    for document in acting if calls else [each for _, each in program.parsed]:
        shown = document if text == audited else _elsewhere(document, path)
        own = replace(launch, documents=(*launch.documents, shown), names=program.names)
        other = replace(own, names=(*names, *program.names), caveats=caveats)
        yield own if path == entry else other


def _started(
    launch: Launch, entry: str, words: Sequence[CommandWord], files: Mapping[str, str]
) -> Iterator[Launch]:
    """Yield the one command that a Python file starts, with the arguments that a launch gives."""
    text = files.get(entry, "")
    if entry.partition("/")[0] in library_packages() or not may_launch(text):
        return
    try:
        program = read_python(text, entry, _options(words), files=files)
    except UnreadableScript:
        return
    for each in program.commands if len(program.commands) == 1 else ():
        own = tuple(replace(word, lines=(), file=entry) for word in each.words)
        caveats = (*launch.caveats, f"{entry} beside it starts the command", *program.assumes)
        called = replace(launch, words=own, open_end=each.open_end, caveats=caveats)
        yield _configured(called, {}, files)


def _options(words: Sequence[CommandWord]) -> dict[str, str]:
    """Return option -> value of a program's arguments: `--a b`, `--a=b`, `--switch`; and each
    word as `sys.argv[1]`, up to one that may be several."""
    texts = [*takewhile(lambda text: text != UNKNOWN, (word.text for word in words))]
    options = {f"sys.argv[{at}]": text.replace(UNSET, UNKNOWN) for at, text in enumerate(texts, 1)}
    for at, word in enumerate(words, 1):
        if word.text.startswith("--"):
            key, equals, value = word.text[2:].partition("=")
            after = (each.text for each in words[at:])
            values = [*takewhile(lambda text: not text.startswith("--"), after)]
            if not equals:
                is_list = len(values) > 1 and None not in map(as_number, values)
                value = f"[{', '.join(values)}]" if is_list else [*values, "True"][0]
            options[key.replace("-", "_")] = value.replace(UNSET, UNKNOWN)
    return options


def _configured(launch: Launch, written: Mapping[str, str], files: Mapping[str, str]) -> Launch:
    """Return the launch with the configuration files that its command names.

    `missing` lists the TOML files that cannot be read. `written`: texts of files that the script
    writes, by path.
    """
    documents: list[ConfigDocument] = []
    missing: list[str] = []
    caveats: list[str] = []
    paths = list(_named(launch.words)) or list(_of_entry(launch.words, files))
    folder = files.of_own_folder() if isinstance(files, NeighbourFiles) else files
    for named in paths:
        alone = named.removeprefix(f"{UNKNOWN}/")
        at_hand = found_beside(named, files) or (alone if alone in folder else named)
        path = named if named in written else at_hand
        text = written.get(path) or files.get(path)
        if path != named:
            shown_path = named.replace(UNKNOWN, "…").replace(UNSET, "")
            caveats.append(f"{path} beside it is the file that {shown_path} names")
        if text is None:
            missing.append(path)
            continue
        try:
            if path.endswith(".toml"):
                documents += with_its_bases(toml_document(text, path), files)
            else:
                built = _composed(text, path, launch.words, files)
                documents += built
                missing += _without_file(built)
        except UnreadableScript:
            missing.append(path)
    lines = tuple(_elsewhere(each) for each in documents)
    shown = [m for m in missing if m.endswith(".toml") or m not in paths]
    return replace(
        launch,
        documents=lines,
        missing=tuple(dict.fromkeys(shown)),
        caveats=(*launch.caveats, *caveats),
    )


def _without_file(documents: Sequence[ConfigDocument]) -> Iterator[str]:
    """Yield the whole configurations that these documents build on and that are not among them."""
    read = {document.name.removesuffix(".yaml") for document in documents}
    for document in documents:
        for base in (each.partition("@")[0] for each in document.builds_on):
            whole = "/" not in base and not base.endswith((".yaml", ".yml"))
            if whole and not any(name == base or name.endswith(f"/{base}") for name in read):
                yield base


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
        elif word.text.endswith(".py") and following.endswith((".yaml", ".yml")):
            yield following
        elif key == "--config" and (value or following).endswith((".yaml", ".yml")):
            yield value or following
        elif key in ("--config-name", "--config_name", "-cn"):
            name = (value or following).strip("'\"").removesuffix(".yaml")
    if name:
        yield f"{folder or 'config'}/{name}.yaml"


def _of_entry(words: Sequence[CommandWord], files: Mapping[str, str]) -> Iterator[str]:
    """Yield the configuration of the Python file that a command runs: its `@hydra.main(...)`."""
    module = entry_at(words)[1]
    paths = [word.text for word in words if word.text.endswith(".py")]
    paths += [module] if module.partition("/")[0] not in library_packages() else []
    found = (hydra_file(files.get(path) or "", path) for path in paths)
    yield from filter(None, [next(filter(None, found), "")])


def hydra_file(text: str, path: str) -> str:
    """Return the configuration that the `@hydra.main(...)` of a file names; empty: none."""
    match = _HYDRA_MAIN.search(text)
    named = {each[1]: each[2] for each in _HYDRA_ARGUMENT.finditer(match[1] if match else "")}
    if "config_name" not in named:
        return ""
    folder = posixpath.join(posixpath.dirname(path), named.get("config_path", ""))
    name = named["config_name"].removesuffix(".yaml")
    return posixpath.normpath(posixpath.join(folder, f"{name}.yaml"))


def _of_hydra(
    text: str, path: str, files: Mapping[str, str], words: Sequence[CommandWord] = ()
) -> Mapping[str, Given]:
    """Return the dotted keys of that configuration and of what it builds on; none if unreadable."""
    file = hydra_file(text, path)
    if not file or (own := files.get(file)) is None:
        return {}
    try:
        documents = _composed(own, file, words, files)
    except UnreadableScript:
        return {}
    return {
        key: replace(given, lines=(), file=document.name)
        for document in documents
        for key, given in document.values.items()
    }


def _composed(
    text: str, path: str, words: Sequence[CommandWord], files: Mapping[str, str]
) -> list[ConfigDocument]:
    """Return the files that a YAML configuration builds on, itself, and those of the groups that a
    command's words choose (`group=name`)."""
    whole, folder = yaml_document(yaml_node(text), path), posixpath.dirname(path)
    chosen = {
        group: f"{group}/{given.text}"
        for group, given in hydra_overrides(words)
        if posixpath.join(folder, group, f"{given.text}.yaml") in files
    }
    kept = (each for each in whole.builds_on if posixpath.dirname(each) not in chosen)
    added = replace(whole, values={}, builds_on=tuple(chosen.values()))
    documents = with_its_bases(replace(whole, builds_on=tuple(kept)), files)
    return documents + with_its_bases(added, files)[:-1]


def _elsewhere(document: ConfigDocument, path: str = "") -> ConfigDocument:
    """Return a document with its file in place of line numbers, which count in that file."""
    file = path or document.name
    values, defaults, on_trainer = (
        {key: replace(g, lines=(), file=g.file or file) for key, g in each.items()}
        for each in (document.values, document.defaults, document.on_trainer)
    )
    return replace(document, values=values, defaults=defaults, on_trainer=on_trainer)


def _alone(documents: Sequence[ConfigDocument]) -> Launch:
    """Return the launch of a configuration file without a command.

    The last document is the file itself. The documents before it are the files it builds on.
    """
    missing = list(documents[-1].builds_on) if len(documents) == 1 else []
    others = [_elsewhere(each) for each in documents[:-1]]
    return Launch(documents=(*others, documents[-1]), missing=tuple(missing))


def runs_file(words: Sequence[CommandWord], name: str) -> bool:
    """Return True if a command names the file of this name, in any folder."""
    own = posixpath.basename(name)
    return any(posixpath.basename(word.text) == own for word in words)
