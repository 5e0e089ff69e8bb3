"""The classification rules, compiled from the rows of rules.d (rules_format.py says what the fields mean)."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as default
from functools import cache
from typing import TYPE_CHECKING, Literal

from wal_agent.records import Class, Finding
from wal_agent.shell.rules_format import CommandRow, RulesFile, expand_programs, join, parse_file, read_texts

if TYPE_CHECKING:
    from wal_agent.shell.project_rules import ProjectRule

OURS = "wal-agent"
NOTHING = "(?!)"  # a regular expression that matches nothing
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
    """A rule for commands, by the words that follow its program.

    `listed`: it holds only for commands whose every option is in `short` and `long`, whose first operand matches
    `first`, and whose other operands match `operands`. `line`: what all operands, one space between them, must match.
    `free`: no option of the program can change what its class is. `value`: what the values of options must match.
    `sql`: what the operands must be (`sql.operand`).
    """

    rule: str
    cls: Class
    why: str
    verify: str = ""
    ambiguous: str = ""
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


_reading = threading.Lock()


def compile_rules(parsed: Sequence[RulesFile]) -> Rules:
    """Rules from files, in their order. Raises ValueError or re.error for rules that contradict themselves."""
    tools = [row for file in parsed for row in file.tool]
    names = Counter([*(row.id for row in tools), *(row.id for file in parsed for row in file.command)])
    if twice := [name for name, times in names.items() if times > 1]:
        raise ValueError(f"rules with the same id: {', '.join(twice)}")
    commands, options = _compile_commands(parsed)
    shells = [(file, row) for file in parsed for row in file.shell]
    own: dict[str, set[str]] = {}
    compiled_tools: dict[str, Classified] = {}
    for file in parsed:
        for tool in file.tool:
            if (tool.cls == "read_only") == bool(tool.names):
                raise ValueError(f"{tool.id}: names that only read are given by agent, others are not")
            by_agent = {agent: file.words_of(words) for agent, words in tool.agents.items()}
            found = Classified(tool.cls, tool.id, join(tool.why), join(tool.verify), join(tool.ambiguous))
            compiled_tools |= dict.fromkeys(file.words_of(tool.names).union(*by_agent.values()), found)
            for agent, words in by_agent.items():
                own.setdefault(agent, set()).update(words)
    for file, shell in shells:
        for agent in file.words_of(shell.agents):
            own.setdefault(agent, set()).add(shell.tool)
    return Rules(
        tools=compiled_tools,
        shells={
            row.tool: Shell(
                row.field, file.words_of(row.ignore), row.only, tuple(join(row.folder).split()), row.wanders
            )
            for file, row in shells
        },
        options=options,
        commands={program: tuple(rules) for program, rules in commands.items()},
        begins=frozenset(
            " ".join(w[:n]) for p in [*commands, *CONTAINERS] for w in [p.split()] for n in range(1, len(w) + 1)
        ),
        next={cls: steps for file in parsed for cls, steps in file.next.items()},
        files=_compile_file_tools(parsed),
        own={agent: frozenset(names) for agent, names in own.items()},
    )


def _compile_commands(parsed: Iterable[RulesFile]) -> tuple[dict[str, list[Command]], dict[str, Options]]:
    options: dict[str, Options] = {}
    likes: dict[str, str] = {}
    commands: dict[str, list[Command]] = {}
    for file in parsed:
        for p in file.program:
            for name in expand_programs(p.name):
                if p.like:
                    likes[name] = p.like
                if p.flags or p.values or not p.like:
                    options[name] = Options(file.words_of(p.flags), file.words_of(p.values))
        for c in file.command:
            rule = _compile_command(c, file)
            for program in expand_programs(c.program):
                commands.setdefault(program, []).append(rule)
    for name, like in likes.items():
        options.setdefault(name, options.get(like, Options()))
        for program in [p for p in commands if p == like or p.startswith(like + " ")]:
            commands.setdefault(name + program[len(like) :], []).extend(commands[program])
    return commands, options


def _compile_file_tools(parsed: Iterable[RulesFile]) -> Mapping[str, tuple[FileTool, ...]]:
    found: dict[str, tuple[FileTool, ...]] = {}
    for file in parsed:
        for f in file.file:
            one = FileTool(f.kind, f.path, f.content, f.old, f.new, file.words_of(f.ignore), f.keeps, f.creates)
            found[f.tool] = (*found.get(f.tool, ()), one)
    return found


def with_project(rules: Rules, extra: Iterable[ProjectRule]) -> Rules:
    """The rules with those of a project before them."""
    return replace(rules, project=(*extra, *rules.project))


def _compile_command(row: CommandRow, file: RulesFile) -> Command:
    wanted, long, operands = row.any, row.long, row.operands
    if row.alone is not None:
        if wanted or long is not None or operands is not None:
            raise ValueError(f"{row.id}: alone stands for any, long and operands = false")
        wanted, long, operands = row.alone, row.alone, False
    if isinstance(operands, bool):
        if operands:
            raise ValueError(f"{row.id}: operands is a regular expression or false")
        operands = NOTHING
    return Command(
        rule=row.id,
        cls=row.cls,
        why=join(row.why),
        verify=join(row.verify),
        ambiguous=join(row.ambiguous),
        listed=any(x is not None for x in (row.short, long, row.first, operands)),
        free=row.options == "any",
        short=frozenset(join(row.short or "", "")),
        long=file.words_of(long or ""),
        first=_pattern(row.first),
        operands=_pattern(operands),
        line=_pattern(row.line),
        values=file.words_of(row.values),
        any=file.words_of(wanted),
        none=file.words_of(row.none),
        sql=row.sql,
        value={option: _compiled(join(pattern, "")) for option, pattern in row.value.items()},
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _pattern(text: str | list[str] | None) -> re.Pattern[str] | None:
    """None where anything goes."""
    return None if text in (None, ".*") else _compiled(join(text, ""))


def load_rules() -> Rules:
    """The built-in rules, read once."""
    with _reading:  # who comes meanwhile waits for them instead of reading them again
        return _load_rules()


@cache
def _load_rules() -> Rules:
    return compile_rules([parse_file(text) for text in read_texts().values()])
