"""What `--json` prints: every answer is one object on one line, and `schema` in it says of which kind and version.

docs/reference/answers.json has the JSON Schema of each kind, made from these structs by scripts/reference.py. A new
field leaves the version as it is; another meaning or type of a field, and a field that goes, do not.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec


def schema_name(kind: str, version: int = 1) -> str:
    """ "wal-agent.trace-list/1" of "TraceList"."""
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in kind).strip("-")
    return f"wal-agent.{words}/{version}"


class JsonAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=schema_name):
    """An answer for programs: all of its fields are always there."""


def answer_json(value: JsonAnswer) -> None:
    """Write a command's answer to stdout as one line of JSON."""
    if sys.stdout is None:
        return
    sys.stdout.write(json_line(msgspec.to_builtins(value)) + "\n")
    sys.stdout.flush()


def json_line(value: Any) -> str:
    """Return one line of JSON in ASCII, which keeps control characters escaped. What is no number in JSON (NaN in a
    hostile record) is null."""
    from json import dumps

    try:
        return dumps(value, allow_nan=False)
    except ValueError:
        return dumps(msgspec.json.decode(msgspec.json.encode(value)))
