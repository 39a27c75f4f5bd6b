"""Low-rank adapters in a library: the rows of `lora`, and the export of what it saved.

A library saves an adapter beside its base model, which is no policy to evaluate: read as it is, it
would score as the base. A launch with `lora` ships MERGE, and `export_command` of its backend runs
it with the library's Python.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from orchestrator.library.checkpoints import has_all_tensors
from orchestrator.library.manifest import ABSENT, COUNT, Row, Status, Such, Values
from orchestrator.settings import ALL_LINEAR, Lora, Settings

MERGE = "orch_merge_adapter.py"
ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""What PEFT saves of an adapter."""


NO_ADAPTER = Such("null", lambda value: value is None)
NAMES = Such("names of modules", lambda value: isinstance(value, str) and value != ALL_LINEAR)
ANY_TARGETS = Such(f"{ALL_LINEAR}, names of modules", lambda value: isinstance(value, str))


def rows(
    rank: str,
    alpha: str,
    targets: str,
    *,
    is_on: Callable[[Values], bool],
    off: str,
    adds: Values,
    write: Callable[[Lora], object],
    note: str,
    of_targets: str,
    offer: Such = ANY_TARGETS,
    advice: str = "",
    trained: bool = False,
) -> tuple[Row, ...]:
    """Return the rows of a library with adapters.

    rank, alpha, targets: its keys. is_on: returns True for a launch with an adapter. off: why a
    launch without the keys has none. adds: further keys of an adapter. write: returns the value of
    `targets`. note: on the adapter, which the ledger has at its rank. of_targets: on the targets.
    offer, advice: of the targets. trained: the library trained such a cell in a test;
    else its adapters are read in its source, and the ledger says `not judged`.
    """
    status: Status = "exact" if trained else "not judged"

    def read(key: str) -> Callable[[Values], object]:
        return lambda launch: (launch.get(key) or ABSENT) if is_on(launch) else ABSENT

    def read_targets(launch: Values) -> object:
        given = launch.get(targets) if is_on(launch) else None
        if given is None:
            return ABSENT
        try:
            return Lora(rank=1, alpha=1, targets=given).targets  # type: ignore[arg-type]  # it checks
        except ValidationError as error:
            raise KeyError(given) from error

    return (
        Row(
            "lora",
            carried_by=off,
            offer=NO_ADAPTER,
            read=lambda launch: ABSENT if is_on(launch) else None,
        ),
        Row(
            "lora.rank",
            rank,
            offer=COUNT,
            adds=lambda _: adds,
            read=read(rank),
            status=status,
            note=note,
        ),
        Row(
            "lora.alpha",
            alpha,
            offer=COUNT,
            read=read(alpha),
            status=status,
            note="the update is scaled by alpha / rank",
        ),
        Row(
            "lora.targets",
            targets,
            offer=offer,
            write=lambda settings: write(settings.lora) if settings.lora else ABSENT,
            read=read_targets,
            status=status,
            note=of_targets,
            advice=advice,
        ),
    )


def none(why: str, advice: str) -> Row:
    """Return the row of a library whose launches have no adapters."""
    return Row("lora", carried_by=why, offer=NO_ADAPTER, read=lambda _: None, advice=advice)


def file(settings: Settings) -> dict[str, str]:
    """Return the file that a launch with an adapter ships: name -> text."""
    return {MERGE: source()} if settings.lora is not None else {}


@cache
def source() -> str:
    """Return the text of MERGE."""
    return Path(__file__).with_name("merge_adapter.py").read_text("utf-8")


def is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter to its last byte, as PEFT saves it."""
    try:
        return (folder / CONFIG).stat().st_size > 0 and has_all_tensors(folder / ADAPTER)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def merge_command(
    adapter: Path,
    checkpoints_dir: Path,
    target: Path,
    *,
    precision: str,
    base: Path | None = None,
    first: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the argv that writes base and adapter to `target` as one Hugging Face directory.

    base: None: the one that the adapter's own configuration names. first: a command that makes
    both. precision: the number format of the weights.
    """
    words = ["python", str(checkpoints_dir.parent / "plan" / MERGE), str(adapter), str(target)]
    words += ["--precision", precision, *(["--base", str(base)] if base else [])]
    return (*words, *(["--first", *first] if first else []))
