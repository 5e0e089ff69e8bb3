"""The files of rules.d: their rows, and the JSON Schema for editors (rules.schema.json, made from the rows' types).

docs/how-to/add-a-rule.md explains how to write a rule.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from wal_agent import msgspec_compat
from wal_agent.records import Class, Finding

SCHEMA = "rules.schema.json"

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
        " words of the call), or words that begin with look, read, if or the. Required unless the class is read_only."
    ),
]
Ambiguous = Annotated[Sentence, Meta(description="What to do where verifying leaves doubt: whole sentences.")]


class ProgramRow(msgspec.Struct, forbid_unknown_fields=True):
    """Options that may precede a subcommand and do not change what it is."""

    name: Programs
    like: Annotated[str, Meta(description="The program whose rules this one has.")] = ""
    flags: Annotated[Words, Meta(description="Options without a value.")] = ""
    values: Annotated[Words, Meta(description="Options with a value: `-C DIR`, `--git-dir=DIR`.")] = ""


class CommandRow(msgspec.Struct, forbid_unknown_fields=True, rename={"cls": "class"}):
    """A rule for one or several programs. Of the rules that hold, the one with the most words of `program` counts, then
    the first. With alone, first, operands, short or long it is a whitelist: it holds only for what they name."""

    id: Id
    cls: Effect
    program: Programs
    why: Why
    verify: Verify = ""
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
    next: Annotated[
        dict[Class, dict[Finding, str]],
        Meta(description="The next step that the agent is given, by class and finding; {verify}: how."),
    ] = {}

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
_BRACES = re.compile(r"\{([^{}]*)\}")


def parse_file(text: str) -> RulesFile:
    """Raise tomllib.TOMLDecodeError or msgspec.ValidationError for a file that does not follow the schema."""
    return _decode(tomllib.loads(text))


def read_texts() -> dict[str, str]:
    """The files of rules.d by name; the order of the names is the order of the rules."""
    found = files("wal_agent.shell").joinpath("rules.d").iterdir()
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


if __name__ == "__main__":
    print(json_schema(), end="")
