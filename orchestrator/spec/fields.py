"""The fields of a spec file, and the table of the fields that its cells have.

`SpecFile` and `StudyFile` are the file; `orch init --schema` prints them. `FIELDS` has every dotted
name that a spec, a filter or a claim may use. `kl.beta` is a leaf, `kl` and `loss.clip` are
sections. A spec may also set `resources.*`, `cadence.*` and `system.*`, which are no part of a
cell's identity.
`LABELS` are short names: a cell shows its values of the grid's axes under them.
"""

from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args

from pydantic import Field
from pydantic.fields import FieldInfo

from orchestrator.errors import did_you_mean
from orchestrator.records import Logger
from orchestrator.settings import (
    Cadence,
    Frozen,
    Name,
    NonNegativeInt,
    Resources,
    Settings,
    System,
)

Seeds = list[NonNegativeInt]
Fields = dict[str, Any]
"""Settings, resources and cadence, nested or dotted, any part of them."""


class SpecLayer(Frozen):
    """What a spec and each of its studies may set. A study's own stands over the spec's."""

    recipe: str | Fields | None = None
    """Settings to begin with: an entry of recipe/, or its content. A study's own replaces the
    spec's."""
    model: str | Fields | None = None
    """An entry of model/, or its content."""
    data: str | Fields | None = None
    """An entry of data/, or its content."""
    backend: str | Fields | None = None
    """The library that trains: `verl`, `verl@0.9.1`, or name, version and extra: the library's own
    keys, which are passed on and not judged."""
    system: Fields = Field(default_factory=dict)
    """Memory and speed of the launches, over the site's. No part of a cell's identity."""
    base: Fields = Field(default_factory=dict)
    """Over the recipe: settings, resources and cadence."""


class StudyFile(SpecLayer):
    """A named sub-grid: one figure, one question."""

    title: str = ""
    """The title in the report."""
    figure: str = ""
    """The figure of the paper it repeats."""
    axes: Fields = Field(default_factory=dict)
    """The values that vary; see orchestrator/spec/expand."""
    exclude: list[Fields] = Field(default_factory=list)
    """Rows for which all of an entry holds are left out."""
    include: list[Fields] = Field(default_factory=list)
    """Further cells: fields over the base."""
    seeds: Seeds | None = None
    """Instead of the spec's seeds."""


class SpecFile(SpecLayer):
    """One experiment."""

    name: Name
    """Names the folder of runs and the MLflow experiment."""
    question: str = ""
    """The question that the experiment answers."""
    description: str = ""
    """For readers of the report."""
    seeds: Seeds = Field(default_factory=lambda: [0])
    """Every cell is trained once with each."""
    studies: dict[Name, StudyFile] = Field(min_length=1)
    """Study name -> sub-grid."""
    claims: dict[Name, str | dict[Name, str]] = Field(default_factory=dict)
    """Name -> statement, in the grammar of orchestrator/spec/claims.py, or family -> such names:
    p-values are corrected within each family, and over the claims outside of one."""
    evaluation: str | Fields | None = None
    """The evaluations of checkpoints: an entry of evaluation/, or its content."""
    sampling: str | Fields | None = None
    """The sampling of evaluations: an entry of sampling/, or its content."""
    published: str | Fields | None = None
    """Numbers to set ours beside: an entry of published/, or its content."""
    site: str | Fields | None = None
    """The place where cells run: an entry of site/, or its content."""
    loggers: list[Logger] = Field(default_factory=list)
    """Trackers that the library logs to by itself, live: wandb, tensorboard, mlflow, swanlab. Never
    part of a cell's id; keys come from the environment."""
    tune: Fields | None = None
    """The values that a search varies, as they are written."""


class SettingsField(NamedTuple):
    """One field: its annotation with constraints, and its model where it is a section."""

    name: str
    annotation: Any
    section: type[Frozen] | None
    nullable: bool
    default: object
    """None: the field has no default and must be given."""


def sections_of(annotation: Any) -> Iterator[type[Frozen]]:
    """Yield the models that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        yield annotation
    for option in get_args(annotation):
        yield from sections_of(option)


def _walk(model: type[Frozen], prefix: str) -> Iterator[SettingsField]:
    for name, info in model.model_fields.items():
        section = next(sections_of(info.annotation), None)
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
    """The sections outside the settings, as fields of one model."""

    resources: Resources = Resources()
    cadence: Cadence = Cadence()
    system: System = System()


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
    if not within and name in SpecFile.model_fields and name not in known:
        return f"'{name}' is no setting: write `{name}:` at the top of the spec, beside base"
    key, equals, value = name.partition("=")
    field = key if within else LABELS.get(key, "") or key
    if equals:
        return f"'{name}' has no value: in a file write `{field}: {value}`, with a colon"
    hint = f", did you mean '{field}'?" if field != name else did_you_mean(name, known)
    siblings = [field for field in known if "." not in field]
    listed = "" if hint else f" (it has: {', '.join(dict.fromkeys(siblings))})"
    return f"unknown field '{name}'{f' of {within}' if within else ''}{hint}{listed}"
