"""Places in shell text: what may stand between two nodes of its tree, and at their edges."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tree_sitter import Node

from wal_agent.recovery.bash_values import ValueSources
from wal_agent.shell.lexer import Lexer, UnreadableText

_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*")
ENDS = frozenset(b" \t\n;&|()<>`")


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Places:
    """One text. Its methods raise Unread where something stands that they do not expect."""

    def __init__(self, source: bytes) -> None:
        self._b = source
        self._words = Lexer(source)
        self._values = ValueSources()
        self._arithmetic = False  # something is evaluated that may run what stands in a variable
        self._depth = 0

    def _text(self, n: Node) -> bytes:
        return self._b[n.start_byte : n.end_byte]

    def _bare(self, start: int, end: int, inner: dict[int, int]) -> Iterable[int]:
        i = start
        while i < end:
            if i in inner:
                i = inner[i]
            else:
                yield i
                i += 1

    def _outside(self, start: int, end: int, inner: dict[int, int], allowed: re.Pattern[bytes]) -> bool:
        return allowed.fullmatch(bytes(self._b[i] for i in self._bare(start, end, inner))) is not None

    def _gap(self, start: int, end: int, *, lines: bool = False, apart: bool = False) -> bool:
        """Only blanks stand there (with `lines` ends of lines too; with `apart` at least one). Whether a line ends."""
        if start == end and not apart:
            return False
        gap = self._b[start:end]
        if start > end or _GAP.fullmatch(gap) is None:
            raise UnreadableText
        bare = gap.replace(b"\\\n", b"")
        blank = b" " in bare or b"\t" in bare
        if (len(bare) != len(gap) or apart) and not blank:
            raise UnreadableText
        if b"\n" in bare and not lines:
            raise UnreadableText
        return b"\n" in bare

    def _same(self, n: Node) -> None:
        """An operator or keyword is written as it is called (the grammar takes -<< for <<)."""
        if not n.is_named and self._text(n) != n.type.encode():
            raise UnreadableText

    def _edges(self, start: int, end: int) -> None:
        if (start and self._b[start - 1] not in ENDS) or (end < len(self._b) and self._b[end] not in ENDS):
            raise UnreadableText

    def _alone(self, n: Node) -> bool:
        self._edges(n.start_byte, n.end_byte)
        return True

    def _comment(self, n: Node) -> None:
        at = n.start_byte
        text = self._text(n)
        if text[:1] != b"#" or b"\n" in text or (at and self._b[at - 1] not in b" \t\n;&|()"):
            raise UnreadableText
        if n.end_byte < len(self._b) and self._b[n.end_byte] != 0x0A:
            raise UnreadableText

    @staticmethod
    def _children(n: Node, count: int) -> list[Node]:
        if len(n.children) != count:
            raise UnreadableText
        return n.children
