"""The classification rules as data, read from rules.d (00-about.toml explains the fields)."""

from __future__ import annotations

import re
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as default
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.records import Class, Finding

if TYPE_CHECKING:
    from wal_agent.shell.project_rules import ProjectRule

OURS = "wal-agent"
# Commands of two words and more that run another command; what they are called is looked up like a rule.
CONTAINERS = (
    "docker exec",
    "docker run",
    "docker compose exec",
    "docker container exec",
    "docker-compose exec",
    "podman exec",
    "podman run",
    "kubectl exec",
    "oc exec",
)


@dataclass(frozen=True, slots=True)
class Classified:
    """What a call may change. `why` completes "It ..."; `verify` says how to find out what a call in flight did, and
    `ambiguous` what to do where that leaves doubt ("" = what is always said). `source`: whose rule it is. `project`:
    what a rule of the project says of the call; its words are advice, and `cls` is never below the built-in class."""

    cls: Class
    rule: str
    why: str
    verify: str = ""
    ambiguous: str = ""
    source: str = OURS
    project: Classified | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A rule for the commands that begin with the words of `program`.

    `listed`: it holds only for commands whose every option is in `short` and `long`, whose first operand matches
    `first`, and whose other operands match `operands`. `line`: what all operands, one space between them, must match.
    `free`: no option of the program can change what its class is. `value`: what the values of options must match.
    `sql`: what the operands must be (`sql.operand`).
    """

    rule: str
    program: str
    cls: Class
    why: str
    verify: str = ""
    ambiguous: str = ""
    source: str = OURS
    listed: bool = False
    free: bool = False
    short: frozenset[str] = frozenset()
    long: frozenset[str] = frozenset()
    first: re.Pattern[str] | None = None
    operands: re.Pattern[str] | None = None
    line: re.Pattern[str] | None = None
    values: frozenset[str] = frozenset()
    any: frozenset[str] = frozenset()
    none: frozenset[str] = frozenset()
    value: Mapping[str, re.Pattern[str]] = default(default_factory=dict)
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """Options in front of a subcommand that change nothing about what it is: `flags` alone, `values` with a value."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shell:
    """A tool that is given shell text, or the words of a command, in `field`; `ignore`: fields that change nothing, and
    those of `only` with that value. `folder`: fields that say where it runs. `wanders`: nor do they tell it all."""

    field: str
    ignore: frozenset[str]
    only: Mapping[str, str] = default(default_factory=dict)
    folder: tuple[str, ...] = ()
    wanders: bool = False

    def strange(self, fields: Mapping[str, object]) -> set[str]:
        """The fields that may change what is done."""
        given = {k for k, v in fields.items() if v not in (None, False)}
        plain = {k for k, v in self.only.items() if fields.get(k) == v}
        return given - self.ignore - plain - {self.field}


@dataclass(frozen=True, slots=True)
class FileTool:
    """A tool that changes files, with the names of its fields (63-files.toml explains them)."""

    kind: Literal["write", "edit", "patch"]
    path: str = ""
    content: str = ""
    old: str = ""
    new: str = ""
    ignore: frozenset[str] = frozenset()
    keeps: bool = False
    creates: bool = False

    def fits(self, fields: Mapping[str, object]) -> bool:
        """Whether these are its fields, each of them, and no others."""
        own = {f for f in (self.path, self.content, self.old, self.new) if f}
        return own <= fields.keys() <= own | self.ignore and all(isinstance(fields[f], str) for f in own)


@dataclass(frozen=True, slots=True)
class Rules:
    """`commands`: by all the words of their program. `begins`: what such words begin with. `project`: rules of the
    project; each can make a call's class worse, never better (`classify.tightened`)."""

    tools: Mapping[str, Classified]
    shells: Mapping[str, Shell]
    options: Mapping[str, Options]
    commands: Mapping[str, tuple[Command, ...]]
    begins: frozenset[str]
    next: Mapping[Class, Mapping[Finding, str]]
    files: Mapping[str, tuple[FileTool, ...]] = default(default_factory=dict)  # by tool
    own: Mapping[str, frozenset[str]] = default(default_factory=dict)  # by agent: its tools that only read, its shells
    project: tuple[ProjectRule, ...] = ()

    @property
    def ours(self) -> Rules:
        """These rules without those of the project."""
        return replace(self, project=()) if self.project else self

    def of(self, agent: str) -> Rules:
        """These rules as they hold for one agent: a tool that only reads elsewhere may be anyone's here (I1)."""
        own = self.own.get(agent, frozenset())
        return replace(
            self,
            tools={name: c for name, c in self.tools.items() if c.cls != "read_only" or name in own},
            shells={name: shell for name, shell in self.shells.items() if name in own},
        )

    @property
    def shell_tool(self) -> str:
        """The tool that shell text is taken for when nothing names one."""
        return next(iter(self.shells))

    @property
    def shell_field(self) -> str:
        return self.shells[self.shell_tool].field


class _Tool(msgspec.Struct, forbid_unknown_fields=True, rename={"cls": "class"}):
    rule: str
    cls: Class
    why: str
    names: list[str] = []
    agents: dict[str, list[str]] = {}
    verify: str = ""
    ambiguous: str = ""

    def all_names(self) -> set[str]:
        return {*self.names, *(name for names in self.agents.values() for name in names)}


class _Program(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    like: str = ""
    flags: list[str] = []
    values: list[str] = []


class _Command(msgspec.Struct, forbid_unknown_fields=True, rename={"cls": "class"}):
    rule: str
    program: str | list[str]
    cls: Class
    why: str
    verify: str = ""
    ambiguous: str = ""
    short: str | None = None
    long: list[str] | None = None
    first: str | None = None
    operands: str | None = None
    line: str | None = None
    options: str = ""
    values: list[str] = []
    any: list[str] = []
    none: list[str] = []
    value: dict[str, str] = {}
    sql: Literal["", "query", "constant", "name or query", "name or constant"] = ""


class _Shell(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    agents: list[str]
    field: str
    ignore: list[str]
    only: dict[str, str] = {}
    folder: list[str] = []
    wanders: bool = False


class _FileTool(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    kind: Literal["write", "edit", "patch"]
    path: str = ""
    content: str = ""
    old: str = ""
    new: str = ""
    ignore: list[str] = []
    keeps: bool = False
    creates: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tool: list[_Tool]
    shell: list[_Shell]
    next: dict[Class, dict[Finding, str]]
    file: list[_FileTool] = []
    program: list[_Program] = []
    command: list[_Command] = []


_file = msgspec_compat.of_values(_File)
_reading = threading.Lock()


def parse_rules(text: str) -> Rules:
    """Rules from TOML. Raises tomllib.TOMLDecodeError, msgspec.ValidationError, re.error or ValueError: the file is
    ours."""
    file = _file(tomllib.loads(text))
    names = Counter([*(t.rule for t in file.tool), *(c.rule for c in file.command)])
    if twice := [name for name, times in names.items() if times > 1]:
        raise ValueError(f"rules with the same name: {', '.join(twice)}")
    options: dict[str, Options] = {}
    likes: dict[str, str] = {}
    for p in file.program:
        if p.like:
            likes[p.name] = p.like
        if p.flags or p.values or not p.like:
            options[p.name] = Options(frozenset(p.flags), frozenset(p.values))
    commands: dict[str, list[Command]] = {}
    for c in file.command:
        for program in [c.program] if isinstance(c.program, str) else c.program:
            commands.setdefault(program, []).append(_command(c, program))
    for name, like in likes.items():
        options.setdefault(name, options.get(like, Options()))
        for program in [p for p in commands if p == like or p.startswith(like + " ")]:
            commands.setdefault(name + program[len(like) :], []).extend(commands[program])
    return Rules(
        tools={
            name: Classified(t.cls, t.rule, t.why, t.verify, t.ambiguous) for t in file.tool for name in t.all_names()
        },
        shells={s.tool: Shell(s.field, frozenset(s.ignore), s.only, tuple(s.folder), s.wanders) for s in file.shell},
        options=options,
        commands={program: tuple(rules) for program, rules in commands.items()},
        begins=frozenset(
            " ".join(w[:n]) for p in [*commands, *CONTAINERS] for w in [p.split()] for n in range(1, len(w) + 1)
        ),
        next=file.next,
        files=_file_tools(file.file),
        own=_own(file),
    )


def _own(file: _File) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for tool in file.tool:
        if (tool.cls == "read_only") == bool(tool.names):
            raise ValueError(f"{tool.rule}: names that only read are given by agent, others are not")
        for agent, names in tool.agents.items():
            found.setdefault(agent, set()).update(names)
    for shell in file.shell:
        for agent in shell.agents:
            found.setdefault(agent, set()).add(shell.tool)
    return {agent: frozenset(names) for agent, names in found.items()}


def _file_tools(given: Iterable[_FileTool]) -> Mapping[str, tuple[FileTool, ...]]:
    found: dict[str, tuple[FileTool, ...]] = {}
    for f in given:
        one = FileTool(f.kind, f.path, f.content, f.old, f.new, frozenset(f.ignore), f.keeps, f.creates)
        found[f.tool] = (*found.get(f.tool, ()), one)
    return found


def with_project(rules: Rules, extra: Iterable[ProjectRule]) -> Rules:
    """The rules with those of a project before them."""
    return replace(rules, project=(*extra, *rules.project))


def _command(c: _Command, program: str) -> Command:
    if c.options not in ("", "any"):
        raise ValueError(f"{c.rule}: options is {c.options!r}")
    return Command(
        rule=c.rule,
        program=program,
        cls=c.cls,
        why=c.why,
        verify=c.verify,
        ambiguous=c.ambiguous,
        listed=any(x is not None for x in (c.short, c.long, c.first, c.operands)),
        free=c.options == "any",
        short=frozenset(c.short or ""),
        long=frozenset(c.long or ()),
        first=_pattern(c.first),
        operands=_pattern(c.operands),
        line=_pattern(c.line),
        values=frozenset(c.values),
        any=frozenset(c.any),
        none=frozenset(c.none),
        sql=c.sql,
        value={option: _compiled(pattern) for option, pattern in c.value.items()},
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    """None where anything goes."""
    return None if text in (None, ".*") else _compiled(text)


def load_rules() -> Rules:
    with _reading:  # who comes meanwhile waits for them instead of reading them again
        return _load_rules()


@cache
def _load_rules() -> Rules:
    return parse_rules(rules_text())


def rules_text() -> str:
    """All files of rules.d in the order of their names, which is the order of the rules."""
    folder = files("wal_agent.shell").joinpath("rules.d")
    return "\n".join(file.read_text("utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name))
