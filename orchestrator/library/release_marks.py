"""The marks by which orch recognises a library, and its release, in texts and project files."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

RELEASE_NUMBER = re.compile(
    r"^(?:version\s*=\s*[\"'])?v?(\d+\.\d+(?:\.\d+)?(?:\.(?:post|dev)\d+)?)", re.M
)
"""A release number alone on a line, or after `version =`."""


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A file of a project, by its path in the project, that holds a release."""

    key: str
    """Name in Launch.versions: the library's, or that of a fact besides its release."""
    path: str
    needs: str = ""
    """A folder next to `path` that marks the project as the library's."""
    pattern: re.Pattern[str] = RELEASE_NUMBER
    """The pattern whose first group is the release."""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A function of a library that starts a program with arguments in one string."""

    name: str
    arguments: str
    """The keyword that has the arguments; they may stand first without it."""
    program: str
    """The keyword that names the program."""
    usual: str
    """The program of a call that names none."""


Replaced = Literal["loss", "advantage", "samples", "trainer"]
"""What somebody's own code takes the place of: the policy loss with a KL in the loss; the advantage
with a KL in the reward; that one and how responses are sampled; all of them."""


@dataclass(frozen=True, eq=False, slots=True)
class OwnHooks:
    """What of a library around the loss can be replaced by somebody's own code, and how."""

    packages: tuple[str, ...] = ("(?!)",)
    """The library's own packages. Their modules are not looked into."""
    classes: Mapping[str, Mapping[str, Replaced]] = field(default_factory=dict)
    """Pattern of the library's classes -> their methods around the loss."""
    bare: tuple[str, ...] = ()
    """Classes of other packages that people derive such trainers from."""
    functions: Mapping[str, Replaced] = field(default_factory=dict)
    """Functions of the library's modules around the loss."""
    registers: Mapping[str, Replaced] = field(default_factory=dict)
    """Decorators, and functions as `Registry.register`, that register such a function by name."""
    blind: tuple[Replaced, ...] = ()
    """What is handed no reference policy, so that it has no KL to one."""
    paths: Mapping[str, Replaced] = field(default_factory=dict)
    """Ends of keys whose value is the path of such a function."""
    imports: tuple[str, ...] = ()
    """Ends of keys whose value is a module that the library imports."""
    stock: str = "(?!)"
    """Pattern of programs that are the library's own, by their path, or that orch reads itself."""
    trainers: str = "(?!)"
    """Pattern of names that an imported trainer has."""
    forked: str = "(?!)"
    """Pattern of dotted names that only a fork has in the library's packages."""
    loop: tuple[str, str] = ("(?!)", "(?!)")
    """Patterns of what a trainer's loop calls to hand its batches to the library's loss, and of the
    names of a KL or a reference that the library's own loop has, too."""
    reward: tuple[str, ...] = ()
    """Ends of the names of methods that return the reward alone, without its KL."""
    known_packages: tuple[str, ...] = ()
    """Other packages whose trainers the library's reader knows."""


@dataclass(frozen=True, slots=True)
class ReleaseMarks:
    """The marks by which orch recognises a library, and its release, in a text.

    Launch.versions holds the results: name -> the release, a space, and a sentence with the reason.
    """

    hint: str
    """Regular expression of words. A text without a match has no launch of the library. Words of
    several libraries (`use_kl`, `main_`) are known without it."""
    aliases: tuple[str, ...] = ()
    """Further names under which a release is given (`orch audit --library NAME@VERSION`)."""
    distributions: tuple[str, ...] = ()
    """Names of packages in requirements: `NAME[extra]==1.2`."""
    repositories: tuple[str, ...] = ()
    """Names of git repositories: `/NAME.git@v1.2`, `git clone -b v1.2 .../NAME`."""
    images: tuple[str, ...] = ()
    """Beginnings of container images, up to the release: `owner/image:tag-`."""
    files: tuple[ReleaseFile, ...] = ()
    configuration_classes: tuple[str, ...] = ()
    """Classes whose keyword arguments are the library's configuration: a call of one in a Python
    file is a launch, with a ConfigDocument of the kind `call`."""
    command_calls: tuple[CommandCall, ...] = ()
    """Functions that start the library's trainer from a Python file."""
    amended: (
        Callable[[Callable[[str], str | None], Mapping[str, str]], Iterable[tuple[str, str]]] | None
    ) = None
    """A function that returns entries of a project which replace those recognised so far. Its
    arguments are a reader of the project's files (None: no such file) and the entries so far."""
    bounds_of: Callable[[str], str] = lambda _: ""
    """Return the releases between which a commit is: `>=0.15.0,<=0.16.0`; empty: not known."""
    hooks: OwnHooks = field(default_factory=OwnHooks)
