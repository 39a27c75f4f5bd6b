"""Assignments: `field = value`, where the value was written, and the short forms of values."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from orchestrator.errors import did_you_mean
from orchestrator.fields import DEFAULTS, FIELDS, WHOLE, unknown
from orchestrator.sentences import shown
from orchestrator.settings import Estimator, Placement

Pointer = tuple[str | int, ...]
"""Where something was written: keys and indices from the root of the spec. A first key
`@model` means the config group entry that the second key names."""

Lookup = Callable[[str, str], Mapping[str, Any]]
"""(group, entry) -> its plain data. Raises LookupError with a sentence."""

PLACEMENTS = {**{word: word for word in get_args(Placement)}, "both": "reward_and_loss"}


class Assignment(NamedTuple):
    """A leaf or a whole section gets a value."""

    field: str
    value: Any
    pointer: Pointer

    @property
    def section(self) -> str:
        """The top-level field it changes."""
        return self.field.partition(".")[0]


class Problem(NamedTuple):
    """A fault, before it is known in which file and line its pointer lies."""

    message: str
    pointer: Pointer


class ToldError(Exception):
    """A value that cannot be read; carries the sentence."""


def read(
    field: str, value: object, pointer: Pointer, lookup: Lookup, problems: list[Problem]
) -> Iterator[Assignment]:
    """What writing `field: value` assigns. `field` may be empty: the value then holds fields."""
    try:
        yield from _read(field, value, pointer, lookup, problems)
    except ToldError as told:
        problems.append(Problem(str(told), pointer))


def _read(
    field: str, value: object, pointer: Pointer, lookup: Lookup, problems: list[Problem]
) -> Iterator[Assignment]:
    if field and field not in FIELDS:
        parent = field.rpartition(".")[0]
        known = parent in FIELDS and FIELDS[parent].section is not None
        raise ToldError(unknown(field[len(parent) + 1 :], parent) if known else unknown(field))
    if field in WHOLE:
        yield _whole(field, value, pointer, lookup)
    elif field == "kl" and isinstance(value, str):
        yield from _kl(value, pointer)
    elif isinstance(value, Mapping):
        if field and FIELDS[field].section is None:
            raise ToldError(f"{field} is one value, not a mapping; got {shown(dict(value))}")
        for key, item in value.items():
            child = f"{field}.{key}" if field else str(key)
            yield from read(child, item, (*pointer, key), lookup, problems)
    elif not field or (FIELDS[field].section is not None and not _clears(field, value)):
        raise ToldError(f"{field or 'this'} is a mapping of fields; got {shown(value)}")
    else:
        yield Assignment(field, value, pointer)


def _clears(field: str, value: object) -> bool:
    return value is None and FIELDS[field].nullable


def _whole(field: str, value: object, pointer: Pointer, lookup: Lookup) -> Assignment:
    """A model, data set or backend: an entry's name, `name@version`, or its content."""
    if not isinstance(value, str | Mapping):
        raise ToldError(f"{field} is a name or a mapping; got {shown(value)}")
    try:
        if isinstance(value, str) and field != "backend":
            return Assignment(field, {"name": value, **lookup(field, value)}, (f"@{field}", value))
        if isinstance(value, str):
            name, _, version = value.partition("@")
            value = {"name": name, "version": version or None}
        if field == "backend" and "name" in value:
            lookup(field, str(value["name"]))
    except LookupError as error:
        raise ToldError(str(error.args[0])) from None
    return Assignment(field, dict(value), pointer)


def _kl(label: str, pointer: Pointer) -> Iterator[Assignment]:
    """`none`, `k1.reward`, `k3.both`."""
    estimator, dot, placement = label.partition(".")
    known = get_args(Estimator)
    if estimator not in known:
        raise ToldError(f"no KL estimator is called '{estimator}'{did_you_mean(estimator, known)} "
                   f"(there are: {', '.join(known)})")  # fmt: skip
    yield Assignment("kl.estimator", estimator, pointer)
    if dot:
        if placement not in PLACEMENTS:
            raise ToldError(f"'{label}' names no placement{did_you_mean(placement, PLACEMENTS)} "
                       "(there are: reward, loss, both)")  # fmt: skip
        yield Assignment("kl.placement", PLACEMENTS[placement], pointer)


def put(tree: dict[str, Any], assignment: Assignment) -> None:
    """Carries out an assignment on nested plain data."""
    *parents, leaf = assignment.field.split(".")
    node = tree
    for parent in parents:
        below = node.get(parent)
        if not isinstance(below, dict):
            below = node[parent] = {}
        node = below
    node[leaf] = assignment.value
    if assignment.field == "kl.estimator" and assignment.value == "none":
        node.pop("placement", None)  # what the base says of a KL that is taken away
        node.pop("beta", None)


def flat(assignments: tuple[Assignment, ...]) -> dict[str, object]:
    """Dotted leaf -> value, for conditions to look at."""
    leaves: dict[str, object] = {}
    for field, value, _ in assignments:
        if isinstance(value, Mapping):
            leaves |= {f"{field}.{key}": item for key, item in value.items()}
        else:
            leaves[field] = value
        if field == "kl.estimator" and value == "none":
            leaves |= {"kl.placement": None, "kl.beta": 0.0}
    return leaves


def leaf_in(leaves: Mapping[str, object]) -> Callable[[str], object]:
    """How conditions look up a leaf: as assigned, else its default."""
    return lambda name: leaves.get(name, DEFAULTS.get(name))


def spelled(pointer: Pointer) -> str:
    """A pointer as a JSON path: `$.studies.onpolicy.axes['kl.beta'][0]`."""
    text = "$"
    for key in pointer:
        plain = isinstance(key, str) and key.replace("_", "a").replace("-", "a").isalnum()
        text += f".{key}" if plain else f"[{key!r}]"
    return text
