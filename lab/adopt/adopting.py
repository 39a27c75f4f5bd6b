"""Write the tables of a release, and say what changed.

The environments are those of the nearest known release, with the new release in its place. Keys,
defaults and closed values come from the release's own parser; then a new process (child.py), which
starts with these tables, gives that parser the launches that orch sends, runs the probes, and
trains if asked.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lab.adopt import keys, loss_code
from lab.adopt.adoption import DESCRIBE, Adoption, adoption_of, history
from lab.adopt.changes import ChangedRow, ReleaseChanges, changes
from lab.adopt.child import MeasuredRelease, ReleaseQuestion
from lab.libraries import folder
from lab.probes.protocol import probes_of
from orchestrator import plugins
from orchestrator.environments import make
from orchestrator.environments.lock import (
    Environment,
    Flavour,
    Lock,
    lock_of,
    locks_of,
    plain_name,
    root,
)
from orchestrator.errors import EnvironmentFault
from orchestrator.files import write_text
from orchestrator.library.key_tables import Options, load_options, version_tuple
from orchestrator.library.release_marks import RELEASE_NUMBER

OPTIONS = "options.json"
MISSING = "missing"
LOCKS: tuple[Flavour, ...] = ("contract", "cpu", "gpu")
Say = Callable[[str], None]


class Adopted(NamedTuple):
    """An adopted release."""

    library: str
    version: str
    neighbour: str
    """The nearest known release, with which it is compared."""
    changes: ReleaseChanges
    measured: MeasuredRelease
    files: tuple[Path, ...]

    @property
    def rung(self) -> str:
        """Return how far it came: "", `parsed`, `probed`, `trained` or `predicted`."""
        one = self.measured
        if not one.launches or one.refused:
            return ""
        if one.unmeasured:
            return "parsed"
        return "predicted" if one.predicted else "trained" if one.trained else "probed"


class _Place(NamedTuple):
    """Where a release can be asked."""

    package: Path
    python: Path
    above: Path | None = None
    """The folder above the package, where that Python has another release."""
    locks: tuple[Lock, ...] = ()
    """The locks to keep."""
    unfit: tuple[ChangedRow, ...] = ()
    """Packages that the release requires and that a lock of the nearest release does not have."""


def adopt(
    library: str, version: str, source: Path | None = None, *, train: bool, say: Say
) -> Adopted:
    """Write the tables of a release, and return them compared with the nearest known release's.

    source: a Python environment that has the release, or the folder of its source; None: its
    environments are made. Raise EnvironmentFault, with nothing written, if the release cannot be
    had or asked.
    """
    own = plugins.folder(library)
    adoption = adoption_of(library)
    if not RELEASE_NUMBER.fullmatch(version):
        raise EnvironmentFault(f"'{version}' is no number of a release, such as 1.16.0")
    known = [each for each in load_options(own / OPTIONS) if each != version]
    neighbour = min(known, key=lambda each: _distance(each, version))
    place = _place(library, version, neighbour, source, adoption.PARSER_IN, say)
    say(f"{library} {version}: asking its own parser for its keys")
    options = keys.options_of(place.python, folder(library) / DESCRIBE, place.above)
    watched_options = adoption.watched_options(place.package, options)
    tables = {
        own / OPTIONS: _added(own / OPTIONS, version, options),
        **{own / "environments" / _name(lock): lock.text for lock in place.locks},
    }
    if kept := history(adoption):
        tables[own / kept] = _added(own / kept, version, watched_options)
    code = [own / loss_code.KEPT] if library in loss_code.libraries() else []
    with _restored_on_failure([*tables, *code, *_written_by_child(own, version)]):
        for file, text in tables.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, text)
        if code:
            loss_code.keep(library, version, place.package)
        above = str(place.above or "")
        measured = _measured(
            ReleaseQuestion(
                library,
                version,
                neighbour,
                str(place.package),
                str(place.python),
                above,
                train and not source,
            ),
            say,
        )
    watched = {*watched_options, *_watched_before(adoption, own, neighbour, place.package)}
    compared = changes(library, (neighbour, version), watched, measured.sent)
    compared = compared._replace(rows=(*compared.rows, *place.unfit))
    files = (*tables, *code, *map(Path, measured.files))
    return Adopted(library, version, neighbour, compared, measured, files)


def _watched_before(adoption: Adoption, own: Path, neighbour: str, package: Path) -> Options:
    """Return the watched options of the nearest release, some of which the new one may not have.

    own: the library's folder. package: that of the new release.
    """
    if kept := history(adoption):
        return load_options(own / kept)[neighbour]
    return adoption.watched_options(package, load_options(own / OPTIONS)[neighbour])


def _distance(one: str, other: str) -> list[int]:
    """Return how far two releases are apart: major, minor and patch numbers."""
    pairs = zip(version_tuple(one), version_tuple(other), strict=False)
    return [abs(a - b) for a, b in pairs]


def _added(file: Path, version: str, options: Options) -> str:
    """Return the text of a file of keys with those of a release."""
    releases = {**(load_options(file) if file.exists() else {}), version: options}
    return keys.written_options(
        {each: releases[each] for each in sorted(releases, key=version_tuple)}
    )


# Where a release can be asked.


def _place(
    library: str, version: str, neighbour: str, source: Path | None, parser: Flavour, say: Say
) -> _Place:
    if source is None:
        return _installed(library, version, neighbour, parser, say)
    package = probes_of(library).PACKAGE
    if (source / "bin" / "python").exists():
        packages = sorted(source.glob(f"lib/python*/site-packages/{package}"))
        python, above = source / "bin" / "python", None
    else:
        packages = [each for each in (source / package, source) if each.name == package]
        packages = [each.resolve() for each in packages if each.is_dir()]
        python = _environment(lock_of(library, neighbour, parser), say).python
        above = packages[0].parent if packages else None
    if not packages:
        raise EnvironmentFault(
            f"--source {source} holds no package '{package}': name a Python environment that has "
            f"{library} {version}, or the folder of its source"
        )
    return _Place(packages[0], python, above)


def _installed(library: str, version: str, neighbour: str, parser: Flavour, say: Say) -> _Place:
    """Make the missing environments of a release, and return where it can be asked.

    A cpu or gpu lock that contradicts what the release requires is not kept: it is a row to look
    at. A flavour that has a lock of this release already is not checked. Raise EnvironmentFault if
    the release cannot be installed, or if the environment of its parser does not fit.
    """
    already_locked = {each.flavour for each in locks_of(library) if each.version == version}
    # Nothing is trained here: only the environments that are asked need a lock.
    with_lock = {each.flavour for each in locks_of(library) if each.version in (version, neighbour)}
    flavours = [each for each in LOCKS if each in with_lock | {"contract", parser}]
    locks = {each: _lock(library, version, neighbour, each) for each in flavours}
    try:
        contract = _environment(locks["contract"], say)
    except EnvironmentFault as fault:
        make.clear(root() / locks["contract"].folder)
        reason = str(fault).strip().splitlines()[-1]
        raise EnvironmentFault(
            f"{library} {version} cannot be installed, so nothing was written: {reason}"
        ) from fault
    environment = _environment(locks[parser], say)
    required = _required(library, contract)
    faults = make.check(environment, locks[parser])
    if parser != "contract":
        faults += [f"it requires {r}, which is {pin}" for r, pin in unmet(required, locks[parser])]
    if faults:
        raise EnvironmentFault(
            make.listed(
                f"the environment of {library} {neighbour} does not fit {version}; write "
                f"environments/{_name(locks[parser])} with other versions (orch env lock), then "
                "adopt again",
                faults,
            )
        )
    fitting, unfit = [locks["contract"]], list[ChangedRow]()
    for flavour in flavours[1:]:
        needs = [] if flavour in already_locked else unmet(required, locks[flavour])
        wrong = [(name, pin) for name, pin in needs if pin != MISSING]
        unfit += [ChangedRow("lock", flavour, pin, f"requires {name}") for name, pin in wrong]
        if not wrong:
            fitting.append(locks[flavour])
    package = probes_of(library).PACKAGE
    (found_package,) = contract.path.glob(f"lib/python*/site-packages/{package}")
    return _Place(found_package, environment.python, None, tuple(fitting), tuple(unfit))


def _environment(lock: Lock, say: Say) -> Environment:
    return make.create(lock, root(), say=say)


def _name(lock: Lock) -> str:
    return f"{lock.version}.{lock.flavour}.txt"


def _lock(library: str, version: str, neighbour: str, flavour: Flavour) -> Lock:
    """Return the lock of a release: its own, or the nearest's with this release in its place."""
    try:
        return lock_of(library, version, flavour)
    except EnvironmentFault:
        text = lock_of(library, neighbour, flavour).text
    renumbered = re.sub(
        rf"(?m)(?<![\w-]){re.escape(library)}=={re.escape(neighbour)}(?![\w.])",
        f"{library}=={version}",
        text,
    )
    return Lock(library, version, flavour, renumbered)


_REQUIRES = """
import importlib.metadata as metadata, json, sys
print(json.dumps(metadata.requires(sys.argv[1]) or []))
"""


def _required(library: str, environment: Environment) -> list[str]:
    """Return what a release requires, by its own metadata."""
    done = subprocess.run(
        [environment.python, "-I", "-c", _REQUIRES, library],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        raise EnvironmentFault(f"the requirements of {library} cannot be read: {why}")
    required: list[str] = json.loads(done.stdout)
    return required


def unmet(required: list[str], lock: Lock) -> list[tuple[str, str]]:
    """Return what a release requires and a lock has not, with the lock's version."""
    from packaging.requirements import Requirement

    unmet = []
    for each in map(Requirement, required):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        version = lock.pins.get(plain_name(each.name), MISSING)
        if version == MISSING or not each.specifier.contains(version, prereleases=True):
            unmet.append((str(each), version))
    return unmet


# The second process.


def _written_by_child(own: Path, version: str) -> list[Path]:
    """Return the files that the second process may write."""
    return [own / name / f"{version}.json" for name in ("evidence", "proofs")]


@contextmanager
def _restored_on_failure(files: list[Path]) -> Iterator[None]:
    """Put files back as they were if the block raises."""
    before: Mapping[Path, bytes | None] = {
        file: file.read_bytes() if file.exists() else None for file in files
    }
    try:
        yield
    except BaseException:
        for file, content in before.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(content)
        raise


def _measured(question: ReleaseQuestion, say: Say) -> MeasuredRelease:
    """Return what a new process measured. Raise EnvironmentFault if it could not."""
    say(f"{question.library} {question.version}: its parser takes launches; its functions run")
    done = subprocess.run(
        [sys.executable, "-m", "lab.adopt.child"],
        input=json.dumps(question._asdict()),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode or keys.ANSWER not in done.stdout:
        raise EnvironmentFault(
            f"{question.library} {question.version} could not be measured (exit code "
            f"{done.returncode}, the reason is above); nothing was written"
        )
    plain: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each
        for name, each in json.loads(done.stdout.rpartition(keys.ANSWER)[2]).items()
    }
    return MeasuredRelease(**plain)
