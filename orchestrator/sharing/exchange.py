"""Push finished cells to a store, and pull those that another person has trained."""

import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import read_scores
from orchestrator.files import remove_tree, telling, write_bytes, write_text
from orchestrator.records import Cell, Record
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.sharing.bundle import (
    HERE,
    Bundle,
    BundleFault,
    check,
    moved,
    objection,
    pack,
)
from orchestrator.sharing.store import ResultStore

_COMPUTING = ("torch", "numpy")
"""Packages whose releases must agree where an attempt has recorded them: numbers depend on them."""


class Exchanged(NamedTuple):
    """One cell, and what push or pull did with it."""

    cell: Cell
    outcome: Literal["shared", "pulled", "skipped"]
    note: str = ""
    """The reason why it was skipped, or the person who had shared it."""


def push(
    cells: Iterable[Cell], folder: RunFolder, store: ResultStore, by: str, *, dry: bool = False
) -> Iterator[Exchanged]:
    """Copy the cells that have succeeded into the store; yield each when it is done.

    dry: write nothing.
    """
    for record in collect(cells, folder):
        cell = record.cell
        if record.state != "succeeded":
            yield Exchanged(cell, "skipped", f"it is {record.state}")
        elif record.faults:
            yield Exchanged(cell, "skipped", f"not all of it can be read: {record.faults[0]}")
        else:
            bundle = pack(record, _num_scores(record), by, time.time())
            known = any(m.digest == bundle.manifest.digest for m in store.manifests(cell.id))
            if known or not (dry or store.put(bundle)):
                yield Exchanged(cell, "skipped", "the store has it")
            else:
                yield Exchanged(cell, "shared", f"{bundle.manifest.num_scores} scores")


def _num_scores(record: Record) -> int:
    return len(read_scores(CellDir(record.directory)))


def pull(
    cells: Sequence[Cell], folder: RunFolder, store: ResultStore, *, dry: bool = False
) -> Iterator[Exchanged]:
    """Copy cells that were never started here from the store; yield each when it is done.

    A shared cell is skipped if its id, scale, orch, library, versions or digest differs from what
    this machine would train. A cell with an attempt here is skipped, however the attempt ended.
    dry: write nothing. Raise EnvironmentFault if the store is empty or does not answer.
    """
    if store.is_empty():
        raise EnvironmentFault(f"{store.shown}: nothing is shared there; is the address right?")
    if not dry:
        folder.open()
    for cell in cells:
        home = folder.cell(cell)
        if home.attempts():
            yield Exchanged(cell, "skipped", "it has been started here")
            continue
        yield _pulled(cell, folder, store, dry=dry)


def _pulled(cell: Cell, folder: RunFolder, store: ResultStore, *, dry: bool) -> Exchanged:
    library = _library(cell, folder)
    reasons = []
    for manifest in store.manifests(cell.id):
        if why := objection(manifest, cell, library, _versions()):
            reasons.append(why)
            continue
        try:
            bundle = store.get(manifest)
            check(bundle)
        except BundleFault as fault:
            reasons.append(str(fault))
            continue
        if dry or _unpacked(bundle, cell, folder, store.shown):
            return Exchanged(cell, "pulled", f"shared by {manifest.by}")
        return Exchanged(cell, "skipped", "another process works on it")
    return Exchanged(cell, "skipped", reasons[0] if reasons else "the store does not have it")


def _library(cell: Cell, folder: RunFolder) -> str:
    """Return the library and version that would train the cell here, as job.json names them.

    Return "" if no installed backend translates the cell.
    """
    try:
        backend = plugins.load(cell.settings.backend.name)
        plan = backend.translate(cell, folder.cell(cell).first_paths())
    except OrchError:
        return ""
    return f"{plan.backend} {plan.version}".strip()


def _versions() -> dict[str, str]:
    """Return the versions of the packages that compute, without importing them."""
    known = {}
    for name in _COMPUTING:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            continue
    return known


def _unpacked(bundle: Bundle, cell: Cell, folder: RunFolder, shown: str) -> bool:
    """Write a shared cell into its directory; return False if another process works on it.

    The attempts are written to `.pulled` and renamed last, so a kill leaves the cell untrained.
    """
    home = folder.cell(cell)
    home.make(cell)
    claim = home.take_claim()
    if claim is None:
        return False
    with claim:
        # Again under the claim: another process may have started the cell since `pull` looked.
        if home.attempts():
            return False
        nascent = home.path / ".pulled"
        if nascent.exists():  # a killed pull has left it
            remove_tree(nascent)
        for name, content in bundle.files.items():
            top, _, rest = name.partition("/")
            if top == "attempts":
                write_bytes(nascent / rest, content)
            elif top == "plan":
                write_bytes(home.path / name, moved(name, content, HERE, str(home.path)))
            elif top == "eval":
                write_bytes(home.path / name, content)
        for path in nascent.iterdir():
            attempt = AttemptDir(path, int(path.name))
            write_text(attempt.origin, bundle.manifest.model_dump_json(indent=1) + "\n")
            if (ended := attempt.read_exit()) is not None:
                attempt.write_exit(ended.but(origin=shown))
        with telling(home.path):
            nascent.rename(home.path / "attempts")
        folder.append("pulled", cell.id, store=shown, digest=bundle.manifest.digest)
    return True
