"""Rehearse a launch with the real library: its own arguments, few train steps, this machine.

The launch is that of a cell, or one in anybody's script: the script is read as a cell and further
arguments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.audit.commands import launches
from orchestrator.audit.libraries import NeighbourFiles, versions
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.files import remove_tree
from orchestrator.identity import fingerprint
from orchestrator.lab.cpu import Deviation
from orchestrator.lab.launches import adopts_scripts, programs
from orchestrator.lab.launches import trimmed as trimmed_launch
from orchestrator.lab.prove.checks import Check, checks, failures, leavings
from orchestrator.lab.prove.proof import NotReplayed, Proof, Run, read_run
from orchestrator.lab.prove.scaled_down import (
    BATCHES,
    ScaledDown,
    cells_of,
    environment_of,
    options_of,
    scaled_down,
    text_of,
    train,
    version_to_run,
)
from orchestrator.launch.endings import Ending
from orchestrator.library.launches import UNKNOWN, UNSET, Launch, LaunchReading
from orchestrator.records import Cell
from orchestrator.rundir import CellDir
from orchestrator.settings import BackendRef, Resources


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
    text = text_of(path, "launch script")
    releases = versions(path)
    for launch in launches(text, str(path), NeighbourFiles(path)):
        if not launch.usual:
            continue
        for name in plugins.names():
            reading = plugins.load(name).audit(launch)
            if reading is not None:
                yield _launch(path, launch, reading, releases, batches)
                break


def _launch(
    path: Path, launch: Launch, reading: LaunchReading, releases: Mapping[str, str], batches: int
) -> ScriptLaunch:
    backend = plugins.load(reading.library)
    if not adopts_scripts(backend.name):
        able = [plugins.load(name).title for name in plugins.names() if adopts_scripts(name)]
        raise EnvironmentFault(
            f"{path}:{launch.line}: orch cannot put a script's arguments into a launch of "
            f"{backend.title} (it can for {', '.join(able)}); "
            f"`orch audit {path}` reads it{_instead(reading.library)}"
        )
    if launch.open_end:
        raise EnvironmentFault(f"{path}:{launch.line}: {launch.open_end}")
    known = [word.text for word in launch.words if not {UNKNOWN, UNSET} & set(word.text)]
    trimmed = trimmed_launch(reading.library, known, batches)
    settings = backend.parse(trimmed.argv, {})
    version = version_to_run(backend, releases, reading)
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


class RealRehearsal(NamedTuple):
    """The result of one rehearsed cell."""

    declared: Cell
    others: tuple[Cell, ...]
    """Declared cells that are the same at small scale."""
    deviations: tuple[Deviation, ...]
    """Every difference from the launch: fields of the cell, then arguments, variables and parts."""
    ending: Ending
    checks: tuple[Check, ...] = ()
    proof: Proof | None = None
    fault: str = ""
    """Why the rehearsal has no proof; empty if it has one."""

    @property
    def troubles(self) -> list[str]:
        """Return a sentence for each failure."""
        return list(failures(self.ending, self.checks, self.proof, self.fault))

    @property
    def holds(self) -> bool:
        """Return True if the cell trained, the proof holds and no check failed."""
        return not self.troubles


class Chosen(NamedTuple):
    """A cell at small scale, with the declared cells that it represents."""

    small: ScaledDown
    declared: tuple[Cell, ...]
    argv: tuple[str, ...] = ()
    """The words of a script's launch. The rehearsal gets the arguments that the plan lacks."""
    trimmed: tuple[Deviation, ...] = ()
    """Arguments that were removed from that launch, or set in it."""


def chosen(cells: Iterable[Cell], folder: Path) -> list[Chosen]:
    """Return declared cells of libraries at small scale. Cells with one training run become one."""
    by_name: dict[str, Chosen] = {}
    for cell in cells:
        if cell.scale == "micro":
            continue
        tiny = scaled_down(cell, folder, batches=BATCHES)
        twin = by_name.get(tiny.cell.id)
        by_name[tiny.cell.id] = Chosen(
            twin.small if twin else tiny, (*(twin.declared if twin else ()), cell)
        )
    return list(by_name.values())


def chosen_of_script(path: Path, folder: Path) -> list[Chosen]:
    """Return the launches of a script at small scale. Raise OrchError if none can be rehearsed."""
    chosen_launches = [
        Chosen(
            scaled_down(each.cell, folder, batches=BATCHES),
            (each.cell,),
            each.argv,
            each.deviations,
        )
        for each in script_launches(path, BATCHES)
    ]
    if not chosen_launches:
        raise EnvironmentFault(f"{path} has no launch of {', '.join(plugins.names())}")
    return chosen_launches


def _instead(library: str) -> str:
    """Return what else can be rehearsed of a library that adopts no scripts."""
    spec = ", and `orch prove --rehearse SPEC` trains cells of a spec"
    if programs(library) is None:
        return spec
    return f", `orch prove --rehearse FILE.py` runs a Python file that builds its trainer{spec}"


def rehearse(
    each: Chosen,
    folder: Path,
    say: Callable[[str], None] = lambda _text: None,
    *,
    processes: bool = False,
) -> RealRehearsal:
    """Train a cell at small scale with its real library. Return its checks and its proof.

    processes: with the library's own processes, also where stand-ins could hold them in one.
    Remove the files of an earlier rehearsal first, because the library would continue from them.
    Raise OrchError if the library cannot run here.
    """
    declared, cell = each.declared[0], each.small.cell
    library = cell.settings.backend.name
    version = cell.settings.backend.version or plugins.load(library).versions[0]
    environment = environment_of(library, version)
    cell_dir = CellDir(folder / "cells" / cell.directory)
    if cell_dir.path.exists():
        remove_tree(cell_dir.path)
    say(f"{declared.slug}: {library} {version} trains {cell.settings.num_train_steps} steps ...")
    launch, ending = train(cell, cell_dir, environment, each.argv, processes=processes)
    deviations = (*each.trimmed, *each.small.changes, *launch.deviations)
    outcome = RealRehearsal(declared, each.declared[1:], deviations, ending)
    if ending.state != "succeeded":
        return outcome
    options = options_of(library, version, environment)
    if not cell.cadence.dump_rollouts:
        return outcome._replace(checks=tuple(leavings(cell, cell_dir)))
    try:
        run = read_run(cell_dir)
        checked = tuple(checks(run, cell_dir, options))
        outcome = outcome._replace(checks=checked)
        return outcome._replace(proof=run.proof())
    except NotReplayed as error:
        unproven = Check("what the dialect predicts", None, str(error))
        return outcome._replace(checks=(*checked, unproven))
    except OrchError as error:
        return outcome._replace(fault=str(error))


def release_runs(
    library: str,
    version: str,
    folder: Path,
    say: Callable[[str], None],
    *,
    batches: int,
    processes: bool = False,
) -> list[tuple[str, Run]]:
    """Train the cells of a release's proof at small scale. Return their runs, with names.

    batches: the number of rollout batches. processes: as for `rehearse`. Raise OrchError if the
    library cannot run here, or a training fails.
    """
    environment = environment_of(library, version)
    runs = []
    for name, declared in cells_of(library, version):
        cell = scaled_down(declared, folder, batches=batches).cell
        cell_dir = CellDir(folder / "cells" / f"{name}-{cell.id}")
        say(f"{library} {version} trains {name} ...")
        _, ending = train(cell, cell_dir, environment, processes=processes)
        if ending.state != "succeeded":
            log = cell_dir.attempts()[-1].stderr
            raise OrchError(f"{library} {version}, {name}: {ending.message} ({log})")
        runs.append((name, read_run(cell_dir)))
    return runs


def summary(outcomes: Iterable[RealRehearsal]) -> Iterator[str]:
    """Yield a sentence for each failure, with the name of its cell."""
    for each in outcomes:
        yield from (f"{each.declared.slug}: {trouble}" for trouble in each.troubles)
