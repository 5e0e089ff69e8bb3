"""A rule that a project declares for its own tools and commands, as data, and the words that it may match.

All of it comes from files of the project: hostile text. A rule can make the class of a call worse, never better
(`classify.tightened`), and its words are quoted as advice.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from wal_agent.records import Class
from wal_agent.sanitize import printable

MOST_TEXT = 200  # characters of a sentence of a rule
MOST_NAME = 60
MOST_MATCH = 300
MOST_WORDS = 20

ANY = "*"  # in a rule's words: one word, whatever it is
GAP = "..."  # any number of words; each word after it stands, or is mentioned, in a later one

_PLACE = re.compile(r"(?<!\S)(?:<[^<>\s]{1,60}>|\{[^{}\s]{1,60}\}|\$\w{1,60}|\$\{\w{1,60}\})(?!\S)")
_OPERATOR = frozenset("();<>|&")


@dataclass(frozen=True, slots=True)
class ProjectRule:
    """A rule of a project. `why` is a sentence of the project's, or empty. `source` names its file in the workspace;
    `line` counts from 1, 0 where it is not known.

    It holds for commands that begin with `words`, for calls of `tool`, for commands that run a file in one of
    `folders`, and for those that run one of `files`, written without its ending. Paths are relative to the workspace.
    """

    name: str
    cls: Class
    source: str
    line: int = 0
    why: str = ""
    verify: str = ""
    ambiguous: str = ""
    words: tuple[str, ...] = ()
    tool: str = ""
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What could not be read as a rule. `place` is a file of the workspace; `line` counts from 1, 0 for all of it."""

    place: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.what}" if self.line else f"{self.place}: {self.what}"


def clean_sentence(text: str, most: int = MOST_TEXT) -> str:
    """A text of a rule on one line of single spaces, `most` characters of it, without what a terminal would obey."""
    line = " ".join(printable(text[: 20 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def parse_pattern(text: str, placeholders: bool = False) -> tuple[str, ...]:
    """The first words of a command that `text` writes down. `placeholders`: <env>, {env} and $ENV stand for any word.

    ValueError says what is wrong with it, as the end of a sentence that began with the text."""
    if len(text) > MOST_MATCH:
        raise ValueError(f"is longer than {MOST_MATCH} characters")
    if placeholders:
        text = _PLACE.sub(ANY, text)
    lexer = shlex.shlex(text.replace("…", GAP), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        raise ValueError("has a quote that is not closed") from None
    while words and words[-1] == GAP:
        words.pop()
    if not words:
        raise ValueError("names no command")
    if any(set(word) <= _OPERATOR for word in words):
        raise ValueError("is more than the first words of one command")
    if words[0] in (ANY, GAP, ""):
        raise ValueError("does not begin with the name of a program")
    if any(ANY in word and word != ANY for word in words):
        raise ValueError(f"has a {ANY} inside a word; it stands for one whole word")
    if len(words) > MOST_WORDS:
        raise ValueError(f"has more than {MOST_WORDS} words")
    return tuple(words)
