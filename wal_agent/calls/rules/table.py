"""Read the files of rules.d and compile them: their rows, the JSON Schema for editors (rules.schema.json, made from the
rows' types), and the rules by program.

docs/how-to/add-a-rule.md explains how to write a rule.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from wal_agent import msgspec_compat
from wal_agent.records import Class

if TYPE_CHECKING:
    from wal_agent.calls.rules.project import ProjectRule


SCHEMA = "rules.schema.json"
OURS = "wal-agent"
OWN_TOOLS = "tool.wal-agent"  # the rule of the run's own MCP server
AWAY = " (there, not here"  # behind a `verify` that is for where the command ran
LOADS = ", but may run code of the folder"  # of programs that load it
LOADED = "git status --short"  # how to see whether that code did something
NOTHING = "(?!)"  # a regular expression that matches nothing

# A text in pieces, so that a row can be broken: TOML allows a line break in an inline table only inside a list.
Sentence = Annotated[str | list[str], Meta(description="A text; a list is joined by spaces.")]
Pattern = Annotated[str | list[str], Meta(description="A regular expression for the whole word; a list is joined.")]
Words = Annotated[
    str | list[str], Meta(description="Words, with spaces between them; @NAME stands for the words of words.NAME.")
]
Programs = Annotated[
    str | list[str],
    Meta(description="A program and its subcommands; {a,b} is one of several: `{apt,apt-get} {install,update}`."),
]
Id = Annotated[
    str,
    Meta(
        description="The program and the rule's purpose, such as git.push; the program alone for its general rule.",
        pattern=r"^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9-]*)?$",
    ),
]
Effect = Annotated[Class, Meta(description="What the call may change; unknown where nobody can say.")]
Why = Annotated[Sentence, Meta(description='Completes the sentence "It ...".')]
Verify = Annotated[
    Sentence,
    Meta(
        description="How to find out what an interrupted call did: one read-only command ({operands}, {first}, {last}:"
        " words of the call; {refs}: those of a git push, as the remote names them), or words that begin with look,"
        " read, if or the. Required unless the class is read_only."
    ),
]
DoneIf = Annotated[
    Sentence,
    Meta(
        description="What the command of verify prints if the call happened: one whole line, * being anything; or"
        " exit 0, that it ends with 0. {sent}: the line of git ls-remote for what a push sent. Only where this is"
        " certain."
    ),
]
Ambiguous = Annotated[Sentence, Meta(description="What to do where verifying leaves doubt: whole sentences.")]

_BRACES = re.compile(r"\{([^{}]*)\}")

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


class ProgramRow(msgspec.Struct, forbid_unknown_fields=True):
    """Options that may precede a subcommand and do not change what it is."""

    name: Programs
    like: Annotated[str, Meta(description="The program whose rules this one has.")] = ""
    flags: Annotated[Words, Meta(description="Options without a value.")] = ""
    values: Annotated[Words, Meta(description="Options with a value: `-C DIR`, `--git-dir=DIR`.")] = ""
    context: Annotated[
        Words,
        Meta(description="Those that choose the folder, cluster or account: what verifies a call gets them too."),
    ] = ""
    anywhere: Annotated[Words, Meta(description="The same, where they may follow the subcommand as well.")] = ""


class CommandRow(msgspec.Struct, forbid_unknown_fields=True, rename={"cls": "class"}):
    """A rule for one or several programs. Of the rules that hold, the one with the most words of `program` counts, then
    the first. With alone, first, operands, short or long it is a whitelist: it holds only for what they name."""

    id: Id
    cls: Effect
    program: Programs
    why: Why
    verify: Verify = ""
    done_if: DoneIf = ""
    ambiguous: Ambiguous = ""
    alone: Annotated[Words | None, Meta(description="Nothing but these options, and at least one, is there.")] = None
    short: Annotated[
        str | list[str] | None, Meta(description="Letters of one-dash options that may be there; empty: none.")
    ] = None
    long: Annotated[
        Words | None, Meta(description="Whole options that may be there (--all, -name); a final = allows a value.")
    ] = None
    first: Annotated[Pattern | None, Meta(description="An operand is required, and the first one matches this.")] = None
    operands: Annotated[
        str | list[str] | bool | None,
        Meta(description="A regular expression that each operand (behind `first`) matches; false: there is none."),
    ] = None
    line: Annotated[Pattern | None, Meta(description="What all operands match, joined by spaces.")] = None
    options: Annotated[
        Literal["", "any"], Meta(description="any: no option or operand of the program can change anything.")
    ] = ""
    values: Annotated[Words, Meta(description="Options that take the next word; a whitelist names them, too.")] = ""
    any: Annotated[Words, Meta(description="At least one of these words is there.")] = ""
    none: Annotated[Words, Meta(description="None of these words is there, nor in a cluster of short options.")] = ""
    value: Annotated[
        dict[str, Pattern],
        Meta(description="By option, what its value matches, if it is there."),
    ] = {}
    loads: Annotated[
        Literal["", "cwd", "nothing"],
        Meta(
            description="cwd: the program first loads code, or settings that name a program, from the folder in which "
            "it runs, so it is never read_only. nothing: not in this form, although other rules of the program say cwd."
        ),
    ] = ""
    sql: Annotated[
        Literal["", "query", "constant", "name or query", "name or constant"],
        Meta(description="What each operand (behind `first`) is: SQL that only reads, or that asks no table."),
    ] = ""


class ToolRow(msgspec.Struct, forbid_unknown_fields=True, rename={"cls": "class"}):
    """A rule for tools of agents."""

    id: Id
    cls: Effect
    why: Why
    names: Annotated[Words, Meta(description="Tools by this name, of whatever agent. Not for read_only.")] = ""
    agents: Annotated[
        dict[str, Words], Meta(description="Tools by agent. For read_only: elsewhere, the name may be anyone's tool.")
    ] = {}
    verify: Verify = ""
    ambiguous: Ambiguous = ""


class ShellRow(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that runs a shell command."""

    tool: str
    agents: Words
    field: Annotated[str, Meta(description="The field that holds the command.")]
    ignore: Annotated[Words, Meta(description="Fields that do not change what the command may do.")] = ""
    only: Annotated[dict[str, str], Meta(description="Fields that change nothing if they have this value.")] = {}
    folder: Annotated[Words, Meta(description="Fields that say where the command runs.")] = ""
    wanders: Annotated[
        bool,
        Meta(description="It may run in folders that only the call's hook knows."),
    ] = False


class FileRow(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that changes files, as evidence reads it: for calls with just these fields."""

    tool: str
    kind: Annotated[
        Literal["write", "edit", "patch"],
        Meta(
            description="write: the file becomes `content`; edit: `new` replaces `old`; patch: the text in `content`,"
            " of which only whole new files are read."
        ),
    ]
    path: str = ""
    content: str = ""
    old: str = ""
    new: str = ""
    ignore: Annotated[Words, Meta(description="Fields that do not change what the outcome looks like.")] = ""
    keeps: Annotated[
        bool, Meta(description="The bytes are the content's own; without it, the file's line ends may have been kept.")
    ] = False
    creates: Annotated[bool, Meta(description="An empty `old` makes a new file of `new`.")] = False


class RulesFile(msgspec.Struct, forbid_unknown_fields=True):
    """One file of rules.d."""

    words: Annotated[dict[str, Words], Meta(description="Words that several rows of this file share, as @NAME.")] = {}
    program: list[ProgramRow] = []
    command: list[CommandRow] = []
    tool: list[ToolRow] = []
    shell: list[ShellRow] = []
    file: list[FileRow] = []

    def words_of(self, text: str | list[str]) -> frozenset[str]:
        """Single words, with those of the groups that the text names. ValueError for a group that is not there."""
        found: list[str] = []
        for word in join(text).split():
            if word[0] != "@":
                found.append(word)
            elif word[1:] in self.words:
                found += join(self.words[word[1:]]).split()
            else:
                raise ValueError(f"words.{word[1:]} is not in this file")
        return frozenset(found)


_decode = msgspec_compat.of_values(RulesFile)


def parse_file(text: str) -> RulesFile:
    """Raise tomllib.TOMLDecodeError or msgspec.ValidationError for a file that does not follow the schema."""
    return _decode(tomllib.loads(text))


def read_texts() -> dict[str, str]:
    """The files of rules.d by name; the order of the names is the order of the rules."""
    found = files("wal_agent.calls.rules").joinpath("rules.d").iterdir()
    return {f.name: f.read_text("utf-8") for f in sorted(found, key=lambda f: f.name) if f.name.endswith(".toml")}


def join(text: str | list[str], between: str = " ") -> str:
    """A text that may be given in pieces."""
    return text if isinstance(text, str) else between.join(text)


def expand_programs(text: str | list[str]) -> Iterable[str]:
    """Program names with their subcommands, one for each choice of the braces."""
    for one in [text] if isinstance(text, str) else text:
        parts = _BRACES.split(one)
        if len(parts) == 1:
            yield one
        else:
            for chosen in itertools.product(*(p.split(",") if n % 2 else [p] for n, p in enumerate(parts))):
                yield "".join(chosen)


def json_schema() -> str:
    """The text of rules.schema.json."""
    schema: Mapping[str, Any] = msgspec.json.schema(RulesFile)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Rules of wal-agent"}
    return json.dumps({**head, **schema}, indent=2) + "\n"


class Classified(msgspec.Struct, frozen=True):
    """What a call may change. `why` completes "It ..."; `verify` says how to find out what a call in flight did, and
    `ambiguous` what to do where that leaves doubt ("" = what is always said). `source`: whose rule it is. `project`:
    what a rule of the project says of the call; its words are advice, and `cls` is never below the built-in class.
    `done_if`: how to read what `verify` prints. `theirs`: the built-in rules do not know what the call does.
    `also`: the other commands of a text that may change something, each with `verify` and `ambiguous` of its own. `cd`:
    the folder in which the text ran it, where `verify` is a command; "" for where the text itself ran. `looks`: it
    changes nothing but by code of the folder that its program loads."""

    cls: Class
    rule: str
    why: str
    verify: str = ""
    ambiguous: str = ""
    source: str = OURS
    project: Classified | None = None
    also: tuple[Classified, ...] = ()
    cd: str = ""
    looks: bool = False
    done_if: str = ""
    theirs: bool = False

    @property
    def verify_there(self) -> str:
        """`verify`, to be typed where the text was."""
        return f"cd {shlex.quote(self.cd)} && {self.verify}" if self.cd else self.verify


class Command(msgspec.Struct, frozen=True):
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
    value: Mapping[str, re.Pattern[str]] = msgspec.field(default_factory=dict)
    sql: str = ""
    looks: bool = False
    done_if: str = ""


class Options(msgspec.Struct, frozen=True):
    """Options in front of a subcommand that change nothing about what it is: `flags` alone, `values` with a value.
    `context`: those that choose what it is about, `anywhere`: also behind the subcommand."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    context: frozenset[str] = frozenset()
    anywhere: frozenset[str] = frozenset()


class Shell(msgspec.Struct, frozen=True):
    """A tool that is given shell text, or the words of a command, in `field`; `ignore`: fields that change nothing, and
    those of `only` with that value. `folder`: fields that say where it runs. `wanders`: nor do they tell it all."""

    field: str
    ignore: frozenset[str]
    only: Mapping[str, str] = msgspec.field(default_factory=dict)
    folder: tuple[str, ...] = ()
    wanders: bool = False

    def strange(self, fields: Mapping[str, object]) -> set[str]:
        """The fields that may change what is done."""
        given = {k for k, v in fields.items() if v not in (None, False)}
        plain = {k for k, v in self.only.items() if fields.get(k) == v}
        return given - self.ignore - plain - {self.field}


class FileTool(msgspec.Struct, frozen=True):
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


class Rules(msgspec.Struct, frozen=True):
    """`commands`: by all the words of their program. `begins`: what such words begin with. `project`: rules of the
    project; each can make a call's class worse, never better (`classify.tighten`). `likes`: the program whose rules
    another one has."""

    tools: Mapping[str, Classified]
    shells: Mapping[str, Shell]
    options: Mapping[str, Options]
    commands: Mapping[str, tuple[Command, ...]]
    begins: frozenset[str]
    files: Mapping[str, tuple[FileTool, ...]] = msgspec.field(default_factory=dict)  # by tool
    likes: Mapping[str, str] = msgspec.field(default_factory=dict)
    own: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)  # by agent: reading tools, shells
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

    def without_own_tools(self) -> Rules:
        """These rules for an agent without the run's own MCP server: a tool of such a name is a stranger's (I1)."""
        return replace(self, tools={name: c for name, c in self.tools.items() if c.rule != OWN_TOOLS})

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
    commands, options, likes = _compile_commands(parsed)
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
        likes=likes,
        commands={program: tuple(rules) for program, rules in commands.items()},
        begins=frozenset(
            " ".join(w[:n]) for p in [*commands, *CONTAINERS] for w in [p.split()] for n in range(1, len(w) + 1)
        ),
        files=_compile_file_tools(parsed),
        own={agent: frozenset(names) for agent, names in own.items()},
    )


def _compile_commands(
    parsed: Iterable[RulesFile],
) -> tuple[dict[str, list[Command]], dict[str, Options], dict[str, str]]:
    options: dict[str, Options] = {}
    likes: dict[str, str] = {}
    commands: dict[str, list[Command]] = {}
    for file in parsed:
        for p in file.program:
            for name in expand_programs(p.name):
                if p.like:
                    likes[name] = p.like
                if p.flags or p.values or not p.like:
                    rows = (p.flags, p.values, p.context, p.anywhere)
                    options[name] = Options(*(file.words_of(row) for row in rows))
        for c in file.command:
            rule = _compile_command(c, file)
            for program in expand_programs(c.program):
                commands.setdefault(program, []).append(rule)
    for name, like in likes.items():
        options.setdefault(name, options.get(like, Options()))
        for program in [p for p in commands if p == like or p.startswith(like + " ")]:
            commands.setdefault(name + program[len(like) :], []).extend(commands[program])
    return commands, options, likes


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
        why=join(row.why) + (LOADS if row.loads == "cwd" else ""),
        verify=join(row.verify) or (LOADED if row.loads == "cwd" else ""),
        ambiguous=join(row.ambiguous),
        done_if=join(row.done_if),
        looks=row.loads == "cwd" and row.cls == "idempotent",
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


if __name__ == "__main__":
    print(json_schema(), end="")
