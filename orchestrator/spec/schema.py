"""The JSON Schema of spec files, generated from the models, for editors and other tools.

It knows every field, its type and its bounds, and the grammar of axes. What needs the whole spec
(names of group entries, rules between fields, claims) is left to `load`.
"""

from typing import Any

from pydantic import TypeAdapter

from orchestrator.records import EvaluationSpec, Published, Sampling, Site
from orchestrator.settings import Frozen
from orchestrator.spec.expand import PLACEMENTS
from orchestrator.spec.fields import FIELDS, LABELS, WHOLE, SettingsField
from orchestrator.spec.language import SpecFile
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


def schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of spec files."""
    document = SpecFile.model_json_schema()
    definitions = document.pop("$defs")
    properties = document["properties"]
    study = definitions["StudyFile"]["properties"]
    properties["defaults"] = {"type": "array", "items": {"type": ["string", "object"]}}
    for owner in (properties, study):
        for field in WHOLE:
            owner[field] = _ref(f"value {field}")
        owner["base"] = _ref("fields")
        owner["recipe"] = {"anyOf": [_NAMED, _ref("fields")]}
    study["axes"] = _ref("axes")
    study["exclude"]["items"] = _ref("condition")
    study["include"]["items"] = _ref("fields")
    for name, model in _GROUPS.items():
        content = model.model_json_schema()
        definitions |= content.pop("$defs", {})
        definitions[name] = content
        properties[name] = {"anyOf": [_NAMED, _ref(name)]}
    definitions["evaluation"]["properties"]["sampling"] = {"anyOf": [_NAMED, _ref("sampling")]}
    document["$defs"] = definitions | _language()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orch experiment",
        **_open_to_interpolation(document),
    }


def _ref(name: str) -> JsonSchema:
    return {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}


def _language() -> JsonSchema:
    """Return definitions for the value and the axis of each field, and for what is made of them."""
    sections = [name for name, field in FIELDS.items() if field.section is not None]
    found: JsonSchema = {f"value {name}": _value(field) for name, field in FIELDS.items()}
    found |= {f"axis {name}": _axis(field) for name, field in FIELDS.items() if name != "seed"}
    found |= {f"grid {section}": _grid(f"axes {section}") for section in sections}
    found |= {f"axes {section}": _axes(section) for section in sections}
    found["grid"], found["axes"] = _grid("axes"), _axes("")
    found["fields"] = {
        "type": "object",
        "properties": {name: _ref(f"value {name}") for name in FIELDS},
        "additionalProperties": False,
    }
    found["condition"] = _condition()
    return found


def _value(field: SettingsField) -> JsonSchema:
    """Return what may be written for a field: its value, a part of its section, or a short form."""
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


def _grid(axes: str) -> JsonSchema:
    """Return the schema of a product, a zip or values, perhaps under a condition."""
    coupled: JsonSchema = {"minProperties": 1, **_ref(axes)}
    kinds: JsonSchema = {"product": coupled, "zip": coupled, "values": {}}
    return {
        "type": "object",
        "properties": {**kinds, "when": _ref("condition")},
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in kinds],
    }


def _axes(section: str) -> JsonSchema:
    """Return the schema of axes: fields of a section or in full; other names couple fields."""
    axes = {name: _ref(f"axis {name}") for name in FIELDS if name != "seed"}
    if section:
        axes |= {
            name.removeprefix(f"{section}."): _ref(f"axis {name}")
            for name in FIELDS
            if name.startswith(f"{section}.")
        }
        return {"type": "object", "properties": axes, "additionalProperties": False}
    free: JsonSchema = {
        "anyOf": [_ref("grid"), {"type": "array", "minItems": 1, "items": {"type": "object"}}]
    }
    return {
        "type": "object",
        "properties": axes,
        "additionalProperties": free,
        "propertyNames": {"not": {"const": "seed"}},
    }


def _axis(field: SettingsField) -> JsonSchema:
    grid = _ref(f"grid {field.name}" if field.section is not None else "grid")
    conditional: JsonSchema = {"type": "object", "required": ["when"]}
    items: JsonSchema = {"anyOf": [_ref(f"value {field.name}"), grid, conditional]}
    forms: list[JsonSchema] = [
        {"type": "array", "minItems": 1, "uniqueItems": True, "items": items},
        grid,
    ]
    if field.section is not None:
        forms.append({"minProperties": 1, **_ref(f"axes {field.name}")})
    return {"anyOf": forms}


def _condition() -> JsonSchema:
    """Return the schema of a condition: fields and what they are compared with."""
    plain: JsonSchema = {"type": ["string", "number", "boolean", "null"]}
    compared: JsonSchema = {"anyOf": [plain, {"type": "array", "minItems": 1, "items": plain}]}
    return {
        "type": "object",
        "minProperties": 1,
        "properties": dict.fromkeys((*FIELDS, *LABELS), compared),
        "additionalProperties": False,
    }


def _open_to_interpolation(node: Any) -> Any:
    """Return the schema in which every number, word or truth value may be a `${...}`."""
    if isinstance(node, list):
        return [_open_to_interpolation(item) for item in node]
    if not isinstance(node, dict):
        return node
    kinds = ("integer", "number", "boolean")
    if node.get("type") in kinds or ("enum" in node and "properties" not in node):
        return {
            "anyOf": [
                {k: v for k, v in node.items() if k not in ("title", "default")},
                INTERPOLATION,
            ]
        }
    return {
        key: value
        if key in ("const", "default", "required", "enum")
        else _open_to_interpolation(value)
        for key, value in node.items()
    }
