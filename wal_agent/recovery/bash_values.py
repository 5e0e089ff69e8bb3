"""What arithmetic in shell text evaluates: it runs a[$(b)] where that stands in a variable, and sets variables. Pure.

Only values that the text itself takes from a command or a file are known here to be anything; those that come from
outside of it (the environment) are taken for what they mostly are.
"""

from __future__ import annotations

import re

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*|(?<=\$)[0-9@*]|(?<=\$\{)[0-9@*]")
_SET = re.compile(
    rb"([A-Za-z_][A-Za-z0-9_]*|[\])}])[ \t\n]*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
    rb"|(?:\+\+|--)[ \t\n]*([A-Za-z_][A-Za-z0-9_]*)"
)
_COMPARED = re.compile(rb"(?<!\S)(\S++)[ \t]++-(?:eq|ne|lt|le|gt|ge)[ \t]++(\S++)|[ \t]-[vR][ \t]++(\S++)")
_SUBSCRIPT = re.compile(rb"\[([^\]]*)\]\+?=")
_RUNS = re.compile(rb"\$\((?!\()|`|[<>]\(")
_GLUED = re.compile(rb"""[^\s=!<>~]=|['"][^'"=]*=""")
POSITIONAL = b"1"
_OUTPUT = b"$("  # what a command prints, where it stands in arithmetic itself


def identifiers(text: bytes) -> frozenset[bytes]:
    """All names in a text; parameters that are numbers are one."""
    return frozenset(POSITIONAL if m in b"0123456789@*" else m for m in _NAME.findall(text))


def assigned_names(text: bytes) -> tuple[str, ...] | None:
    """The variables that an arithmetic expression sets. None: cannot be told."""
    found = []
    for m in _SET.finditer(text):
        name = m[1] or m[2]
        if not (name[:1].isalpha() or name[:1] == b"_") or text[m.start() - 1 : m.start()] in (b"$", b"{"):
            return None
        found.append(name.decode())
    return tuple(dict.fromkeys(found))


class ValueSources:
    """Where the values of a text's variables come from, and which of them arithmetic reads."""

    def __init__(self) -> None:
        self._from: dict[bytes, set[bytes]] = {}
        self._read: set[bytes] = set()
        self._anything = {_OUTPUT}

    def sets(self, name: bytes, text: bytes) -> None:
        """`text`: the value as written. One that sets something is as good as any: x='PATH=1'; ((x))."""
        self.computes(name, text)
        if b"=" in text or _RUNS.search(text):
            self._anything.add(name)

    def computes(self, name: bytes, expression: bytes) -> None:
        """Arithmetic sets it."""
        self._from.setdefault(name, set()).update(identifiers(expression))

    def fills(self, *names: bytes) -> None:
        """Something outside of the text gives them their values."""
        self._anything.update(names)

    def evaluates(self, text: bytes) -> None:
        """A text in arithmetic."""
        self._read |= identifiers(text)
        if _RUNS.search(text):
            self._read.add(_OUTPUT)

    def compares(self, test: bytes) -> bool:
        """The inside of [[ ]]. Whether it may set something too."""
        operands = [o for found in _COMPARED.findall(test) for o in found]
        if not operands:
            return False
        torn = any(o.count(q) % 2 for o in operands for q in (b'"', b"'", b"`"))
        torn |= any(o.count(b"(") != o.count(b")") for o in operands)
        self.evaluates(test if torn else b" ".join(operands))
        return _GLUED.search(test) is not None

    def indexes(self, array: bytes) -> None:
        """The subscripts in ( [a]=b ) and a[b]=."""
        for inside in _SUBSCRIPT.findall(array):
            self.evaluates(inside)

    def unsafe(self) -> bool:
        """Whether arithmetic may read, in however many steps, what came from a command or a file."""
        reached: set[bytes] = set()
        todo = list(self._read)
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += self._from.get(name, ())
        return not reached.isdisjoint(self._anything)
