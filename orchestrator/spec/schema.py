"""The JSON Schema of spec files, generated from the models, for editors and other tools.

It knows every field, its type and its bounds, and the grammar of axes. What needs the whole spec
(names of group entries, rules between fields, claims) is left to `load`.
"""

from typing import Any

from pydantic import TypeAdapter

from orchestrator.expand.assign import PLACEMENTS
from orchestrator.fields import FIELDS, LABELS, WHOLE, SettingsField
from orchestrator.sentences import choices
from orchestrator.spec.language import SpecFile
from orchestrator.types import Evaluation, Sampling, Site

Schema = dict[str, Any]

INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
_NAMED: Schema = {"type": "string", "minLength": 1}


def schema() -> Schema:
    """JSON Schema, draft 2020-12, of spec files."""
    document = SpecFile.model_json_schema()
    definitions = document.pop("$defs")
    properties = document["properties"]
    study = definitions["StudyFile"]["properties"]
    properties["defaults"] = {"type": "array", "items": {"type": ["string", "object"]}}
    for owner in (properties, study):
        for field in WHOLE:
            owner[field] = _value(FIELDS[field])
        owner["base"] = owner["base"] | _ref("fields")
        owner["recipe"] = {"anyOf": [_NAMED, _ref("fields")]}
    study["axes"] = _axes("")
    study["exclude"]["items"] = _ref("condition")
    study["include"]["items"] = _ref("fields")
    for name, model in (("site", Site), ("evaluation", Evaluation), ("sampling", Sampling)):
        content = model.model_json_schema()
        definitions |= content.pop("$defs", {})
        definitions[name] = content
        properties[name] = {"anyOf": [_NAMED, _ref(name)]}
    definitions["evaluation"]["properties"]["sampling"] = {"anyOf": [_NAMED, _ref("sampling")]}
    definitions |= {"fields": _fields(), "condition": _condition()}
    document["$defs"] = definitions
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orch experiment",
        **_open_to_interpolation(document),
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _fields() -> Schema:
    """Any part of the settings, nested or dotted."""
    seedless = {name: field for name, field in FIELDS.items() if name != "seed"}
    return {
        "type": "object",
        "properties": {name: _value(field) for name, field in seedless.items()}
        | {"seed": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }


def _value(field: SettingsField) -> Schema:
    """What may be written for a field: its value, a part of its section, or a short form."""
    if field.section is None:
        return TypeAdapter(field.annotation).json_schema()
    below = {
        name.removeprefix(f"{field.name}."): other
        for name, other in FIELDS.items()
        if name.startswith(f"{field.name}.")
    }
    part: Schema = {
        "type": "object",
        "properties": {name: _value(other) for name, other in below.items()},
        "additionalProperties": False,
    }
    forms: list[Schema] = [part]
    if field.name in WHOLE:
        forms.insert(0, _NAMED)
    if field.name == "kl":
        estimators = choices(FIELDS["kl.estimator"].annotation)
        forms.insert(0, {"enum": ["none", *(f"{e}.{p}" for e in estimators for p in PLACEMENTS)]})
    if field.nullable:
        forms.append({"type": "null"})
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _axes(section: str) -> Schema:
    """A mapping of axes: fields of a section, or of the whole settings; then any name may couple."""
    names = [n for n in FIELDS if n.startswith(f"{section}.")] if section else list(FIELDS)
    own: Schema = {"product": {"type": "object"}, "zip": {"type": "object"}, "values": {}}
    grid: Schema = {
        "type": "object",
        "properties": {**own, "when": _ref("condition")},
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in own],
    }
    axes = {
        name.removeprefix(f"{section}.") if section else name: _axis(FIELDS[name], grid)
        for name in names
        if name != "seed"
    }
    free: Schema = {"anyOf": [grid, {"type": "array", "minItems": 1, "items": _ref("fields")}]}
    return {"type": "object", "properties": axes, "additionalProperties": free,
            "propertyNames": {"not": {"const": "seed"}}}  # fmt: skip


def _axis(field: SettingsField, grid: Schema) -> Schema:
    conditional: Schema = {"type": "object", "required": ["when"]}
    items: Schema = {"anyOf": [_value(field), grid, conditional]}
    forms: list[Schema] = [
        {"type": "array", "minItems": 1, "uniqueItems": True, "items": items},
        grid,
    ]
    if field.section is not None:
        forms.append({"type": "object", "minProperties": 1,
                      "not": {"anyOf": [{"required": [k]} for k in ("product", "zip", "values")]}})  # fmt: skip
    return {"anyOf": forms}


def _condition() -> Schema:
    """Fields and what they are compared with."""
    plain: Schema = {"type": ["string", "number", "boolean", "null"]}
    compared: Schema = {"anyOf": [plain, {"type": "array", "minItems": 1, "items": plain}]}
    return {
        "type": "object",
        "minProperties": 1,
        "properties": {name: compared for name in (*FIELDS, *LABELS)},
        "additionalProperties": False,
    }


def _open_to_interpolation(node: Any) -> Any:
    """The same schema, in which every number, word or truth value may be a `${...}`."""
    if isinstance(node, list):
        return [_open_to_interpolation(item) for item in node]
    if not isinstance(node, dict):
        return node
    kinds = ("integer", "number", "boolean")
    if node.get("type") in kinds or ("enum" in node and "properties" not in node):
        return {"anyOf": [{k: v for k, v in node.items() if k not in ("title", "default")},
                          INTERPOLATION]}  # fmt: skip
    return {key: value if key in ("const", "default", "required", "enum")
            else _open_to_interpolation(value) for key, value in node.items()}  # fmt: skip
