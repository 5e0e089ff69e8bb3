"""Hold the rules that a project declares for its own tools and commands, and find the one that holds for a call. Pure.

All of a rule comes from files of the project: hostile text. A rule can make the class of a call worse, never better
(`classify.tighten`), and its words are quoted as advice.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from wal_agent.records import Class
from wal_agent.text import printable

MAX_TEXT = 200  # characters of a sentence of a rule
MAX_NAME = 60
MAX_MATCH = 300
MAX_WORDS = 20

ANY = "*"  # in a rule's words: one word, whatever it is
GAP = "..."  # any number of words; each word after it stands, or is mentioned, in a later one

_PLACE = re.compile(r"(?<!\S)(?:<[^<>\s]{1,60}>|\{[^{}\s]{1,60}\}|\$\w{1,60}|\$\{\w{1,60}\})(?!\S)")
_OPERATOR = frozenset("();<>|&")
_INTERPRETER = re.compile(
    r"(?:ba|da|z|k|fi)?sh|source|\.|python[\d.]*|pypy[\d.]*|node|nodejs|deno|bun|tsx|ts-node|ruby|perl|php|Rscript|lua"
)
# Letters of options: of those that take the next word, and of those that give code or a module instead of a file.
_OPTIONS = (
    (re.compile(r"(?:ba|da|z|k|fi)?sh"), "oO", "cs"),
    (re.compile(r"(?:python|pypy)[\d.]*"), "WX", "cm"),
    (re.compile(r"node|nodejs"), "r", "ep"),
    (re.compile(r"ruby|perl|lua|Rscript"), "r", "eE"),
    (re.compile(r"php"), "d", "r"),
)
_LAUNCHER = {"deno": "run", "bun": "run", "uv": "run"}  # with a word between them and the file
_SKILL_TOOLS = {"activate_skill": ("name", "skill"), "Skill": ("skill", "command", "name")}


class ProjectRule(msgspec.Struct, frozen=True):
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
    done_if: str = ""  # calls.checks.parse_done_if
    ambiguous: str = ""
    words: tuple[str, ...] = ()
    tool: str = ""
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class RuleProblem(msgspec.Struct, frozen=True):
    """What could not be read as a rule. `place` is a file of the workspace; `line` counts from 1, 0 for all of it."""

    place: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.what}" if self.line else f"{self.place}: {self.what}"


def clean_sentence(text: str, most: int = MAX_TEXT) -> str:
    """A text of a rule on one line of single spaces, `most` characters of it, without what a terminal would obey."""
    line = " ".join(printable(text[: 20 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def parse_pattern(text: str, placeholders: bool = False) -> tuple[str, ...]:
    """The first words of a command that `text` writes down. `placeholders`: <env>, {env} and $ENV stand for any word.

    ValueError says what is wrong with it, as the end of a sentence that began with the text."""
    if len(text) > MAX_MATCH:
        raise ValueError(f"is longer than {MAX_MATCH} characters")
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
    if len(words) > MAX_WORDS:
        raise ValueError(f"has more than {MAX_WORDS} words")
    return tuple(words)


Words = Sequence[str | None]

_normalize = lru_cache(1024)(posixpath.normpath)  # of the rules' own paths, which are asked for at every call


def match_command(rules: Sequence[ProjectRule], words: Words, folder: str = "") -> ProjectRule | None:
    """The rule for a simple command. `words`: without wrappers (sudo, env), None where only the shell knows a word;
    `folder`: where it may run, relative to the workspace; it may also run in the workspace itself."""
    if not words or words[0] is None:
        return None
    whole = _CommandWords(words)
    forms = [(whole, path) for path in _paths(words[0], folder)] if "/" in words[0] else [(whole, "")]
    if (inner := interpreted(words)) is not None:
        said = _CommandWords(inner)
        forms += [(said, path) for path in _paths(str(inner[0]), folder)]
    return next((r for r in rules if any(_holds(r, form, path) for form, path in forms)), None)


def folder_after(folder: str, words: Words) -> str:
    """The folder after a command that ran in `folder`: another one after `cd`."""
    if len(words) == 2 and words[0] in ("cd", "pushd") and words[1] and not words[1].startswith("-"):
        return posixpath.normpath(posixpath.join(folder, words[1]))
    return folder


def match_tool(rules: Sequence[ProjectRule], tool: str, fields: Mapping[str, object]) -> ProjectRule | None:
    """The rule for a tool call: by the tool's name, with or without its MCP server in front, or by the skill that it
    activates."""
    names = {tool}
    if tool.startswith("mcp__"):
        names.add(tool.removeprefix("mcp__").partition("__")[2])
    elif tool.startswith("mcp_"):  # Gemini CLI; a server's name holds no "_" there
        names.add(tool.removeprefix("mcp_").partition("_")[2])
    skill = next((v for key in _SKILL_TOOLS.get(tool, ()) if isinstance(v := fields.get(key), str)), None)
    return next(
        (r for r in rules if r.tool and (r.tool in names or (r.folders and skill is not None and r.tool == skill))),
        None,
    )


def is_interpreter(name: str) -> bool:
    """Whether a program of this name runs the file that it is given."""
    return _INTERPRETER.fullmatch(name) is not None


def interpreted(words: Words) -> Words | None:
    """The command as if its file were run by itself: `bash -x ./deploy.sh now` as `./deploy.sh now`."""
    if not words:
        return None
    name = posixpath.basename(words[0] or "")
    if name == "uv" and len(words) > 1 and words[1] == "run":
        return interpreted(words[2:]) or words[2:] or None
    if not is_interpreter(name):
        return None
    takes, instead = next(((takes, code) for names, takes, code in _OPTIONS if names.fullmatch(name)), ("", ""))
    value = False
    for i, word in enumerate(words[1:], start=1):
        if word is None or word in ("-", "--eval", "--print"):
            return None
        if value or word == _LAUNCHER.get(name):
            value = False
        elif word.startswith("-"):
            letters = "" if word.startswith("--") else word[1:]
            if not {*instead}.isdisjoint(letters):
                return None
            value = letters[-1:] in takes if letters else False
        else:
            return words[i:]
    return None


def _paths(word: str, folder: str) -> Sequence[str]:
    """A file that is run, as paths from the workspace; absolute ones stay so."""
    return tuple(dict.fromkeys(posixpath.normpath(posixpath.join(place, word)) for place in (folder, "")))


class _CommandWords:
    """The words of one command, and where each is mentioned: all rules ask, and a word may be a long text."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._places: dict[tuple[bool, str], list[int]] | None = None  # by whole word, and by part of one

    def mentioned(self, want: str, start: int) -> int | None:
        """The first word from `start` on that is `want`, or has it among its own words, in whatever case."""
        if want == ANY:
            return next((i for i in range(start, len(self.words)) if self.words[i] is not None), None)
        if self._places is None:
            self._places = {}
            for i, word in enumerate(self.words):
                if word is None:
                    continue
                for key in ((True, word), *((False, part) for part in set(re.split(r"\W+", word.lower())))):
                    self._places.setdefault(key, []).append(i)
        found = []
        for key in ((True, want), (False, want.lower())):
            places = self._places.get(key, [])
            at = bisect_left(places, start)
            found += places[at : at + 1]
        return min(found, default=None)


def _holds(rule: ProjectRule, said: _CommandWords, path: str) -> bool:
    if rule.words and _begins(said, path, rule.words):
        return True
    if rule.folders and any(_under(path, folder) for folder in rule.folders):
        return True
    return bool(rule.files) and any(_under(posixpath.splitext(path)[0], file, whole=True) for file in rule.files)


def _begins(said: _CommandWords, path: str, rule: Sequence[str]) -> bool:
    words = said.words
    first = words[0] or ""
    if "/" in rule[0]:
        if not _under(path, _normalize(rule[0]), whole=True):
            return False
    elif not first.endswith(rule[0]) or posixpath.basename(first) != rule[0]:
        return False
    next_one, gap = 1, False
    for want in rule[1:]:
        if want == GAP:
            gap = True
        elif gap:
            at = said.mentioned(want, next_one)
            if at is None:
                return False
            next_one = at  # several may stand in one word
        elif next_one >= len(words) or (want != ANY and words[next_one] != want):
            return False
        else:
            next_one += 1
    return True


def _under(path: str, named: str, whole: bool = False) -> bool:
    """Whether a path is `named` (`whole`) or below it. The workspace's own place may be another on another machine, so
    that an absolute path needs only to have it at its end, or in it."""
    tail = "" if whole else "/"
    if path.startswith("/") and not named.startswith("/"):
        return f"/{named}/" in f"{path}/" if not whole else path.endswith(f"/{named}")
    return path == named if whole else path.startswith(named + tail)
