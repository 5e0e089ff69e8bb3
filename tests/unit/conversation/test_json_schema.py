"""conversation/json_schema.py: a value is checked by each word of the schema; one with another word is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wal_agent.conversation.json_schema import find_fault, read_schema
from wal_agent.errors import UsageError

CASES: list[tuple[Any, Any, bool]] = [
    (True, 1, True),
    (False, 1, False),
    ({"type": "integer"}, 3.0, True),
    ({"type": "integer"}, True, False),
    ({"type": ["string", "null"]}, None, True),
    ({"type": "number"}, "3", False),
    ({"const": 1}, True, False),
    ({"enum": [1, "a"]}, "a", True),
    ({"enum": [1, "a"]}, "b", False),
    ({"items": {"type": "string"}}, ["a", 1], False),
    ({"minItems": 2}, [1], False),
    ({"maxItems": 2}, [1, 2], True),
    ({"minLength": 2, "maxLength": 3}, "abcd", False),
    ({"minimum": 1, "maximum": 2}, 2, True),
    ({"minimum": 1}, 0, False),
    ({"minimum": 1}, "0", True),
    ({"required": ["a"]}, {"b": 1}, False),
    ({"required": ["a"]}, [], True),
    ({"properties": {"a": {"type": "string"}}, "additionalProperties": False}, {"a": "x"}, True),
    ({"properties": {"a": {"type": "string"}}, "additionalProperties": False}, {"b": "x"}, False),
    ({"additionalProperties": {"type": "integer"}}, {"b": "x"}, False),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, False),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "x", True),
    ({"title": "t", "description": "d"}, {}, True),
]


@pytest.mark.parametrize(("schema", "value", "sound"), CASES)
def test_each_word_is_checked(schema: Any, value: Any, sound: bool) -> None:
    read = read_schema(json.dumps(schema).encode())
    assert (find_fault(value, read) == "") is sound


def test_the_first_fault_is_named_with_its_place() -> None:
    schema = {"properties": {"files": {"items": {"required": ["line"]}}}}
    assert find_fault({"files": [{"line": 1}, {}]}, schema) == "outputs.files[1].line is missing."


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "3",
        '{"pattern": "(a+)+"}',
        '{"$ref": "#"}',
        '{"type": "thing"}',
        '{"type": {}}',
        '{"minItems": "1"}',
        '{"properties": []}',
        '{"required": "a"}',
        '{"properties": {"a": {"oneOf": []}}}',
        '{"items": ' * 40 + "true" + "}" * 40,
        '{"description": "' + "x" * (65 << 10) + '"}',
        "[" * 100_000,
    ],
)
def test_what_cannot_be_checked_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_schema(text.encode())
