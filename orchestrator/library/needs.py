"""needs.json, the files that every launch has, and the way back from a launch to its cell.

needs.json is the part of a cell that no key of its library carries: the release, the prompts, and,
under `asked`, fields that the keys do not tell apart.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator import scoring
from orchestrator.errors import Fault, SpecError
from orchestrator.identity import flatten
from orchestrator.library import lora, prompt_recipe
from orchestrator.library.manifest import (
    ABSENT,
    COUNT,
    EXTRA_FILE,
    REWARD_RULES,
    TEXT,
    Account,
    Manifest,
    Number,
    Offer,
    Row,
    Values,
    fixed,
    same,
)
from orchestrator.library.manifest import (
    NEEDS as NEEDS,
)
from orchestrator.library.manifest import (
    asked as asked,
)
from orchestrator.records import Cell
from orchestrator.settings import Settings

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


def needs(settings: Settings, version: str, *fields: str) -> Mapping[str, object]:
    """Return needs.json of a launch.

    fields: fields of the cell that the launch's keys do not tell apart. None is left out.
    """
    values = dict(flatten(settings.model_dump()))
    return {
        "library": f"{settings.backend.name}=={version}",
        "prompts": settings.data.model_dump(),
        "asked": {name: values[name] for name in fields if values.get(name) is not None},
    }


def shared_files(cell: Cell, prompts_format: str, needed: Mapping[str, object]) -> dict[str, str]:
    """Return the files of a launch that every library has: name -> text.

    They are needs.json, the scorer, the recipe of the prompts, the merger of an adapter, and the
    list of the keys of backend.extra.
    """
    settings = cell.settings
    files = {NEEDS: json.dumps(needed, indent=1, ensure_ascii=False) + "\n"}
    files |= dict(scoring.files(settings.data.reward, cell.reward_code))
    files |= prompt_recipe.plan_file(settings.data, prompts_format)
    if settings.backend.extra:
        passed = json.dumps(settings.backend.passed, indent=1, ensure_ascii=False)
        files[EXTRA_FILE] = f"{passed}\n"
    return files | lora.file(settings)


@cache
def text_of(folder: Path, name: str) -> str:
    """Return the text of a file that a backend ships with its launches."""
    return (folder / name).read_text(encoding="utf-8")


def passed_keys(files: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of backend.extra of a launch that orch wrote; {} for any other."""
    return dict(json.loads(files.get(EXTRA_FILE, "{}")))


def read_back(
    manifest: Manifest, launch: Values, version: str | None, files: Mapping[str, str]
) -> Settings:
    """Return the settings that a launch of orch asks for.

    launch: its keys, and what it says in other places. version: its release, if it names one. Raise
    SpecError with every fault of a launch that makes no cell.
    """
    extra, source = passed_keys(files), f"launch of {manifest.library}"
    passed_on = {key.lstrip("+") if manifest.adds_keys else key for key in extra}
    own = {k: v for k, v in launch.items() if k not in passed_on - manifest.system_keys}
    try:
        plain: dict[str, Any] = manifest.read(own, manifest.release(version or None))
    except (ArithmeticError, TypeError) as error:
        raise SpecError(source, [Fault(f"it makes no cell: {error}")]) from error
    for section in ("model", "data"):  # a name of people, if no part of the launch has it
        plain[section].setdefault("name", name_of(plain[section]["path"]))
    if extra:
        plain["backend"] = {**plain.get("backend", {}), "extra": extra}
    try:
        return Settings.model_validate(plain)
    except ValidationError as error:
        raise SpecError(source, faults_of(error)) from error


def name_of(path: str) -> str:
    """Return a name for a model or a data set: the last part of its path."""
    last = path.rstrip("/").rpartition("/")[2]
    return _NOT_IN_NAMES.sub("-", last).lstrip("._+-")[:64] or "unknown"


def prompts_row(
    name: str,
    note: str = "",
    account: Callable[[Settings], Account] | None = None,
    **more: Any,
) -> Row:
    """Return the row of a field of `data`, which describes the prompts. `more`: of the row."""

    def read(launch: Values) -> object:
        plain: Any = launch.get(NEEDS) or {}
        return plain.get("prompts", {}).get(name, ABSENT)

    offers: Mapping[str, Offer] = {
        "num_prompts": Number(least=1, whole=True, null=True),
        "reward": REWARD_RULES,
        "max_prompt_tokens": COUNT,
    }
    own = {"carried_by": NEEDS, "offer": offers.get(name, TEXT), "read": read, "note": note}
    return Row(f"data.{name}", **{**own, "account": account, **more})


def label_row(library: str) -> Row:
    """Return the row of the model's name, which is for people."""
    return Row(
        "model.name",
        carried_by=NEEDS,
        note=f"a label, not sent to {library}",
    )


def backend_rows(library: str, versions: tuple[str, ...]) -> tuple[Row, Row]:
    """Return the rows of the library's name and release."""
    return (
        Row(
            "backend.name",
            carried_by="the program that is launched",
            offer=fixed(library),
        ),
        Row(
            "backend.version",
            carried_by=NEEDS,
            offer=same(None, *versions),
            note=f"see {NEEDS}",
        ),
    )


def faults_of(error: ValidationError) -> list[Fault]:
    """Return the faults of data that are not valid."""
    return [
        Fault(
            # A rule over several fields says what it got, and its input is all of them.
            each["msg"].removeprefix("Value error, ")
            if each["type"] == "value_error"
            else f"no cell has this value: {each['msg']}, got {str(each['input'])[:80]!r}",
            "$" + "".join(f".{part}" for part in each["loc"]),
        )
        for each in error.errors()
    ]
