"""Plain data against the models: every fault as a sentence and a pointer."""

from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orchestrator.expand.assign import Pointer, Problem
from orchestrator.sentences import sentence, shown
from orchestrator.settings import Frozen, Settings
from orchestrator.spec.language import SpecFile, StudyFile
from orchestrator.types import Baseline, Divergence, Engine, EvalTask, PublishedNumber, Sampling

_BELOW: dict[str | int, type[Frozen]] = {
    "tasks": EvalTask,
    "baselines": Baseline,
    "sampling": Sampling,
    "divergence": Divergence,
    "engine": Engine,
    "numbers": PublishedNumber,
}


def checked(plain: dict[str, Any], problems: list[Problem]) -> SpecFile | None:
    """The file against the language. What is at fault is told and taken out, so that the rest is
    checked too."""
    for _ in range(4):
        try:
            return SpecFile.model_validate(plain)
        except ValidationError as error:
            whole = plain
            for detail in error.errors():
                pointer, union = _pointer(detail["loc"], whole)
                field = ".".join(map(str, pointer)) or "spec"
                if union:
                    message = f"{field} is a name or a mapping; got {shown(detail['input'])}"
                elif detail["type"] == "too_short":
                    message = "a spec needs at least one study"
                else:
                    message = sentence(detail, field, _known(pointer)) + _setting(detail, pointer)
                if Problem(message, pointer) not in problems:
                    problems.append(Problem(message, pointer))
                plain = _without(plain, pointer)
            plain.setdefault("name", "unnamed")
            if not plain.get("studies"):
                return None
    return None


def _pointer(loc: tuple[str | int, ...], plain: Any) -> tuple[Pointer, bool]:
    """The part of a pydantic location that is in the data, and whether an alternative failed."""
    pointer: list[str | int] = []
    node = plain
    for i, key in enumerate(loc):
        if not _holds(node, key):
            last = i == len(loc) - 1
            named = last and str(key).isidentifier() and isinstance(node, dict)
            return tuple([*pointer, key] if named else pointer), not named and key != "[key]"
        pointer.append(key)
        node = node[key]
    return tuple(pointer), False


def _holds(node: Any, key: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(key, int) and key < len(node)
    return isinstance(node, dict) and key in node


def _known(pointer: Pointer) -> tuple[str, ...]:
    inside_study = len(pointer) == 3 and pointer[0] == "studies"
    return tuple((StudyFile if inside_study else SpecFile).model_fields)


def _setting(detail: ErrorDetails, pointer: Pointer) -> str:
    """Where a setting belongs, if that is what a field we do not know is."""
    name, _, below = (str(pointer[-1]) if pointer else "").partition(".")
    meant = get_close_matches(name, Settings.model_fields, 1, 0.8)
    if detail["type"] != "extra_forbidden" or not meant:
        return ""
    full = f"{meant[0]}.{below}" if below else meant[0]
    return f"; '{full}' is a setting: give it under base, or under a study's axes to vary it"


def _without(plain: Any, pointer: Pointer) -> Any:
    """The data without one of its parts; a list is left out whole."""
    if not pointer or not isinstance(plain, dict):
        return plain
    key, rest = pointer[0], pointer[1:]
    if rest and isinstance(plain.get(key), dict):
        return {**plain, key: _without(plain[key], rest)}
    return {other: value for other, value in plain.items() if other != key}


def valid(
    kind: type[Frozen], plain: dict[str, Any], at: Pointer, problems: list[Problem]
) -> Frozen | None:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        for detail in error.errors():
            owner: Any = kind
            for key in detail["loc"][:-1]:
                owner = _model_below(owner, key)
            known = tuple(owner.model_fields) if owner else ()
            field = ".".join(map(str, (kind.__name__.lower(), *detail["loc"])))
            problems.append(Problem(sentence(detail, field, known), (*at, *detail["loc"])))
        return None


def _model_below(owner: Any, key: str | int) -> Any:
    """The model of a field, or of the items of a list; None where there is none."""
    return owner if isinstance(key, int) or owner is None else _BELOW.get(key)
