"""Read a launch of verl, written by orch or by anybody, as settings."""

import json
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from backends.verl import checks
from backends.verl.manifest import ASKED, DATA, MANIFEST, MODEL, NEWEST, PROJECT, TABLES, VERSIONS
from backends.verl.overrides import read
from backends.verl.translate import MAIN
from orchestrator.errors import Fault, SpecError
from orchestrator.library.manifest import Values
from orchestrator.library.needs import name_of
from orchestrator.settings import Settings

SOURCE = "launch of verl"


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch: its overrides over the release's defaults.

    Overrides come after `-m verl.trainer.main_ppo`. The file `data.json` holds the content of the
    training file. Without it, data.path is the training file itself, with orch's default reward
    rule. A launch without a seed has seed 0. Raise SpecError with every fault.
    """
    given, faults = _given(argv)
    data, requested = _object(DATA, files, faults), _object(ASKED, files, faults)
    version = _version(given, faults) or NEWEST
    values = {**TABLES[version].defaults, **given}
    faults += checks.faults(checks.LaunchValues(given, values, version, data.get("num_prompts")))
    if faults:
        raise SpecError(SOURCE, faults)
    plain = MANIFEST.read(
        given | {name: carried for name, carried in ((DATA, data), (ASKED, requested)) if carried},
        version,
    )
    try:
        return Settings.model_validate(_named(plain, values))
    except ValidationError as error:
        raise SpecError(
            SOURCE,
            [
                Fault(
                    f"{each['msg']}, got {str(each['input'])[:80]!r}",
                    "$" + "".join(f".{part}" for part in each["loc"]),
                )
                for each in error.errors()
            ],
        ) from error


def _given(argv: Sequence[str]) -> tuple[dict[str, object], list[Fault]]:
    """Return the overrides of a command line, and the faults. The last override of a key counts."""
    if MAIN not in argv:
        return {}, [Fault(f"{MAIN} is not what this launch runs; it is all that is read here")]
    given: dict[str, object] = {}
    faults = []
    for text in argv[list(argv).index(MAIN) + 1 :]:
        try:
            key, value = read(text)
            given[key] = value
        except ValueError as error:
            faults.append(Fault(str(error)))
    return given, faults


def _object(name: str, files: Mapping[str, str], faults: list[Fault]) -> dict[str, object]:
    """Return the content of a JSON file of the launch, or {} for a launch without it."""
    if name not in files:
        return {}
    try:
        return dict(json.loads(files[name]))
    except (ValueError, TypeError) as error:
        faults.append(Fault(f"{name} is not a JSON object: {error}"))
        return {}


def _version(given: Values, faults: list[Fault]) -> str | None:
    """Return the release in trainer.project_name, where translate writes it."""
    name, _, version = str(given.get(PROJECT, "")).partition("@")
    if name != "verl" or not version:
        return None
    if version not in VERSIONS:
        faults.append(
            Fault(
                f"verl {version} is not driven by orch, which knows {', '.join(VERSIONS)}",
                f"$.{PROJECT}",
            )
        )
        return None
    return version


def _named(plain: dict[str, object], values: Values) -> dict[str, object]:
    """Return the fields with names for the model, and for prompts without data.json.

    A name is the last part of a path.
    """
    model, data = plain["model"], plain["data"]
    model = {"name": name_of(str(values[f"{MODEL}.path"]))} | _section(model)
    data = {"name": name_of(str(values["data.train_files"]))} | _section(data)
    return plain | {"model": model, "data": data}


def _section(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}
