"""What of a release's mathematics was not measured: read in its source, or left out."""

from collections.abc import Sequence

from orchestrator.causes import CAUSES, differing, said
from orchestrator.dialect import PLAIN
from orchestrator.matrix.capability import Release
from orchestrator.scale import semantics
from orchestrator.settings import BackendRef

Told = tuple[str, str, str]
"""What it is, what it is in the release, why it was not measured."""
LEFT_OUT = "left out of the rehearsal"


def unmeasured(library: str, version: str) -> list[Told]:
    """Causes whose value is not the embedded trainer's own and was read; then what is left out."""
    found = semantics(BackendRef(name=library, version=version))
    read = [
        (CAUSES[cause].title, said(found.dialect, cause), CAUSES[cause].not_compared)
        for cause in differing(found.dialect, PLAIN)
        if CAUSES[cause].not_compared
    ]
    return read + [("not imitated", sentence, LEFT_OUT) for sentence in found.omits]


def together(known: Sequence[Release]) -> dict[Told, list[Release]]:
    """The same, with the releases that share an entry."""
    by: dict[Told, list[Release]] = {}
    for release in known:
        for told in unmeasured(*release):
            by.setdefault(told, []).append(release)
    return by
