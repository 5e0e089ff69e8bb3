"""What commands write to stdout for programs: objects as docs/reference/answers.json says, stable within a version.

Each answer that the tests of tests/unit/cli get with --json is checked against its schema (conftest.py there)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from scripts import reference
from wal_agent.answers import JsonAnswer, answer_json, schema_name
from wal_agent.cli.commands import app

FROZEN = Path(__file__).with_name("answers.json")
WITHOUT = {  # commands whose answer is no data: a run, a page, a key, a file, the output of something else
    *("run", "resume", "acp", "demo", "report", "fleet report", "fleet watch", "fleet claim", "step", "settle", "mcp"),
    *("key show", "key import"),
}


class Said(JsonAnswer, frozen=True):
    age: float
    size: tuple[float, float]
    text: str


def test_an_answer_is_json_whatever_a_record_holds(capsys: pytest.CaptureFixture[str]) -> None:
    answer_json(Said(float("nan"), (float("inf"), 1.5), "\x1b[31m\x9b"))
    written = capsys.readouterr().out
    told = json.loads(written, parse_constant=pytest.fail)
    assert told == {"schema": "wal-agent.said/1", "age": None, "size": [None, 1.5], "text": "\x1b[31m\x9b"}
    assert written.isascii() and written.count("\n") == 1 and "\x1b" not in written


def leaves() -> dict[str, Any]:
    found = dict(reference._commands(typer.main.get_command(app), ()))
    return {" ".join(words): c for words, c in found.items() if words == ("checkpoint",) or not hasattr(c, "commands")}


def test_every_command_that_answers_has_it_and_is_documented() -> None:
    commands = leaves()
    able = {name for name, c in commands.items() if any("--json" in p.opts for p in c.params)}
    assert set(commands) - able == WITHOUT
    said = " ".join(reference._meaning(kind) for kind in reference.answer_types().values())
    assert [name for name in able if f"`wal-agent {name}" not in said and f"`{name}`" not in said] == []


def shape(schema: dict[str, Any], part: dict[str, Any], path: str, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """A line for each field, with its types: "job string", "crashes[].host string"."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from shape(schema, schema["$defs"][name], path, (*seen, name))
        return
    if kind := part.get("type"):
        yield f"{path} {kind}"
    for each in part.get("anyOf", ()):
        yield from shape(schema, each, path, seen)
    for name, each in part.get("properties", {}).items():
        yield from shape(schema, each, f"{path}.{name}".lstrip("."), seen)
    for each in [part["items"]] if part.get("items") else part.get("prefixItems", ()):
        yield from shape(schema, each, f"{path}[]", seen)
    if isinstance(more := part.get("additionalProperties"), dict):
        yield from shape(schema, more, f"{path}{{}}", seen)


def shapes() -> dict[str, list[str]]:
    schema = reference.answers_schema()
    kinds = {ref["$ref"].rpartition("/")[2] for ref in schema["oneOf"]}
    parts = {schema["$defs"][kind]["properties"]["schema"]["enum"][0]: schema["$defs"][kind] for kind in kinds}
    return {name: sorted(set(shape(schema, part, ""))) for name, part in sorted(parts.items())}


def test_within_a_version_no_field_goes_or_changes_its_type() -> None:
    """answers.json beside this file has the fields that programs may read. A field that is gone needs a new version of
    its schema, and both that version and new fields are added there: python -m tests.unit.test_answers."""
    now, frozen = shapes(), json.loads(FROZEN.read_text())
    gone = {name: sorted(set(fields) - set(now.get(name, ()))) for name, fields in frozen.items()}
    assert {name: fields for name, fields in gone.items() if fields or name not in now} == {}
    assert {name: fields for name, fields in now.items() if set(fields) - set(frozen.get(name, ()))} == {}, "add these"


def test_a_name_says_kind_and_version() -> None:
    assert schema_name("TraceList") == "wal-agent.trace-list/1" and schema_name("rm", 2) == "wal-agent.rm/2"


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(shapes(), indent=1) + "\n")
