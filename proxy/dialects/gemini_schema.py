"""Gemini's schema of parameters and answers as JSON Schema.

Owns the differences: types in capitals, ``nullable``, limits written as strings (64-bit numbers in protobuf's JSON),
``propertyOrdering``, and both spellings of every keyword. What is neither is handed on as it is. The one non-obvious
fact: names under ``properties`` and values of ``enum`` or ``default`` are the user's and are never respelt.
"""

from __future__ import annotations

from typing import Any, Final

from forge.proxy.dialects.gemini_node import camel

WHOLE: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
ONE: Final = frozenset({"items", "additionalProperties", "not"})
"""Keywords whose value is a schema (or a plain true or false)."""
SEVERAL: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
NAMED: Final = frozenset({"properties", "$defs", "definitions"})
RENAMED: Final = {"ref": "$ref", "defs": "$defs", "example": "examples"}
UNSPECIFIED: Final = "type_unspecified"
NULL: Final = "null"


def json_schema(schema: Any) -> Any:
    """Total: what is no schema stays what it is."""
    if not isinstance(schema, dict):
        return schema
    given = {_keyword(name): value for name, value in schema.items() if value is not None}
    nullable = given.pop("nullable", False) is True
    order = given.pop("propertyOrdering", None)
    made = {name: _value(name, value) for name, value in given.items()}
    if made.get("type") == UNSPECIFIED:
        del made["type"]
    if isinstance(order, list) and isinstance(made.get("properties"), dict):
        made["properties"] = _ordered(made["properties"], order)
    return _nullable(made) if nullable else made


def _keyword(name: str) -> str:
    name = camel(name)
    return RENAMED.get(name, name)


def _value(name: str, value: Any) -> Any:
    if name == "type":
        return [_type(one) for one in value] if isinstance(value, list) else _type(value)
    if name == "examples" and not isinstance(value, list):
        return [value]
    if name in WHOLE and isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if name in ONE:
        return json_schema(value)
    if name in SEVERAL and isinstance(value, list):
        return [json_schema(one) for one in value]
    if name in NAMED and isinstance(value, dict):
        return {key: json_schema(one) for key, one in value.items()}
    return value


def _type(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _ordered(properties: dict[str, Any], order: list[Any]) -> dict[str, Any]:
    first = [name for name in order if isinstance(name, str) and name in properties]
    return {name: properties[name] for name in dict.fromkeys([*first, *properties])}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, or null."""
    kind = schema.get("type")
    if kind is not None:
        kinds = kind if isinstance(kind, list) else [kind]
        schema["type"] = [*kinds, *([] if NULL in kinds else [NULL])]
        if isinstance(choices := schema.get("enum"), list) and None not in choices:
            schema["enum"] = [*choices, None]
    elif isinstance(options := schema.get("anyOf"), list):
        schema["anyOf"] = [*options, {"type": NULL}]
    return schema
