"""The classification rules as data, read from rules.toml (its head explains the fields)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from wal_agent.records import Class, Finding


@dataclass(frozen=True, slots=True)
class Classified:
    """What a call may change. `why` completes "It ..."; `verify` says how to find out what a call in flight did."""

    cls: Class
    rule: str
    why: str
    verify: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command that only reads, when it keeps to these options and operands."""

    program: tuple[str, ...]
    short: frozenset[str]
    long: frozenset[str]
    operands: re.Pattern[str]
    required: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    tools: Mapping[str, Classified]
    shell_tool: str
    shell_field: str
    shell_ignore: frozenset[str]
    shell_why: str
    commands: Mapping[str, tuple[Command, ...]]  # by the first word
    next: Mapping[Class, Mapping[Finding, str]]


class _Tool(msgspec.Struct, forbid_unknown_fields=True, rename={"cls": "class"}):
    rule: str
    cls: Class
    names: list[str]
    why: str
    verify: str = ""


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    program: str
    short: str = ""
    long: list[str] = []
    operands: str = ".*"
    required: str = ""


class _Shell(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    field: str
    ignore: list[str]
    why: str
    command: list[_Command]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tool: list[_Tool]
    shell: _Shell
    next: dict[Class, dict[Finding, str]]


def parse_rules(text: str) -> Rules:
    """Rules from TOML. Raises tomllib.TOMLDecodeError, msgspec.ValidationError or re.error: the file is ours."""
    file = msgspec.convert(tomllib.loads(text), _File)
    commands: dict[str, tuple[Command, ...]] = {}
    for c in file.shell.command:
        words = tuple(c.program.split())
        command = Command(words, frozenset(c.short), frozenset(c.long), re.compile(c.operands), c.required)
        commands[words[0]] = (*commands.get(words[0], ()), command)
    return Rules(
        tools={name: Classified(t.cls, t.rule, t.why, t.verify) for t in file.tool for name in t.names},
        shell_tool=file.shell.tool,
        shell_field=file.shell.field,
        shell_ignore=frozenset(file.shell.ignore),
        shell_why=file.shell.why,
        commands=commands,
        next=file.next,
    )


@cache
def load_rules() -> Rules:
    return parse_rules(files("wal_agent.recovery").joinpath("rules.toml").read_text("utf-8"))
