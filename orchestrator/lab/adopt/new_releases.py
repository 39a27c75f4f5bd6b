"""Look at the package index for releases that orch has not read, and say what code they changed.

The cheap tier of adopting: a wheel is fetched without what it requires and unpacked, beside that of
the newest release that was read. Of both, the code of the KL, the advantage and the policy loss
(loss_code), the configuration's keys as they stand in the source, and, where `lab/functions.py`
runs them with orch's own torch, what the functions around the KL give. `orch adopt` does the rest.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

from orchestrator import plugins
from orchestrator.audit.libraries import marks
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.adopt import loss_code
from orchestrator.lab.adopt.adoption import adoption_of
from orchestrator.lab.adopt.changes import ChangedRow, differing_keys
from orchestrator.lab.probes import functions
from orchestrator.library.key_tables import Options, version_tuple

ANY_PYTHON = ("--ignore-requires-python",)
"""A wheel is only read: SkyRL's wants another Python than orch may have."""


class NewRelease(NamedTuple):
    """A release that is newer than all that were read, compared with the one before it."""

    library: str
    version: str
    before: str
    measured: tuple[str, ...] | None
    """Functions around the KL that give other numbers; None if one release's did not run."""
    rewritten: tuple[str, ...]
    """Functions with another code."""
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    keys: tuple[ChangedRow, ...]
    """Keys of the objective that differ."""
    other_keys: int | None
    """The number of the other keys that differ; None if the keys of one could not be read."""

    @property
    def changes(self) -> bool:
        """Return True if a function is another one, new or gone, or a key of the objective is."""
        return bool(self.measured or self.rewritten or self.added or self.dropped or self.keys)


class _Wheel(NamedTuple):
    """What was read of an unpacked wheel."""

    code: Mapping[str, str]
    """Function -> digest of its code."""
    keys: Options
    own: Collection[str]
    """Keys in which a difference is a row to look at."""
    functions: functions.Functions | None
    """None: they could not be run."""


def new_releases(library: str) -> Iterator[NewRelease]:
    """Yield the newer releases of a library, oldest first, each compared with the one before.

    Raise EnvironmentFault if the index does not answer, or a release has no wheel or none of the
    files: nothing was compared then.
    """
    before = loss_code.releases_of(library)[-1]
    (name, *_) = marks()[library].distributions
    answer = _pip("index", "versions", name, "--json", *ANY_PYTHON)
    last = version_tuple(before)
    newer = [each for each in json.loads(answer)["versions"] if version_tuple(each) > last]
    if not newer:
        return
    old = _of_wheel(library, name, before)
    for version in sorted(newer, key=version_tuple):
        new = _of_wheel(library, name, version)
        yield _compared(library, (before, version), (old, new))
        before, old = version, new


def _compared(library: str, pair: tuple[str, str], wheels: tuple[_Wheel, _Wheel]) -> NewRelease:
    (before, version), (old, new) = pair, wheels
    whole = bool(old.keys and new.keys)
    rows = list(differing_keys(old.keys, new.keys)) if whole else []
    own = {*old.own, *new.own}
    return NewRelease(
        library,
        version,
        before,
        _other_numbers(old.functions, new.functions),
        tuple(n for n, each in old.code.items() if new.code.get(n, each) != each),
        tuple(n for n in new.code if n not in old.code),
        tuple(n for n in old.code if n not in new.code),
        tuple(row for row in rows if row.what in own),
        sum(row.what not in own for row in rows) if whole else None,
    )


def _other_numbers(
    old: functions.Functions | None, new: functions.Functions | None
) -> tuple[str, ...] | None:
    if old is None or new is None:
        return None
    return tuple(functions.differing(old, new))


def _of_wheel(library: str, name: str, version: str) -> _Wheel:
    """Return what is in a release's wheel. Its files are read as text; where orch's own Python has
    torch and the library's probes can, its functions are run on numbers."""
    with TemporaryDirectory() as folder:
        options = ("-q", "--no-deps", "--only-binary=:all:", *ANY_PYTHON)
        _pip("download", *options, "-d", folder, f"{name}=={version}")
        (wheel,) = Path(folder).iterdir()
        unpacked = Path(folder) / "unpacked"
        with ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        root = loss_code.package_of(library)
        package = min(unpacked.rglob(root), key=lambda each: len(each.parts), default=unpacked)
        digests = loss_code.of_source(library, lambda path: loss_code.text_of(package, path))
        if not digests:
            raise EnvironmentFault(
                f"{library} {version} has none of the files in which orch knows the loss: nothing "
                "was compared; look where it went, and add it to "
                f"backends/{library}/{loss_code.KEPT}"
            )
        keys, watched = _keys(library, package)
        return _Wheel(
            {name: each for by_name in digests.values() for name, each in by_name.items()},
            keys,
            watched,
            _measured(library, version, package),
        )


def _keys(library: str, package: Path) -> tuple[Options, Collection[str]]:
    """Return the keys in a release's source, and those of the objective; none for a library that
    is only read."""
    if library in plugins.only_read():
        return {}, ()
    adoption = adoption_of(library)
    keys = adoption.source_options(package)
    return keys, tuple(adoption.watched_options(package, keys))


def _measured(library: str, version: str, package: Path) -> functions.Functions | None:
    if library not in functions.libraries():
        return {}
    try:
        return functions.measure(library, version, package)
    except EnvironmentFault:
        return None


def _pip(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (lines or done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise EnvironmentFault(f"the package index cannot be asked (pip {words[0]}): {why}")
    return done.stdout
