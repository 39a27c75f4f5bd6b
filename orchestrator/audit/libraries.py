"""Recognise the library that a text may launch, and the release that it requires.

The audit skips texts without a hint of a library: most commands of a script only copy files and
load modules. The text, or the project around it, may name the release.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from functools import cache
from itertools import chain
from pathlib import Path
from stat import S_ISREG

from orchestrator import plugins
from orchestrator.library.launches import BOUNDS, UNKNOWN, UNSET, NamedRelease
from orchestrator.library.release_marks import CommandCall, ReleaseMarks

SHARED = r"algorithm\.|use_kl|kl_coef|\bmain_\w+"
"""Words that occur in launches of several libraries."""
STARTS = re.compile(r"\bpython|torchrun|\buv |\bray |\brl |bash|deepspeed|accelerate|-m |\.sh")
"""Text that starts a program."""
UNREAD = {
    "LLaMA-Factory": r"\bllamafactory-cli\b|\bllamafactory\b|\bsrc/train\.py\b[^\n]*--stage\b",
    "TRL's {}": r"(?:\bfrom trl\b[\w. ]* import (?:\([^)]*?|[^(\n]*?)\b|\btrl\.)"
    r"(PPO|OnlineDPO|XPO|NashMD|DPO|KTO|ORPO|CPO|BCO)(?:Config|Trainer)\b",
    "trlx": r"\bimport trlx\b|\bfrom trlx\b|\btrlx\.train\(",
    "DeepSpeed-Chat": r"step3_rlhf_finetuning|--actor_zero_stage\b|DeepSpeedPPOTrainer",
    "NeMo-Aligner": r"nemo_aligner|NeMo-Aligner|train_gpt_(?:ppo|reinforce|dpo)\w*\.py",
    "torchtune": r"\btune run\b[^\n]*(?:grpo|ppo)",
    "RL2": r"\bRL2\.trainer\.",
    "XTuner": r"\bxtuner (?:train|rl)\b|\bxtuner/v1/train",
    "RAGEN": r"\bragen[./]\w|--config-name[= ]_\d_\w+",
    "Axolotl": r"\baxolotl (?:train|preprocess)\b|\baxolotl\.cli\.|^rl: *[\"']?(?:grpo|gdpo)\b",
    "Oumi": r"\boumi train\b|^ *trainer_type: *[\"']?TRL_GRPO\b",
    "rLLM": r"\brllm\.train(?:er)?\.",
    "ReaLHF": r"\brealhf\.apps\.",
    "AReaL": r"\bareal[./]\w|\bppo_n_minibatches:|\bmax_head_offpolicyness:",
    "ms-swift": r"\b(?:swift|megatron)[\"')]*\s+rlhf\b|\bswift/cli/(?:rlhf|_megatron/rlhf)\.py\b",
    "ROLL": r"\bstart_(?:rlvr|agentic)\w*_pipeline\b|^actor_infer:",
}
"""Name of a trainer whose launches orch cannot read -> the pattern that recognises a launch, with
what `{}` of the name stands for."""


@cache
def marks() -> dict[str, ReleaseMarks]:
    """Return the release marks of every library whose launches can be read, by library name."""
    readers = (plugins.load_reader(name) for name in plugins.readers())
    return {each.name: each.release_marks for each in readers if each.release_marks is not None}


@cache
def _installable() -> dict[str, ReleaseMarks]:
    """Return `marks`, and those of other packages whose trainers a reader knows."""
    known = (name for each in marks().values() for name in each.hooks.known_packages)
    return {**marks(), **{name: ReleaseMarks("(?!)", distributions=(name,)) for name in known}}


def titles() -> str:
    """Return the libraries whose launches can be read, as a list in words."""
    *others, last = (plugins.load_reader(name).title for name in marks())
    return f"{', '.join(others)} or {last}" if others else last


def unread(text: str) -> str:
    """Return the name of an unreadable trainer (UNREAD) that a text launches, or an empty text."""
    found = ((name, re.search(mark, text, re.M)) for name, mark in UNREAD.items())
    return next((name.format(*match.groups()) for name, match in found if match), "")


@cache
def _hint() -> re.Pattern[str]:
    return re.compile("|".join([SHARED, *(each.hint for each in marks().values())]))


def may_launch(text: str) -> bool:
    """Return True if a text may hold a launch."""
    return _hint().search(text) is not None


@cache
def configuration_classes() -> frozenset[str]:
    """Return the classes whose keyword arguments are some library's configuration."""
    return frozenset(name for each in marks().values() for name in each.configuration_classes)


@cache
def library_packages() -> frozenset[str]:
    """Return the packages of the libraries, and others whose trainers their readers know."""
    hooks = [each.hooks for each in marks().values()]
    return frozenset(name for each in hooks for name in (*each.packages, *each.known_packages))


def may_configure(text: str, other: Collection[str] = ()) -> bool:
    """Return True if a Python file may create a trainer's configuration itself; other: functions
    that it may import from elsewhere."""
    return any(name in text for name in configuration_classes().difference(other))


def runs_hydra(text: str) -> bool:
    """Return True if a Python file may start a trainer with a configuration of Hydra."""
    return "@hydra.main" in text and may_launch(text)


@cache
def command_calls() -> dict[str, CommandCall]:
    """Return the functions that start some library's trainer from a Python file, by name."""
    return {call.name: call for each in marks().values() for call in each.command_calls}


LARGEST = 400_000
"""Maximum size of a project file in bytes. Larger files are not read."""
UPWARDS = 12
"""Maximum number of folders to search: the script's folder and the folders above it."""
_PIN_FILES = ("requirements.txt", "pyproject.toml", "setup.py", "requirements-train.txt")
_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock")
"""Lock files in TOML that name each package and its version in two lines."""
LARGEST_LOCK = 64_000_000
"""Maximum size of a lock file in bytes; none that was seen had 8 million."""
_INSTALLS = re.compile(
    r"(?i)^(?:.*dockerfile.*|.*requirements?[\w.-]*\.(?:txt|lock)|environment\.ya?ml|"
    r"\w*(?:setup|install)\w*\.sh)$"
)
"""Names of further files that install packages: `pip install NAME==1.2`, `FROM IMAGE:1.2`."""
_ENVIRONMENTS = (".venv", "venv", "env")
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Environment variables that name the folder of the active environment."""
_INCLUDED = re.compile(r"(?m)^[ \t]*(?:-r|--requirement)[ =]\s*([\w./-]+)")
_ASSIGNED = re.compile(r"(?m)^[ \t]*(?:ARG |ENV |export )?(\w+)=[\"']?(\d+\.[\w.]+)[\"']?[ \t]*$")
_VERSION = r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)"
_PATH = re.compile(r"[\w./ @+=-]{1,300}\.(toml|ya?ml|sh|bash|slurm|sbatch|py)")


_COMMENT = re.compile(
    r"(?P<block>^# /// script\n(?:#.*\n)+?# ///$)"
    r"|(?P<kept>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?:^|(?<=[\s,;\])}]))#(?!SBATCH|PBS|BSUB).*",
    re.MULTILINE,
)
"""A comment. In a URL (`#egg=verl`) and in quotes `#` begins none; options of a batch system and
the requirements of a Python script (`# /// script`) look like comments and count."""


def uncommented(text: str) -> str:
    """Return a text without its comments; every line keeps its number."""
    return _COMMENT.sub(_without_comment, text)


def _without_comment(match: re.Match[str]) -> str:
    if match["block"]:
        return uncommented("\n".join(line[1:] for line in match["block"].split("\n")))
    return match["kept"] or ""


def pins(text: str) -> Iterator[tuple[str, str]]:
    """Yield each library whose release a script names: the release or its bounds, and why."""
    text = uncommented(text)
    yield from _named(text)
    for library, bounds, requirement in _bounded(text):
        yield f"{library}{BOUNDS}", f"{bounds} it asks for {requirement}"


def hint(text: str, library: str) -> str:
    """Return where a comment has a release or a commit beside the library's name; empty: nowhere.

    A comment pins nothing: the code may have moved on.
    """
    mark = marks()[library]
    names = {library, *mark.distributions, *mark.repositories, *mark.aliases}
    called = "|".join(re.escape(each).replace("_", "[-_ ]?") for each in sorted(names))
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.search(r"(?:^|\s)(?:#|//)(.*)", line)
        if comment is not None and re.search(rf"(?i)\b(?:{called})\b", comment[1]):
            named = re.search(rf"{_VERSION}|\b[0-9a-f]{{7,40}}\b", comment[1])
            if named is not None:
                return f"the comment of line {number} has {named[0]}"
    return ""


class Projects:
    """A cache of the files around the scripts of one command. Each file is read at most once."""

    def __init__(self) -> None:
        self._texts: dict[str, str | None] = {}
        self._entries: dict[Path, frozenset[str]] = {}
        self._releases: dict[Path, dict[str, str]] = {}

    def text(self, folder: Path, path: str) -> str | None:
        """Return the text of a file, or None if it cannot be read or is too large."""
        first = path.partition("/")[0]
        # One listing of the folder answers for most files that are not there.
        if first not in (".", "..") and first not in self.entries(folder):
            return None
        name = f"{folder}/{path}"
        if name not in self._texts:
            self._texts[name] = _text(Path(name))
        return self._texts[name]

    def entries(self, folder: Path) -> frozenset[str]:
        """Return the names in a folder, or nothing if it cannot be listed."""
        if folder not in self._entries:
            try:
                with os.scandir(folder) as entries:
                    self._entries[folder] = frozenset(each.name for each in entries)
            except OSError:
                self._entries[folder] = frozenset()
        return self._entries[folder]

    def folders(self, script: Path) -> list[Path]:
        """Return the script's folder and the folders above it, up to its repository's root."""
        found: list[Path] = []
        for folder in script.absolute().parents[:UPWARDS]:
            found.append(folder)
            if (folder / ".git").exists():
                break
        return found

    def versions(self, script: Path) -> dict[str, str]:
        """Return the releases that the project around a script contains or requires, by library.

        The nearest folder decides: a copy of the library in it, then an environment, a lock, a
        requirement, an image or a `pip install`; at last the active environment. A value is the
        release, a space, and a sentence with the reason.
        """
        folder = script.absolute().parent
        if folder not in self._releases:
            self._releases[folder] = self._required(script)
        return dict(self._releases[folder])

    def _required(self, script: Path) -> dict[str, str]:
        releases: dict[str, str] = {}
        for folder in self.folders(script):
            for mark in marks().values():
                self._add_files(folder, mark, releases)
                for name in sorted(self.entries(folder)):  # clones of its repository
                    if name.lower().startswith(tuple(map(str.lower, mark.repositories))):
                        self._add_files(folder / name, mark, releases)
            for name in _ENVIRONMENTS:
                for library, version in self._installed(folder / name):
                    releases.setdefault(library, f"{version} {name} beside it has it installed")
            for name in sorted(self.entries(folder).intersection(_LOCKS)):
                for library, why in _locked(name, self.text(folder, name) or ""):
                    releases.setdefault(library, why)
            self._add_pins(folder, releases)
        self._add_active(releases)
        return releases

    def _add_pins(self, folder: Path, releases: dict[str, str]) -> None:
        """Add the releases that a folder's files of requirements and of installations name."""
        further = [each for each in self.entries(folder) if _INSTALLS.match(each)]
        docs = (f"docs/{each}" for each in self.entries(folder / "docs"))
        further += [each for each in docs if _INSTALLS.match(each)]
        pins = "\n".join(self._requirements(folder, name) for name in _PIN_FILES)
        left_open = {each for each, mark in marks().items() if _any_release(mark).search(pins)}
        for name in (*_PIN_FILES, *sorted(further)):
            text = self._requirements(folder, name)
            is_other = name not in _PIN_FILES and "requirement" in name  # of another stack
            for library, why in _named(text):
                if not (is_other and library in left_open):
                    releases.setdefault(library, f"{why.partition(' ')[0]} {name} asks for it")
            for library, bounds, requirement in _bounded(text):
                why = f"{bounds} {name} asks for {requirement}"
                releases.setdefault(f"{library}{BOUNDS}", why)

    def _requirements(self, folder: Path, name: str) -> str:
        """Return a file of requirements and those that it includes (`-r`), without comments."""
        text = uncommented(self.text(folder, name) or "")
        included = _INCLUDED.findall(text) if name.endswith(".txt") else []
        return "\n".join([text, *(uncommented(self.text(folder, each) or "") for each in included)])

    def _add_active(self, releases: dict[str, str]) -> None:
        for variable in _ACTIVE:
            if active := os.environ.get(variable):
                for library, version in self._installed(Path(active)):
                    why = f"{version} the active environment (${variable}) has it installed"
                    releases.setdefault(library, why)

    def _installed(self, environment: Path) -> Iterator[tuple[str, str]]:
        """Yield the libraries that an environment has installed, with their releases."""
        for python in self.entries(environment / "lib"):
            names = self.entries(environment / "lib" / python / "site-packages")
            for library, mark in _installable().items() if names else ():
                for distribution in mark.distributions:
                    for each in names:
                        match = _dist_info(distribution).fullmatch(each)
                        if match is not None:
                            yield library, match[1]

    def _add_files(self, folder: Path, mark: ReleaseMarks, releases: dict[str, str]) -> None:
        for file in mark.files:
            first = file.needs.partition("/")[0] if file.needs else ""
            is_here = first in self.entries(folder) and (folder / file.needs).is_dir()
            if first and not is_here:
                continue
            match = file.pattern.search(uncommented(self.text(folder, file.path) or ""))
            if match is not None:
                why = f"{match[1]} {file.path} beside it says so"
                releases.setdefault(file.key, NamedRelease(why, "copy"))
        if mark.amended is not None:
            amended = mark.amended(lambda path: self.text(folder, path), releases)
            releases.update({name: NamedRelease(why, "copy") for name, why in amended})


def _any_release(mark: ReleaseMarks) -> re.Pattern[str]:
    """Return the pattern of a requirement that leaves the release open: a line with the name."""
    names = "|".join(map(re.escape, mark.distributions)) or "(?!)"
    return re.compile(rf"""(?mi)^[ \t"']*(?:{names})(?:\[[^\]]*\])?[ \t"',]*$""")


class NeighbourFiles(Mapping[str, str]):
    """Texts of files by the path that a script gives, searched from its folder upwards.

    The mapping has no length and no keys: it looks files up and does not list them.
    """

    def __init__(self, script: Path, projects: Projects | None = None) -> None:
        self.projects = projects or Projects()
        self.folders = self.projects.folders(script)

    def of_own_folder(self) -> "NeighbourFiles":
        """Return the files of the script's folder, without the folders above it."""
        own = copy(self)
        own.folders = self.folders[:1]
        return own

    def named(self, *endings: str) -> list[str]:
        """Return the files in the script's folder whose names end so."""
        return sorted(e for e in self.projects.entries(self.folders[0]) if e.endswith(endings))

    def __getitem__(self, path: str) -> str:
        if not _PATH.fullmatch(path) or path.startswith("/"):
            raise KeyError(path)
        package = path.partition("/")[0]
        clones = self._clones(package) if package in plugins.readers() else ()
        for folder in chain(self.folders, clones):
            text = self.projects.text(folder, path)
            if text is not None:
                return text
        raise KeyError(path)

    def _clones(self, package: str) -> Iterator[Path]:
        """Yield the folders of a package's repository: `verl`, `verl-main`, `OpenRLHF`."""
        for folder in self.folders:
            for name in sorted(self.projects.entries(folder)):
                if name.lower().startswith(package.lower()) and (folder / name).is_dir():
                    yield folder / name

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def found_beside(path: str, files: Mapping[str, str]) -> str:
    """Return a path that is a file beside the script, or the end of an absolute or half-known path
    that is one: of a program its name, else a folder and a name at least. Empty without one."""
    for place in (path, f"src/{path}"):
        if place in files:
            return place
    known = re.split(f"[{UNKNOWN}{UNSET}]", path)[-1]
    parts = known.lstrip("/").split("/")
    ends = ("/".join(parts[i:]) for i in range(len(parts) - (not path.endswith(".py"))))
    return next((end for end in ends if end in files), "") if known.startswith("/") else ""


def _named(text: str) -> Iterator[tuple[str, str]]:
    """Yield the releases that a text names by package, repository or image."""
    values: dict[str, set[str]] = {}
    for name, value in _ASSIGNED.findall(text):
        values.setdefault(name, set()).add(value)
    for name, each in values.items():
        if len(each) == 1:
            text = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", min(each), text)
    lowered = text.lower()
    for library, mark in _installable().items():
        for name, pattern in _patterns(mark):
            match = pattern.search(text) if name in lowered else None
            gone = rf"pip uninstall\b[^\n&|;]*(?<![\w-]){library}(?![\w-])"
            if match is not None and not re.search(gone, text[match.end() :]):
                line = text.count("\n", 0, match.start()) + 1
                yield library, f"{match[1]} line {line} asks for it"
                break  # an image's tag is of the image: what is installed over it counts more


def _bounded(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each library that a text requires within bounds, or of a commit (those of it, if they
    are known); these, and the requirement."""
    lowered = text.lower()
    for library, mark in marks().items():
        for name in mark.distributions:
            match = _bounds(name).search(text) if name.lower() in lowered else None
            if match is not None:
                bounds = re.sub(r"\s", "", match[1] or "").strip(",")
                bounds = bounds or mark.bounds_of(match[2].lower())
                yield library, bounds, match[0].strip(", \n")


@cache
def _bounds(distribution: str) -> re.Pattern[str]:
    bound = r"(?:[<>]=?|~=|!=)\s*\d[\d.]*[\s,]*"
    name, commit = re.escape(distribution), "[0-9a-f]{7,40}"
    return re.compile(
        rf"(?i)(?<![\w./-]){name}(?:\[[\w,-]+\])?[ ]*((?:{bound})+)"
        rf"|(?<![\w+:/.-])[\w+:/.-]*/{name}(?:\.git)?@({commit})\b"
    )


@cache
def _patterns(mark: ReleaseMarks) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the patterns of a library's releases, each with a name in lower case that it needs."""
    patterns = [
        (n, rf"(?i:\b{re.escape(n)}(?:\[[\w,-]+\])?==\s*){_VERSION}") for n in mark.distributions
    ]
    patterns += [(n, rf"/{re.escape(n)}(?:\.git)?@{_VERSION}\b") for n in mark.repositories]
    patterns += [(image, rf"{re.escape(image)}{_VERSION}") for image in mark.images]
    patterns += [
        (n, rf"(?:-b|--branch)[ =]{_VERSION}\S*\s+\S*/{re.escape(n)}\b") for n in mark.repositories
    ]
    return tuple((name.lower(), re.compile(pattern)) for name, pattern in patterns)


@cache
def _dist_info(distribution: str) -> re.Pattern[str]:
    name = re.escape(distribution).replace(r"\-", "[-_.]")
    return re.compile(rf"(?i:{name})-{_VERSION}\.dist-info")


def _locked(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the libraries in a lock file, with their releases."""
    for library, mark in _installable().items():
        for each in map(re.escape, mark.distributions):
            match = re.search(rf'name = "(?i:{each})"\s+version = "{_VERSION}"', text)
            if match is not None:
                yield library, f"{match[1]} {name} beside it locks it"


def _text(path: Path) -> str | None:
    largest = LARGEST_LOCK if path.name in _LOCKS else LARGEST
    try:
        about = path.stat()
        if not S_ISREG(about.st_mode) or about.st_size > largest:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
