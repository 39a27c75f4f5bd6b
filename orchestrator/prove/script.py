"""Read anybody's launch script as a cell and further arguments, for a real rehearsal."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.audit.pipeline import launches
from orchestrator.audit.releases import NeighbourFiles, versions
from orchestrator.errors import EnvironmentFault
from orchestrator.identity import fingerprint
from orchestrator.library.cpu_launch import Deviation
from orchestrator.library.launches import UNKNOWN, UNSET, Launch, LaunchReading
from orchestrator.records import Cell
from orchestrator.settings import BackendRef, Resources

LARGEST = 1_000_000
"""Most bytes of a script."""


class ScriptLaunch(NamedTuple):
    """A launch that a script makes."""

    cell: Cell
    argv: tuple[str, ...]
    deviations: tuple[Deviation, ...]
    """Arguments that were removed or set before the launch was read as a cell."""


def script_launches(path: Path, batches: int) -> Iterator[ScriptLaunch]:
    """Yield the launches that a script makes without arguments and that a library can rehearse.

    batches: the number of rollout batches to train. The script is read and never run. Raise
    UnreadableScript for a file without a launch, and SpecError, with every reason, for a launch
    that no cell describes.
    """
    if path.stat().st_size > LARGEST:
        raise EnvironmentFault(f"{path} has more than {LARGEST:,} bytes; that is no launch script")
    text = path.read_text(encoding="utf-8", errors="replace")
    releases = versions(path)
    for launch in launches(text, str(path), NeighbourFiles(path)):
        if not launch.usual:
            continue
        for name in plugins.names():
            reading = plugins.load(name).audit(launch)
            if reading is not None:
                yield _launch(path, launch, reading, releases.get(name, ""), batches)
                break


def _launch(
    path: Path, launch: Launch, reading: LaunchReading, release: str, batches: int
) -> ScriptLaunch:
    backend = plugins.load(reading.library)
    if not backend.adopts_scripts:
        able = (plugins.load(name) for name in plugins.names())
        raise EnvironmentFault(
            f"{path}:{launch.line}: orch cannot put a script's arguments into a launch of "
            f"{backend.title} (it can for {', '.join(x.title for x in able if x.adopts_scripts)}); "
            f"`orch audit {path}` reads it, and `orch rehearse --real SPEC` trains cells of a spec"
        )
    if launch.open_end:
        raise EnvironmentFault(f"{path}:{launch.line}: {launch.open_end}")
    known = [word.text for word in launch.words if not {UNKNOWN, UNSET} & set(word.text)]
    trimmed = backend.trimmed(known, batches)
    settings = backend.parse(trimmed.argv, {})
    version = release.partition(" ")[0] or reading.version
    if version not in backend.versions:
        version = backend.versions[0]
    settings = settings.model_copy(
        update={"backend": BackendRef(name=reading.library, version=version)}
    )
    cell = Cell(
        id=fingerprint(settings),
        slug=f"{path.stem[:60]}-line{launch.line}",
        studies=("script",),
        axes={},
        settings=settings,
        resources=Resources(num_nodes=1, gpus_per_node=1),
    )
    unread = tuple(
        Deviation("argument", word.text.partition("=")[0], "?", None, "only a shell would know it")
        for word in launch.words
        if word.text not in known and "=" in word.text
    )
    return ScriptLaunch(cell, trimmed.argv, (*unread, *trimmed.deviations))
