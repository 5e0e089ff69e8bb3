"""Check a JSON value against a JSON Schema, for the outputs of a task (docs/TASKS.md). Pure.

A part of draft 2020-12: what describes a result. A schema with any other word is refused before anything runs, so that
no check is silently left out; `pattern` is none of them, since a model may have written it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from wal_agent.errors import UsageError
from wal_agent.text import shorten

MAX_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 32
_SAYS: Final = frozenset(("title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"))
_CHECKS: Final = frozenset(
    (
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
        *("minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"),
    )
)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
Schema = dict[str, Any] | bool


def read_schema(data: bytes) -> Schema:
    """Return the schema in `data`. UsageError: it is none, is too big, or has a word that is not checked."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"The schema has more than {MAX_BYTES >> 10} KiB.", "Describe the result in fewer words.")
    try:
        schema = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The schema is no JSON: {error}.", 'For example: {"type": "object"}') from error
    _check_schema(schema, 0)
    return schema  # type: ignore[no-any-return]


def _check_schema(schema: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise UsageError(f"The schema is nested more than {MAX_DEPTH} deep.", "Describe the result in fewer levels.")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise UsageError(f"{shorten(json.dumps(schema), 60)} is no schema.", 'For example: {"type": "string"}')
    if unknown := sorted(schema.keys() - _SAYS - _CHECKS):
        raise UsageError(
            f"The schema says {unknown[0]!r}, which is not checked.", f"Known: {', '.join(sorted(_CHECKS))}"
        )
    types = schema.get("type", [])
    named = types if isinstance(types, list) else [types]
    properties, any_of, required = schema.get("properties", {}), schema.get("anyOf", []), schema.get("required", [])
    limits = [schema.get(name, 0) for name in ("minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum")]
    sound = isinstance(properties, dict) and isinstance(any_of, list) and isinstance(schema.get("enum", []), list)
    sound = sound and all(isinstance(name, str) and name in _TYPES for name in named)
    sound = sound and isinstance(required, list) and all(isinstance(name, str) for name in required)
    if not sound or not all(_is(limit, "number") for limit in limits):
        raise UsageError(f"The schema has a word of another type: {shorten(json.dumps(schema), 100)}")
    inner = [schema[name] for name in ("items", "additionalProperties") if name in schema]
    for each in [*properties.values(), *any_of, *inner]:
        _check_schema(each, depth + 1)


def find_fault(value: Any, schema: Schema, at: str = "outputs") -> str:
    """Return the first way in which `value` is not what `schema` says, as a sentence; "" if it is."""
    if isinstance(schema, bool):
        return "" if schema else f"{at} must not be there."
    types = schema.get("type")
    named = types if isinstance(types, list) else [types] if types else []
    if named and not any(_is(value, name) for name in named):
        return f"{at} must be of type {' or '.join(named)}."
    if "const" in schema and not _equal(value, schema["const"]):
        return f"{at} must be {shorten(json.dumps(schema['const']), 60)}."
    if "enum" in schema and not any(_equal(value, each) for each in schema["enum"]):
        return f"{at} must be one of {shorten(json.dumps(schema['enum']), 100)}."
    if schema.get("anyOf") and all(find_fault(value, each, at) for each in schema["anyOf"]):
        return f"{at} is none of what it may be."
    match value:
        case dict():
            return _object_fault(value, schema, at)
        case list():
            size = _size_fault(len(value), schema, "Items", at)
            items = (find_fault(each, schema.get("items", True), f"{at}[{n}]") for n, each in enumerate(value))
            return size or next(filter(None, items), "")
        case str():
            return _size_fault(len(value), schema, "Length", at)
        case int() | float() if not isinstance(value, bool):
            low, high = schema.get("minimum", value), schema.get("maximum", value)
            return "" if low <= value <= high else f"{at} is out of bounds."
        case _:
            return ""


def _object_fault(value: dict[str, Any], schema: dict[str, Any], at: str) -> str:
    properties: dict[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            return f"{at}.{shorten(name, 60)} is missing."
    others: Schema = schema.get("additionalProperties", True)
    found = (
        find_fault(each, properties.get(name, others), f"{at}.{shorten(name, 60)}") for name, each in value.items()
    )
    return next(filter(None, found), "")


def _size_fault(size: int, schema: dict[str, Any], what: str, at: str) -> str:
    fits = schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size)
    return "" if fits else f"{at} has the wrong size ({size})."


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _equal(one: Any, other: Any) -> bool:
    """As JSON: true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
