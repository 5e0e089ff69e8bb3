"""Every text that a record may have is hostile, whatever its kind: no command that reads a job writes it to a terminal
as it is (`sane` in trial.py)."""

from __future__ import annotations

import json
import types
import typing
from typing import Any, Literal

import msgspec
import pytest

from tests.faults.ruins import SESSION, add
from tests.faults.trial import EVIL, Ruin, sane
from wal_agent.bucket.base import Bucket
from wal_agent.records import AnyRecord, Handoff, Opening, Payload, RunEnded

READS: tuple[tuple[str, ...], ...] = (
    *(
        ("status",),
        ("status", "--json"),
        ("list",),
        ("list", "--json"),
        ("log", "-n", "0"),
        ("log", "-n", "0", "--json"),
    ),
    *(("log", "--crashes"), ("effects",), ("effects", "--json"), ("recall", "wal"), ("recall", "--call", "3")),
    *(("recall", "--before", "1"), ("diff",), ("diff", "--names"), ("stats",), ("stats", "--json"), ("trace",)),
    *(("checkpoint", "list"), ("checkpoint", "show"), ("inbox",), ("inbox", "--json"), ("state", "list")),
    *(("recover", "--dry-run"), ("recover", "--dry-run", "--json"), ("fleet", "ls"), ("fleet", "ls", "--json")),
    *(("gc", "--dry-run"), ("rm", "shop", "--dry-run"), ("restore", "--kept"), ("report", "--html", "r.html")),
)
WORDS = {"session": SESSION, "run": "run-9", "path": "session.jsonl"}  # checked before anything is shown


def value(kind: Any, name: str) -> Any:
    """What a field of the type `kind` may hold, with EVIL wherever text is allowed."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is str:
        return WORDS.get(name, EVIL)
    if kind in (int, float, bool, bytes):
        return {int: 3, float: 1000.0, bool: False, bytes: EVIL.encode()}[kind]
    if kind is Payload:
        half = "\ud83d"  # of an emoji, as JavaScript writes a string that was cut inside it
        data = json.dumps({"command": EVIL + half, "todos": [{"content": half}], EVIL: half}).encode()
        return Payload(size=len(data), data=data)
    if origin is Literal:
        return args[0]
    if origin is tuple:
        return (value(args[0], name),)
    if origin is dict:
        return {EVIL: 1.0}
    if origin in (types.UnionType, typing.Union):
        return value(args[0], name)
    hints = typing.get_type_hints(kind)
    return kind(**{field: value(hints[field], field) for field in kind.__struct_fields__})


def whole_log(last: type) -> list[object]:
    """A record of each kind; what begins or ends a run comes at the end, and one of these is the last."""
    kinds = [kind for kind in typing.get_args(AnyRecord) if kind not in LAST_KINDS]
    return [value(kind, "") for kind in (*kinds, last)]


LAST_KINDS = (Opening, Handoff, RunEnded)


@pytest.mark.parametrize("last", LAST_KINDS)
def test_no_text_of_a_record_reaches_a_terminal_as_it_is(ruin: Ruin, last: type) -> None:
    """Each command that reads shows what it can, and is done in time."""
    *records, newest = whole_log(last)

    def damage(bucket: Bucket) -> None:
        add(bucket, *records)
        add(bucket, msgspec.structs.replace(newest, epoch=2) if isinstance(newest, Opening) else newest)

    ruin.damage(damage)
    assert ruin.machine("status").code == 0, "all of it can be read"
    for argv in READS:
        sane(ruin.machine(*argv))
