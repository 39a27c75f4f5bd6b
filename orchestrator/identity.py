"""A cell's identity: a short hash of canonical JSON over the settings that change the result.

The encoding is ours to keep for ever (a golden test pins it): keys sorted, no spaces, UTF-8,
floats by their shortest round-trip form with integral floats written as integers (so `1` and
`1.0` are one value), names for people left out (`NOT_IDENTITY`), and fields added after the first
release left out while they hold the value that means "as before" (`BIRTH_VALUES`), so that a new
field renames no old cell.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from orchestrator import scoring
from orchestrator.settings import Frozen, Settings

SCHEME = "orch-cell/1"
ID_LENGTH = 12

NOT_IDENTITY = frozenset({"model.name", "data.name", "data.num_prompts"})
"""Names that people give (the path identifies the model or data set), and the expected number of
prompts."""

BIRTH_VALUES: Mapping[str, object] = {
    "precision.training": None,
    "precision.rollout": None,
    "precision.checkpoint": None,
    "loss.correction": None,
    "loss.policy": "ppo",
    "loss.ratio_level": "token",
    "kl.ratio_level": "token",
    "kl.reference": None,
    "kl.reference.task_reward": True,
    "kl.controller": None,
    "loss.entropy_bonus": 0.0,
    "backend.extra": {},
    "lora": None,
}
"""Dotted field -> the value that reproduces what orch did before the field existed.

A section that may be left out is one field here; the fields in it are as old as it is.
"""


def fingerprint(settings: Settings) -> str:
    """Return the 12 hexadecimal digits that name these settings for ever.

    Raise TypeError for a value that has no canonical form (NaN, infinity, an object).
    """
    return fingerprint_by_seed(settings)(settings.seed)


def fingerprint_by_seed(settings: Settings) -> Callable[[int], str]:
    """Return a function that gives the fingerprint of these settings with another seed.

    All but the seed is encoded once.
    """
    parts: dict[str, str] = {}
    for name in sorted(type(settings).model_fields):
        value = getattr(settings, name)
        if isinstance(value, Frozen):
            text = _encoded(value, f"{name}.")
            parts |= {name: text} if text != "{}" else {}
        elif _counts(name, value):
            parts[name] = encode(value)
    # Keys are sorted, so all text before the seed is hashed once. The bytes are those of
    # `encode(identity(settings))`.
    before = [f'"{name}":{text}' for name, text in parts.items() if name < "seed"]
    after = "".join(f',"{name}":{text}' for name, text in parts.items() if name > "seed")
    head = hashlib.sha256(f'{SCHEME}\n{{{",".join([*before, """"seed":"""])}'.encode())
    tail = f"{after}}}"

    def with_seed(seed: int) -> str:
        state = head.copy()
        state.update(f"{seed}{tail}".encode())
        return state.hexdigest()[:ID_LENGTH]

    return with_seed


def identity(settings: Settings) -> dict[str, object]:
    """Return the plain data that is hashed: `digest(identity(s)) == fingerprint(s)`."""
    return _counted(settings.model_dump(), "")


@lru_cache(maxsize=4096)
def _encoded(section: Frozen, prefix: str) -> str:
    """Return a section's canonical JSON. Cells share sections, so each is encoded once."""
    return encode(_counted(section.model_dump(), prefix))


def _counted(plain: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Return the fields that are part of an identity. A section without one is left out.

    A reward of orch's own counts with the version of its scorer, from the second on.
    """
    fields = (
        (key, _counted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value)
        for key, value in plain.items()
        if _counts(f"{prefix}{key}", value)
    )
    counted = {key: value for key, value in fields if value != {}}
    if prefix == "data." and (version := scoring.VERSIONS.get(str(plain["reward"]), 1)) > 1:
        counted["reward"] = f"{plain['reward']}, version {version}"
    return counted


def _counts(field: str, value: object) -> bool:
    # Compared in the canonical form, where 1 equals 1.0 and True does not equal 1.
    return field not in NOT_IDENTITY and not (
        field in BIRTH_VALUES and encode(value) == encode(BIRTH_VALUES[field])
    )


def digest(value: object) -> str:
    """Return the hash of any plain data in the canonical encoding."""
    return _hash(encode(value))


def _hash(text: str) -> str:
    return hashlib.sha256(f"{SCHEME}\n{text}".encode()).hexdigest()[:ID_LENGTH]


def encode(value: object) -> str:
    """Return canonical JSON. Raise TypeError with the path of what has no canonical form."""
    return json.dumps(
        _canonical(value, "$"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )


def _canonical(value: object, path: str) -> object:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} has no place in an identity  @ {path}")
        # 1.0 and 1 are one setting; from 2**53 on, neighbouring integers share one float
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys of an identity must be text  @ {path}")
        return {key: _canonical(value[key], f"{path}.{key}") for key in value}
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{path}[{i}]") for i, item in enumerate(value)]
    raise TypeError(
        f"{type(value).__name__} cannot be part of an identity; make it text, a number, a list "
        f"or a mapping  @ {path}"
    )


def flatten(plain: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted leaves of nested data, in order: `kl.beta`, 0.1."""
    for key, value in plain.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{dotted}.")
        else:
            yield dotted, value


def drift(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return every dotted field that differs between two identities: field -> (old, new)."""
    before, after = dict(flatten(old)), dict(flatten(new))
    return {
        field: (before.get(field), after.get(field))
        for field in sorted(before.keys() | after.keys())
        if encode(before.get(field)) != encode(after.get(field))
    }
