"""Look at the package index for releases that orch has not read, and say what code they changed.

The cheap tier of adopting: a wheel is fetched without what it requires, and its Python files are
parsed and never run. The code of the KL, the advantage and the policy loss is compared with that of
the newest release that was read (loss_code). `orch adopt` measures.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

from orchestrator.audit.libraries import marks
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.adopt import loss_code
from orchestrator.library.key_tables import numbers


class NewRelease(NamedTuple):
    """A release that is newer than all that were read, compared with the one before it."""

    library: str
    version: str
    before: str
    rewritten: tuple[str, ...]
    """Functions with another code."""
    added: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Return True if a function is another one, new or gone."""
        return bool(self.rewritten or self.added or self.dropped)


def new_releases(library: str) -> Iterator[NewRelease]:
    """Yield the newer releases of a library, oldest first, each compared with the one before.

    Raise EnvironmentFault if the index does not answer, or a release has no wheel or none of the
    files: nothing was compared then.
    """
    before = loss_code.releases_of(library)[-1]
    old = _flat(loss_code.of_release(library, before))
    (name, *_) = marks()[library].distributions
    answer = _pip("index", "versions", name, "--json")
    newer = [each for each in json.loads(answer)["versions"] if numbers(each) > numbers(before)]
    for version in sorted(newer, key=numbers):
        code = _flat(_of_wheel(library, name, version))
        changed = tuple(each for each in old if each in code and old[each] != code[each])
        added = tuple(each for each in code if each not in old)
        dropped = tuple(each for each in old if each not in code)
        yield NewRelease(library, version, before, changed, added, dropped)
        before, old = version, code


def _flat(digests: loss_code.Digests) -> dict[str, str]:
    return {name: digest for own in digests.values() for name, digest in own.items()}


def _of_wheel(library: str, name: str, version: str) -> loss_code.Digests:
    """Return the code in a release's wheel. Its files are read as text."""
    with TemporaryDirectory() as folder:
        _pip(
            "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, f"{name}=={version}"
        )
        (wheel,) = Path(folder).iterdir()
        with ZipFile(wheel) as archive:
            names = archive.namelist()

            def text(path: str) -> str | None:
                inside = [each for each in names if each == path or each.endswith(f"/{path}")]
                shortest = min(inside, key=len, default=None)
                return (
                    None if shortest is None else archive.read(shortest).decode("utf-8", "replace")
                )

            code = loss_code.of_source(library, text)
    if not code:
        raise EnvironmentFault(
            f"{library} {version} has none of the files in which orch knows the loss: nothing was "
            f"compared; look where it went, and add it to backends/{library}/{loss_code.KEPT}"
        )
    return code


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
