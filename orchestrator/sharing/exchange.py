"""Push finished cells to a store, and pull those that somebody else has trained."""

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
    """What became of a cell."""

    cell: Cell
    what: Literal["shared", "taken", "left"]
    note: str = ""
    """Why it was left alone, or who had shared it."""


def push(
    cells: Iterable[Cell], folder: RunFolder, store: ResultStore, by: str, *, dry: bool = False
) -> Iterator[Exchanged]:
    """Share the cells that have succeeded; yield each when it is done. dry: write nothing."""
    for record in collect(cells, folder):
        cell = record.cell
        if record.state != "succeeded":
            yield Exchanged(cell, "left", f"it is {record.state}")
        elif record.faults:
            yield Exchanged(cell, "left", f"not all of it can be read: {record.faults[0]}")
        else:
            bundle = pack(record, _num_scores(record), by, time.time())
            known = any(m.digest == bundle.manifest.digest for m in store.manifests(cell.id))
            if known or not (dry or store.put(bundle)):
                yield Exchanged(cell, "left", "the store has it")
            else:
                yield Exchanged(cell, "shared", f"{bundle.manifest.num_scores} scores")


def _num_scores(record: Record) -> int:
    return len(read_scores(CellDir(record.directory)))


def pull(
    cells: Sequence[Cell], folder: RunFolder, store: ResultStore, *, dry: bool = False
) -> Iterator[Exchanged]:
    """Take the cells that are not trained here and that the store has; yield each when it is done.

    Nothing is taken whose id, scale, orch, library, versions or digest is another. A cell with an
    attempt here, of whatever end, is left alone. dry: write nothing. Raise EnvironmentFault for a
    store that is empty or does not answer.
    """
    if store.is_empty():
        raise EnvironmentFault(f"{store.shown}: nothing is shared there; is the address right?")
    if not dry:
        folder.open()
    for cell in cells:
        home = folder.cell(cell)
        if home.attempts():
            yield Exchanged(cell, "left", "it has been started here")
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
            return Exchanged(cell, "taken", f"shared by {manifest.by}")
        return Exchanged(cell, "left", "another process works on it")
    return Exchanged(cell, "left", reasons[0] if reasons else "the store does not have it")


def _library(cell: Cell, folder: RunFolder) -> str:
    """Return what would train the cell here, as an attempt's job.json names it; "" if nothing."""
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

    Its attempts appear at once and last: until then the cell is as it was, not trained.
    """
    home = folder.cell(cell)
    home.make(cell)
    claim = home.take_claim()
    if claim is None:
        return False
    with claim:
        if home.attempts():
            return False
        nascent = home.path / ".pulled"
        if nascent.exists():  # of a pull that was killed
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
