"""The JSON Schema of spec files, generated from the models, for editors and other tools.

It has every field with its type and bounds, and the values of plain axes. What stands inside a
grid or needs the whole spec (names of group entries, rules between fields, claims) `load` checks.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from orchestrator.records import Cell, EvaluationSpec, Published, Sampling, Site
from orchestrator.settings import Frozen, Settings
from orchestrator.spec.expand import PLACEMENTS
from orchestrator.spec.fields import FIELDS, LABELS, WHOLE, SettingsField, SpecFile, sections_of
from orchestrator.spec.sentences import choices

JsonSchema = dict[str, Any]

INTERPOLATION: JsonSchema = {"type": "string", "pattern": r"\$\{"}
_GROUPS: dict[str, type[Frozen]] = {
    "site": Site,
    "evaluation": EvaluationSpec,
    "sampling": Sampling,
    "published": Published,
}
_NAMED: JsonSchema = {"type": "string", "minLength": 1}
_DEFAULTS = "Entries of config groups this spec begins with, as Hydra composes them."


def schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of spec files."""
    files: tuple[type[Frozen], ...] = (SpecFile, *_GROUPS.values())
    definitions = models_json_schema([(model, "validation") for model in files])[1]["$defs"]
    properties = definitions["SpecFile"]["properties"]
    study = definitions["StudyFile"]["properties"]
    properties["defaults"] = {
        "type": "array",
        "items": {"type": ["string", "object"]},
        "description": _DEFAULTS,
    }
    for owner in (properties, study):
        for field in WHOLE:
            owner[field] = _ref(f"value {field}")
        owner["base"] = _ref("fields")
        owner["system"] = _ref("value system")
        owner["recipe"] = {"anyOf": [_NAMED, _ref("fields")]}
    study["axes"] = _ref("axes")
    study["exclude"]["items"] = _ref("condition")
    study["include"]["items"] = _ref("fields")
    for name, model in _GROUPS.items():
        properties[name] = {"anyOf": [_NAMED, _ref(model.__name__)]}
    definitions["EvaluationSpec"]["properties"]["sampling"] = properties["sampling"]
    for name in ("EvalTask", "DivergenceTask"):
        definitions[name]["properties"]["when"] = _ref("condition")
    for model in _models(*files):
        own = definitions[model.__name__]["properties"]
        for name in model.model_fields:
            own[name] = own[name] | {"description": described(model, name)}
    document = definitions.pop("SpecFile") | {"$defs": definitions | _language()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orch experiment",
        **_open_to_interpolation(document),
    }


def described(model: type[Frozen], name: str) -> str:
    """Return the description of a field: the text under it in the model's source, or its section's
    text."""
    for owner in model.__mro__:
        text = _texts(owner).get(name) if issubclass(owner, Frozen) else None
        if text:
            return text
    sections = list(sections_of(model.model_fields[name].annotation))
    return inspect.cleandoc(sections[0].__doc__ or "") if sections else ""


@cache
def _texts(model: type[Frozen]) -> dict[str, str]:
    """Return the text under each field of a class, as in the source."""
    module = ast.parse(inspect.getsource(sys.modules[model.__module__]))
    (body,) = [
        n.body for n in module.body if isinstance(n, ast.ClassDef) and n.name == model.__name__
    ]
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _models(*models: type[Frozen]) -> Iterator[type[Frozen]]:
    """Return models and those of their fields."""
    for model in models:
        yield model
        for field in model.model_fields.values():
            yield from _models(*sections_of(field.annotation))


def about(name: str) -> str:
    """Return the description of a cell's field, or of a field's short name."""
    if name in FIELDS:
        owner, _, leaf = name.rpartition(".")
        if owner:
            section = FIELDS[owner].section
            return described(section, leaf) if section is not None else ""
        model = Settings if name in Settings.model_fields else Cell
        return described(model, name)
    return f"Short for {LABELS[name] or 'kl.estimator and kl.placement, as k1.reward'}."


def _ref(name: str) -> JsonSchema:
    return {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}


def _language() -> JsonSchema:
    """Return definitions of the value and the axis of each field, and of conditions."""
    definitions: JsonSchema = {
        f"value {name}": _value(field) | {"description": about(name)}
        for name, field in FIELDS.items()
    }
    definitions["axes"] = _axes()
    definitions["fields"] = {
        "type": "object",
        "properties": {name: _ref(f"value {name}") for name in FIELDS},
        "additionalProperties": False,
    }
    definitions["condition"] = _condition()
    return definitions


def _value(field: SettingsField) -> JsonSchema:
    """Return the schema of a field's value: a value, a part of its section, or a short form."""
    if field.section is None:
        return TypeAdapter(field.annotation).json_schema()
    forms: list[JsonSchema] = [
        {
            "type": "object",
            "properties": {
                name.removeprefix(f"{field.name}."): _ref(f"value {name}")
                for name in FIELDS
                if name.startswith(f"{field.name}.")
            },
            "additionalProperties": False,
        }
    ]
    if field.name in WHOLE:
        forms.insert(0, _NAMED)
    if field.name == "kl":
        estimators = choices(FIELDS["kl.estimator"].annotation)
        forms.insert(0, {"enum": ["none", *(f"{e}.{p}" for e in estimators for p in PLACEMENTS)]})
    if field.nullable:
        forms.append({"type": "null"})
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _axes() -> JsonSchema:
    """Return the schema of axes: names of fields, or any other name that couples fields."""
    free: JsonSchema = {
        "anyOf": [{"type": "object"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]
    }
    return {
        "type": "object",
        "properties": {
            name: _axis(name)
            for name in FIELDS
            if name != "seed" and name.partition(".")[0] != "system"
        },
        "additionalProperties": free,
        "propertyNames": {"not": {"const": "seed"}},
    }


def _axis(name: str) -> JsonSchema:
    """Return the schema of an axis: values and grids in a list, or one grid."""
    grid: JsonSchema = {"type": "object", "minProperties": 1}
    items: JsonSchema = {"anyOf": [_ref(f"value {name}"), grid]}
    values = {"type": "array", "minItems": 1, "uniqueItems": True, "items": items}
    return {"anyOf": [values, grid], "description": f"What varies: {about(name)}"}


def _condition() -> JsonSchema:
    """Return the schema of a condition: fields and the values to compare with."""
    plain: JsonSchema = {"type": ["string", "number", "boolean", "null"]}
    compared: JsonSchema = {"anyOf": [plain, {"type": "array", "minItems": 1, "items": plain}]}
    return {
        "type": "object",
        "minProperties": 1,
        "properties": {
            name: compared | {"description": about(name)} for name in (*FIELDS, *LABELS)
        },
        "additionalProperties": False,
    }


def _open_to_interpolation(node: Any) -> Any:
    """Return the schema with `${...}` allowed for every number, word and truth value."""
    if isinstance(node, list):
        return [_open_to_interpolation(item) for item in node]
    if not isinstance(node, dict):
        return node
    kinds = ("integer", "number", "boolean")
    if node.get("type") in kinds or ("enum" in node and "properties" not in node):
        return {
            "anyOf": [
                {k: v for k, v in node.items() if k not in ("title", "default", "description")},
                INTERPOLATION,
            ],
            **{k: v for k, v in node.items() if k == "description"},
        }
    return {
        key: value
        if key in ("const", "default", "required", "enum")
        else _open_to_interpolation(value)
        for key, value in node.items()
    }
