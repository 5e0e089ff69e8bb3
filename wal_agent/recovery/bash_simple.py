"""Simple commands in the tree of a shell text: their words, assignments and redirections."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise

from tree_sitter import Node

from wal_agent.recovery.bash_heredoc import read_heredoc
from wal_agent.recovery.bash_places import ENDS, names
from wal_agent.recovery.bash_values import POSITIONAL
from wal_agent.shell.expand import Expansions
from wal_agent.shell.lexer import UnreadableText
from wal_agent.shell.syntax import Redirect, Simple, Word

_ASSIGN = re.compile(rb"([A-Za-z_][A-Za-z0-9_]*)(\[[A-Za-z0-9_$]*\])?\+?=")
_FILLS = names("read mapfile readarray")
_RESERVED = names("if then elif else fi for in while until do done case esac select function { } ! [[ ]]")
_DASH = re.compile(rb"[ \t]-[ \t]+")
_OPERATORS = names("< > >> &> &>> <& >& >| <&- >&-")


class Commands(Expansions):
    """Collects the simple commands of a text, in its order."""

    def __init__(self, source: bytes) -> None:
        super().__init__(source)
        self._out: list[Simple] = []
        self._at: list[int] = []  # where each of them begins
        self._given: set[str] = set()  # commands that are given words which only the shell knows

    def _statement(self, n: Node, sure: bool, extra: tuple[Node, ...] = ()) -> None:
        raise NotImplementedError

    def _pipeline(self, n: Node, extra: tuple[Node, ...], fed: int = -1) -> None:
        raise NotImplementedError

    def _redirected(self, n: Node, sure: bool, extra: tuple[Node, ...]) -> None:
        kids = n.children
        body = kids[0] if kids[0].type not in ("file_redirect", "herestring_redirect", "heredoc_redirect") else None
        hung = tuple(kids[1:] if body else kids)
        for left, right in pairwise(kids):
            if self._lone_dash(right) < 0:
                self._gap(left.end_byte, right.start_byte)
            else:
                self._gap(left.end_byte, self._lone_dash(right), apart=True)
        if body is None:
            self._hang(n, (*hung, *extra))
        else:
            self._statement(body, sure, (*hung, *extra))

    def _simple(self, n: Node, sure: bool, extra: tuple[Node, ...]) -> None:
        names: list[str] = []
        words: list[tuple[int, Word]] = []
        hung: list[Node] = list(extra)
        if n.type in ("test_command", "declaration_command", "unset_command"):
            read = self._words.read(n.start_byte, n.end_byte, self._inner(n.children))
            words = [(start, self._named(start, word)) for start, _end, word in read]
            self._edges(n.start_byte, n.end_byte)
            if n.type == "test_command" and (words[0][1].text, words[-1][1].text) != ("[", "]"):
                raise UnreadableText
            self._arithmetic = self._arithmetic or n.type != "test_command"
            self._declared(n, [word.text or "" for _at, word in words])
        else:
            kids = (n,) if n.type == "variable_assignment" else n.children
            last, was_word = n.start_byte, False
            for together in _group_adjacent(kids):
                c = together[0]
                is_word = not c.type.endswith("_redirect")
                self._gap(last, c.start_byte, apart=is_word and was_word)
                last, was_word = together[-1].end_byte, is_word
                if not is_word:
                    hung.append(c)
                elif c.type == "variable_assignment":
                    names.append(self._assignment(c))
                    if words:
                        raise UnreadableText
                else:
                    if not words and _ASSIGN.match(self._text(c)):
                        raise UnreadableText
                    words.append((c.start_byte, self._word(*together)))
        self._command(n, names, words, hung, sure)

    def _named(self, start: int, word: Word) -> Word:
        """A word of a declaration: as an assignment it is not split, so that it is known what it sets."""
        m = _ASSIGN.match(self._b, start) if word.text is None else None
        return word if m is None else Word(None, m[0].decode())

    def _declared(self, n: Node, words: Sequence[str]) -> None:
        """The values that a declaration gives."""
        if any(w.startswith("-") and "i" in w for w in words[1:]):  # integers: a value is evaluated when it is set
            self._values.evaluates(self._text(n))
        for c in n.children:
            if c.type == "variable_assignment" and (m := _ASSIGN.match(self._text(c))):
                self._values.sets(m[1], self._text(c)[m.end() :])

    def _evaluates(self, n: Node, functions: Container[str]) -> None:
        """Where arithmetic may run what stands in a value: raises Unread (x='a[$(rm y)]'; echo $((x))), or adds a
        command that nothing is known of (x=$(cat f); echo $((x)))."""
        if self._arithmetic and self._words.hides and b"[" in self._b:
            raise UnreadableText
        if any(name == "set" or name in functions for name in self._given):
            self._values.fills(POSITIONAL)
        if self._values.unsafe():
            self._emit(n, Simple((Word(None),)))

    def _hang(self, n: Node, hung: Iterable[Node]) -> None:
        self._command(n, [], [], list(hung), False)

    def _command(self, n: Node, names: list[str], words: list[tuple[int, Word]], hung: list[Node], sure: bool) -> None:
        redirects: list[Redirect] = []
        given: str | None = None
        follow: list[Node] = []
        hung.sort(key=lambda r: r.start_byte)
        for r in hung:
            if r.type == "heredoc_redirect":
                redirect, text, inside, more, follow = read_heredoc(self._b, r)
                given = text if redirect.fd in (None, 0) else given
                self._inner(inside)
                hung.extend(m for m in more if m.type.endswith("_redirect"))
                if (dash := self._lone_dash(r)) >= 0:
                    words.append((dash, Word("-", "-")))
                words += [(m.start_byte, self._word(m)) for m in more if not m.type.endswith("_redirect")]
            else:
                redirect, more_words = self._redirect(r)
                words += more_words
                if redirect.fd not in (None, 0):
                    pass
                elif redirect.op == "<" and redirect.to is not None and redirect.to.text == "/dev/null":
                    given = ""
                elif redirect.op == "<<<":
                    given = None if redirect.to is None or redirect.to.text is None else redirect.to.text + "\n"
            redirects.append(redirect)
        if sum(r.op in ("<", "<<", "<<-", "<<<", "<&") for r in redirects) > 1:
            given = None
        ordered = tuple(word for _at, word in sorted(words, key=lambda w: w[0]))
        if any(w.text in _FILLS for w in ordered[:3]):
            self._values.fills(b"REPLY", b"MAPFILE", *((w.text or "").encode() for w in ordered))
        if ordered and ordered[0].text == "let":
            self._values.evaluates(" ".join(w.text or "" for w in ordered).encode())
        if ordered and any(w.text is None for w in ordered[1:]):
            self._given.add(ordered[0].text or "")
        for i, word in enumerate(ordered[:3]):
            if word.text in _RESERVED and (i == 0 or ordered[0].text in ("time", "coproc")):
                raise UnreadableText
        self._emit(
            n,
            Simple(
                ordered, tuple(names), tuple(redirects), given, sure and not (follow and follow[0].type == "pipeline")
            ),
        )
        if follow:
            self._follow(follow, len(self._out) - 1)

    def _lone_dash(self, n: Node) -> int:
        """Where a word "-" stands in front of a heredoc, which the grammar loses; -1 if none does."""
        at = self._b.rfind(b"-", 0, n.start_byte) if n.type == "heredoc_redirect" else -1
        return at if at > 0 and _DASH.fullmatch(self._b, at - 1, n.start_byte) else -1

    def _follow(self, nodes: Sequence[Node], fed: int) -> None:
        """What stands behind a heredoc's mark in its line."""
        if nodes[0].type == "pipeline":
            self._pipeline(nodes[0], (), fed)
            nodes = nodes[1:]
        for op, right in zip(nodes[::2], nodes[1::2], strict=True):
            if op.type not in ("&&", "||"):
                raise UnreadableText
            self._gap(op.end_byte, right.start_byte)
            self._statement(right, False)

    def _redirect(self, n: Node) -> tuple[Redirect, list[tuple[int, Word]]]:
        kids = list(n.children)
        fd = None
        before = self._b[n.start_byte - 1 : n.start_byte]
        if kids[0].type == "file_descriptor":
            fd = int(self._text(kids[0])) if self._text(kids[0]).isdigit() else -1
            if fd < 0 or fd > 255 or kids[1].start_byte != kids[0].end_byte or (before and before[0] not in ENDS):
                raise UnreadableText
            kids.pop(0)
        elif before.isdigit() or before == b"}":
            raise UnreadableText  # 22>f, {fd}>f
        op = kids.pop(0)
        self._same(op)
        if op.type not in _OPERATORS and op.type != "<<<":
            raise UnreadableText
        if op.type.endswith("-"):
            return Redirect(op.type[:-1], fd, Word("-", "-")), []
        last = op.end_byte
        words: list[tuple[int, Word]] = []
        for i, c in enumerate(kids):
            self._gap(last, c.start_byte, apart=i > 0)
            last = c.end_byte
            words.append((c.start_byte, self._word(c)))
        if not words:
            raise UnreadableText
        return Redirect(op.type, fd, words[0][1]), words[1:]

    def _assignment(self, n: Node) -> str:
        m = _ASSIGN.match(self._b, n.start_byte, n.end_byte)
        if m is None:
            raise UnreadableText
        self._arithmetic = self._arithmetic or m[2] is not None
        value = n.children[-1]
        self._values.sets(m[1], self._b[m.end() : n.end_byte])
        self._values.indexes(self._text(n))
        if value.type == "array":
            if self._b[m.end()] != 0x28 or value.start_byte != m.end():
                raise UnreadableText
            last = value.start_byte
            for c in value.children:
                self._gap(last, c.start_byte, lines=True)
                last = c.end_byte
                if c.is_named:
                    self._word(c)
            self._arithmetic = True
        elif m.end() < n.end_byte:
            self._words.one(m.end(), n.end_byte, self._inner([n]))
        self._edges(n.start_byte, n.end_byte)
        return m[1].decode()

    def _emit(self, n: Node, command: Simple) -> None:
        self._out.append(command)
        self._at.append(n.start_byte)


def _group_adjacent(nodes: Sequence[Node]) -> Iterable[list[Node]]:
    """Nodes that nothing stands between are parts of one word, which the grammar may take for several ('a'\\''b')."""
    group: list[Node] = []
    for n in nodes:
        if group and (
            n.start_byte != group[-1].end_byte
            or any(m.type == "variable_assignment" or m.type.endswith("_redirect") for m in (n, group[-1]))
        ):
            yield group
            group = []
        group.append(n)
    if group:
        yield group


def printed_text(c: Simple) -> str | None:
    """What a command is sure to print: echo of literal words, or cat of a heredoc."""
    words = [w.text for w in c.words]
    if c.input is not None and words == ["cat"]:
        return c.input
    if c.redirects or c.assigns or not words or words[0] != "echo" or None in words:
        return None
    said = [w or "" for w in words[1:]]
    if (said and said[0].startswith("-")) or any("\\" in w for w in said):
        return None
    return " ".join(said) + "\n"
