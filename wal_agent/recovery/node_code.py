"""JavaScript on a command line (`node -p CODE`) that prints constants of node or a value of a JSON file. Pure.

There is no parser of JavaScript here, so this reads one closed form, and no more of the language: an expression that
reads properties, calls nothing but `require` of a JSON file, and may be printed. Each token is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal

from wal_agent.shell.match import is_live_file
from wal_agent.shell.syntax import Simple

_MAX_NODE_CODE: Final = 2000  # characters
_NODE_OPTIONS: Final = frozenset({"-p", "-e", "-pe", "--print", "--eval"})
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'[^'"`\\\n]*'|"[^'"`\\\n]*")|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    |(?P<mark>[-+*/()\[\],;.]))\s*""",
    re.VERBOSE | re.ASCII,
)
_CONSTANT: Final = re.compile(r"process\.(?:versions?|platform|arch|argv)(?:\.\w+)*")
_FILE: Final = re.compile(r"\.{1,2}/[\w./@-]+\.json")
_PRINTS: Final = frozenset({"JSON.stringify", "Object.keys", "Object.values", "Object.entries"})

Reads = Literal["read_only", "idempotent"]


def classify_node(c: Simple) -> Reads | None:
    """As `python_code.reads`: "idempotent" where a module of the folder may take the place of the JSON file."""
    texts = [w.text for w in c.words]
    if len(texts) != 3 or texts[0] not in ("node", "nodejs", "/usr/bin/node") or texts[1] not in _NODE_OPTIONS:
        return None
    code = texts[2]
    if code is None or len(code) > _MAX_NODE_CODE or is_live_file(code):
        return None
    tokens = _tokens(code)
    if tokens is None or not _NodeReader(tokens).whole():
        return None
    return "idempotent" if ("name", "require") in tokens else "read_only"


def _tokens(code: str) -> list[tuple[str, str]] | None:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(code):
        m = _TOKEN.match(code, at)
        if m is None or m.lastgroup is None:
            return None
        found.append((m.lastgroup, m[m.lastgroup]))
        at = m.end()
    return found


class _NodeReader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def whole(self) -> bool:
        log = self._take("name", "console.log")
        good = self._listed(self._shown) if log else self._shown()
        self._take("mark", ";")
        return good and self._at == len(self._tokens)

    def _take(self, kind: str, value: str = "") -> str:
        """The next token if it is this one, else ""."""
        if self._at < len(self._tokens):
            found, text = self._tokens[self._at]
            if found == kind and value in ("", text):
                self._at += 1
                return text
        return ""

    def _listed(self, each: Callable[[], bool]) -> bool:
        """`(a, b)`"""
        if not self._take("mark", "(") or not each():
            return False
        while self._take("mark", ","):
            if not each():
                return False
        return bool(self._take("mark", ")"))

    def _shown(self) -> bool:
        at = self._at
        if self._take("name") in _PRINTS:
            return self._listed(self._sum)
        self._at = at
        return self._sum()

    def _sum(self) -> bool:
        if self._take("name", "null") or not self._value():
            return self._tokens[self._at - 1 : self._at] == [("name", "null")]
        while any(self._take("mark", mark) for mark in "+-*/"):
            if not self._value():
                return False
        return True

    def _value(self) -> bool:
        if name := self._take("name"):
            if name == "require":
                if not self._take("mark", "(") or _FILE.fullmatch(self._take("text")[1:-1]) is None:
                    return False
                if not self._take("mark", ")"):
                    return False
            elif _CONSTANT.fullmatch(name) is None:
                return False
        elif not self._take("text") and not self._take("number"):
            return False
        while True:
            if self._take("mark", "."):
                if not self._take("name"):
                    return False
            elif self._take("mark", "["):
                if not (self._take("text") or self._take("number")) or not self._take("mark", "]"):
                    return False
            else:
                return True
