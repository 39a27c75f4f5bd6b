"""The table of fields: every dotted name a spec, a filter or a claim may use.

`kl.beta` is a leaf, `kl` and `loss.clip` are sections. A spec may also set `resources.*` and
`cadence.*`, which are no part of a cell's identity. `LABELS` are short names: a cell shows its
values of the grid's axes under them.
"""

from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from orchestrator.errors import did_you_mean
from orchestrator.settings import Cadence, Frozen, Resources, Settings


class SettingsField(NamedTuple):
    """One field: its annotation with constraints, and its model where it is a section."""

    name: str
    annotation: Any
    section: type[Frozen] | None
    nullable: bool
    default: object
    """None: the field has no default and must be given."""


def _section_of(annotation: Any) -> type[Frozen] | None:
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, Frozen):
            return option
    return None


def _walk(model: type[Frozen], prefix: str) -> Iterator[SettingsField]:
    for name, info in model.model_fields.items():
        section = _section_of(info.annotation)
        field = _field(f"{prefix}{name}", info, section)
        yield field
        if section is not None:
            yield from _walk(section, f"{prefix}{name}.")


def _field(name: str, info: FieldInfo, section: type[Frozen] | None) -> SettingsField:
    annotation: Any = info.annotation
    nullable = NoneType in get_args(annotation)
    if info.metadata:
        annotation = Annotated[(annotation, *info.metadata)]
    default = None if info.is_required() else info.default
    return SettingsField(name, annotation, section, nullable, default)


class _Declared(Frozen):
    """The two sections outside the settings, as fields of one model."""

    resources: Resources = Resources()
    cadence: Cadence = Cadence()


FIELDS: dict[str, SettingsField] = {
    field.name: field for model in (Settings, _Declared) for field in _walk(model, "")
}
DEFAULTS: dict[str, object] = {f.name: f.default for f in FIELDS.values() if f.section is None}
WHOLE = ("model", "data", "backend")
"""Sections that a value replaces as a whole. Values of other sections are merged."""

LABELS: dict[str, str] = {
    "model": "model.name",
    "data": "data.name",
    "kl": "",
    "beta": "kl.beta",
    "backend": "backend.name",
    "async": "max_staleness_steps",
    "seed": "seed",
}
"""Short name -> the leaf it shows; `kl` is shown as `none`, `k1.reward`, `k3.both`."""


def label_of(name: str, leaf: Callable[[str], object]) -> str:
    """Return the text that a cell shows on an axis. leaf: returns the cell's value of a leaf."""
    if name == "kl":
        estimator, placement = leaf("kl.estimator"), leaf("kl.placement")
        short = "both" if placement == "reward_and_loss" else placement
        return text_of(estimator if placement is None else f"{estimator}.{short}")
    return text_of(leaf(LABELS.get(name, name)))


def text_of(value: object) -> str:
    """Return a value as a person writes it: `none`, `true`, `0.05`, `low0.2-high0.28`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}".replace("e-0", "e-")
    if isinstance(value, Frozen):
        value = dict(value)
    if isinstance(value, Mapping):
        return "-".join(f"{k}{text_of(item)}" for k, item in value.items() if item is not None)
    return str(value)


def unknown(name: str, within: str = "") -> str:
    """Return the sentence for a name that is no field of the section `within`."""
    known = (
        [field.removeprefix(f"{within}.") for field in FIELDS if field.startswith(f"{within}.")]
        if within
        else [*FIELDS, *LABELS]
    )
    hint = did_you_mean(name, known)
    siblings = [field for field in known if "." not in field]
    listed = "" if hint else f" (it has: {', '.join(dict.fromkeys(siblings))})"
    return f"unknown field '{name}'{f' of {within}' if within else ''}{hint}{listed}"
