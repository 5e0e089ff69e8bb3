"""Read shell text into its simple commands, from the tree that tree-sitter-bash makes of it.

The tree is believed only where it can be checked against the text; anything else makes the text unreadable.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from wal_agent.calls.shell.syntax import (
    ENDS,
    POSITIONAL,
    ExpansionReader,
    Redirect,
    Script,
    Simple,
    UnreadableText,
    Word,
    read_heredoc,
    refuse_if,
    split_names,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_TEXT = 16 << 10  # bytes; the grammar has forms whose time grows with the square of the text
_ASSIGN = re.compile(rb"([A-Za-z_][A-Za-z0-9_]*)(\[[A-Za-z0-9_$]*\])?\+?=")
_FILLS = split_names("read mapfile readarray")
_RESERVED = split_names("if then elif else fi for in while until do done case esac select function { } ! [[ ]]")
_DASH = re.compile(rb"[ \t]-[ \t]+")
_OPERATORS = split_names("< > >> &> &>> <& >& >| <&- >&-")
_BUDGET = 0.25  # seconds for the grammar, whose time can grow with the square of a text that is wrong
_READ = 1024  # bytes that the lexer is given at a time; it asks anew for each word, so not all that is left
_MAX_COMMANDS = 2000
# Where a text is cut off the grammar makes a square of work of these in one step, which nothing stops.
_MOST = {"|": 1000, "`": 200}
_LOCAL = threading.local()
_ODD = re.compile(r"[^\S \n\t]|[\0-\x08\x0e-\x1f\x7f\ufeff]")  # bash and the grammar have other ideas of these
_WIDE = re.compile(rb"[\x80-\xff]")
_WIDE_DELIMITER = re.compile(r"<<[^\n]*[^\0-\x7f]")
_SPOILS = re.compile(r"['#]|<<|\\\\\n")  # a backslash at the end of a line may be text there
_FUNCTION = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:-]*")
_SIMPLE = split_names("command declaration_command unset_command variable_assignment variable_assignments")
_BODIES = ("do_group", "compound_statement")
_BLOCKS = split_names("if_statement while_statement")
_WAIT = Word("wait", "wait")
_CONSTANT = {b"true": True, b":": True, b"false": False}
_NAMES_OF_CONSTANTS = {"true", ":", "false"}
_FLAT = split_names("elif_clause else_clause do_group")
_KEYWORDS = split_names("if then elif else fi while until do done { }")


def parse(text: str) -> Script | None:
    """The commands of a text that bash would be given by `bash -c`, with its default options. None: cannot be read, as
    it has an error or a construct that is not known here."""
    if len(text) > MAX_TEXT or any(text.count(c) > n for c, n in _MOST.items()):
        return None
    if _ODD.search(text) or text[:1] in ("-", "+"):  # bash -c -x: options
        return None
    if _WIDE_DELIMITER.search(text):  # the grammar compares lines with it, and sees one sign for all of these
        return None
    if "\\\n" in text and _SPOILS.search(text) is None:
        text = text.replace("\\\n", "")  # as bash does; the grammar does not inside a word
    try:
        source = text.encode()
        return None if len(source) > MAX_TEXT else _ScriptReader(source).script()
    except (UnreadableText, UnicodeError):
        return None


def _parse_tree(source: bytes) -> Node:
    """The tree of a text, by byte offsets; the grammar reads "%" for each byte that is not ASCII.

    Its scanner calls isalpha(3) with code points, which reads outside that function's table and can end the process
    (tree-sitter-bash 0.25.1, src/scanner.c). "%" is what such a character is to bash: part of a word, never of a name.
    """
    if not hasattr(_LOCAL, "parser"):
        import tree_sitter  # late: the grammar is loaded when the first shell text comes
        import tree_sitter_bash

        _LOCAL.parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    parser = cast("Parser", _LOCAL.parser)
    until = time.perf_counter() + _BUDGET
    ascii_only = _WIDE.sub(b"%", source)
    try:
        tree = parser.parse(
            lambda at, _point: ascii_only[at : at + _READ],
            encoding="utf8",
            progress_callback=lambda _at, _error: time.perf_counter() > until,
        )
    except ValueError:
        parser.reset()
        raise UnreadableText from None
    refuse_if(tree.root_node.has_error)
    return tree.root_node


class _ScriptReader(ExpansionReader):
    """Collects the simple commands of a text, in its order."""

    def __init__(self, source: bytes) -> None:
        super().__init__(source)
        self._out: list[Simple] = []
        self._at: list[int] = []  # where each of them begins
        self._given: set[str] = set()  # commands that are given words which only the shell knows
        self._functions: dict[str, int] = {}
        self._shells: tuple[int, ...] = ()  # the subshells around what is being read, of
        self._opened = 0  # so many in all
        self._left = False  # what may run on when the text has ended
        self._constants = False  # the text leans on what `true`, `false` and `:` mean

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
            refuse_if(n.type == "test_command" and (words[0][1].text, words[-1][1].text) != ("[", "]"))
            self._arithmetic |= n.type != "test_command"
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
                    refuse_if(words)
                else:
                    refuse_if(not words and _ASSIGN.match(self._text(c)))
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
        """Where arithmetic may run what a value holds: raises UnreadableText (x='a[$(rm y)]'; echo $((x))), or adds a
        command of which nothing is known (x=$(cat f); echo $((x)))."""
        refuse_if(self._arithmetic and self._words.hides and b"[" in self._b)
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
            refuse_if(word.text in _RESERVED and (i == 0 or ordered[0].text in ("time", "coproc")))
        sure = sure and not (follow and follow[0].type == "pipeline")
        self._emit(n, Simple(ordered, tuple(names), tuple(redirects), given, sure))
        if follow:
            self._follow(follow, len(self._out) - 1)

    def _lone_dash(self, n: Node) -> int:
        """Find a word "-" in front of a heredoc, which the grammar loses; -1 if there is none."""
        at = self._b.rfind(b"-", 0, n.start_byte) if n.type == "heredoc_redirect" else -1
        return at if at > 0 and _DASH.fullmatch(self._b, at - 1, n.start_byte) else -1

    def _follow(self, nodes: Sequence[Node], fed: int) -> None:
        """Read what follows a heredoc's mark in its line."""
        if nodes[0].type == "pipeline":
            self._pipeline(nodes[0], (), fed)
            nodes = nodes[1:]
        for op, right in zip(nodes[::2], nodes[1::2], strict=True):
            refuse_if(op.type not in ("&&", "||"))
            self._gap(op.end_byte, right.start_byte)
            self._statement(right, False)

    def _redirect(self, n: Node) -> tuple[Redirect, list[tuple[int, Word]]]:
        kids = list(n.children)
        fd = None
        before = self._b[n.start_byte - 1 : n.start_byte]
        if kids[0].type == "file_descriptor":
            fd = int(self._text(kids[0])) if self._text(kids[0]).isdigit() else -1
            refuse_if(
                fd < 0 or fd > 255 or kids[1].start_byte != kids[0].end_byte or (before and before[0] not in ENDS)
            )
            kids.pop(0)
        elif before.isdigit() or before == b"}":
            raise UnreadableText  # 22>f, {fd}>f
        op = kids.pop(0)
        self._same(op)
        refuse_if(op.type not in _OPERATORS and op.type != "<<<")
        if op.type.endswith("-"):
            return Redirect(op.type[:-1], fd, Word("-", "-")), []
        last = op.end_byte
        words: list[tuple[int, Word]] = []
        for i, c in enumerate(kids):
            self._gap(last, c.start_byte, apart=i > 0)
            last = c.end_byte
            words.append((c.start_byte, self._word(c)))
        refuse_if(not words)
        return Redirect(op.type, fd, words[0][1]), words[1:]

    def _assignment(self, n: Node) -> str:
        m = _ASSIGN.match(self._b, n.start_byte, n.end_byte)
        if m is None:
            raise UnreadableText
        self._arithmetic |= m[2] is not None
        value = n.children[-1]
        self._values.sets(m[1], self._b[m.end() : n.end_byte])
        self._values.indexes(self._text(n))
        if value.type == "array":
            refuse_if(self._b[m.end()] != 0x28 or value.start_byte != m.end())
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
        self._left = self._left and command.words[:1] != (_WAIT,)
        self._out.append(replace(command, shells=self._shells) if self._shells else command)
        self._at.append(n.start_byte)

    def script(self) -> Script:
        root = _parse_tree(self._b)
        self._block(root.children, 0, len(self._b), True)
        self._evaluates(root, self._functions)
        for at, c in zip(self._at, self._out, strict=True):
            refuse_if(
                c.words and c.words[0].text in self._functions and at < self._functions[c.words[0].text or ""]
            )  # called before it is defined: that is the program of this name
        refuse_if(self._constants and self._functions.keys() & _NAMES_OF_CONSTANTS)
        return Script(tuple(self._out), frozenset(self._functions), self._left)

    def _block(self, children: Sequence[Node], start: int, end: int, sure: bool) -> None:
        """Statements, what divides them, and the keywords around them."""
        open_statement = False  # one that nothing has ended yet
        flat = [c for n in children for c in (n.children if n.type in _FLAT else (n,))]
        last = start
        for i, n in enumerate(flat):
            divided = self._gap(last, n.start_byte, lines=True)
            last = n.end_byte
            self._same(n)
            open_statement = open_statement and not divided
            if n.type == "comment":
                self._comment(n)
            elif n.type in (";", "&"):
                refuse_if(not open_statement)
                open_statement = False
                self._left = self._left or n.type == "&"
            elif n.type in _KEYWORDS or n.type in ("(", ")"):
                if n.type in _KEYWORDS:
                    refuse_if(open_statement)
                    self._edges(n.start_byte, n.end_byte)
                open_statement = False
            elif not n.is_named or open_statement:
                raise UnreadableText
            else:
                follows = next((f for f in flat[i + 1 :] if f.type != "comment"), None)
                self._statement(n, sure and (follows is None or follows.type != "&"))
                open_statement = True
                sure = sure and not self._leaves() and (follows is None or follows.type != "&")
        self._gap(last, end, lines=True)

    def _subshell(self, children: Sequence[Node], start: int, end: int) -> None:
        with self._inside():
            self._block(children, start, end, False)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Read what a subshell of its own runs."""
        around, self._opened = self._shells, self._opened + 1
        self._shells = (*around, self._opened)
        yield
        self._shells = around

    def _leaves(self) -> bool:
        """Whether what was read last may end the script, or changes what ends it."""
        words = self._out[-1].words if self._out else ()
        return bool(words) and words[0].text in ("exit", "return", "exec", "set", "break", "continue")

    def _statement(self, n: Node, sure: bool, extra: tuple[Node, ...] = ()) -> None:
        """One statement. `extra`: redirections that the grammar hung on something around it."""
        self._enter()
        refuse_if(len(self._out) > _MAX_COMMANDS)
        kind = n.type
        single = kind == "test_command" and self._b[n.start_byte : n.start_byte + 2] != b"[["
        if single or kind in _SIMPLE:
            self._simple(n, sure, extra)
        elif kind == "redirected_statement":
            self._redirected(n, sure, extra)
        elif kind == "list":
            self._list(n, sure, extra)
        elif kind == "pipeline":
            self._pipeline(n, extra)
        elif kind == "negated_command":
            bang, inner = self._children(n, 2)
            refuse_if(bang.type != "!")
            self._edges(bang.start_byte, bang.end_byte)
            self._gap(bang.end_byte, inner.start_byte)
            self._statement(inner, False, extra)
        else:
            self._compound(n, sure and not extra, extra)
        self._depth -= 1

    def _list(self, n: Node, sure: bool, extra: tuple[Node, ...]) -> None:
        chain: list[Node] = []
        while n.type == "list":
            left, op, right = self._children(n, 3)
            chain[:0] = (op, right)
            n = left
        chain.insert(0, n)
        self._chain(chain, sure, extra)

    def _chain(self, chain: Sequence[Node], sure: bool, extra: tuple[Node, ...]) -> None:
        ended: bool | None = None  # how the list up to here ends, where that is certain: True is well
        for i, n in enumerate(chain):
            if i:
                self._gap(chain[i - 1].end_byte, n.start_byte, lines=i % 2 == 0)
            if i % 2:
                refuse_if(n.type not in ("&&", "||"))
                self._same(n)
                sure = sure and n.type == "&&"
            else:
                before = len(self._out)
                self._statement(n, sure, extra if i == len(chain) - 1 else ())
                if ended is not None and i and ended is (chain[i - 1].type == "||"):
                    del self._out[before:], self._at[before:]  # it never runs: true || rm x
                else:
                    ended = self._constant(n)

    def _constant(self, n: Node) -> bool | None:
        """Whether a statement always ends well (True) or never (False); None where that is not certain."""
        text = self._text(n) if n.type == "command" else b""
        self._constants |= text in _CONSTANT
        return _CONSTANT.get(text)

    def _pipeline(self, n: Node, extra: tuple[Node, ...], fed: int = -1) -> None:
        """`fed`: which command (by number) the first part of it reads from, where that is known."""
        last = n.start_byte
        stage = 0
        for i, c in enumerate(n.children):
            self._gap(last, c.start_byte, lines=i > 0 and n.children[i - 1].type in ("|", "|&"))
            last = c.end_byte
            if c.type in ("|", "|&"):
                self._same(c)
                stage += 1
                continue
            before = len(self._out)
            with self._inside():
                self._statement(c, False, extra if i == len(n.children) - 1 else ())
            feeder, fed = fed, len(self._out) - 1 if c.type in ("command", "redirected_statement") else -1
            if feeder >= 0 and fed >= before:
                self._out[fed] = replace(self._out[fed], fed=feeder)
                if c.type == "command" and not self._out[fed].redirects:
                    self._out[fed] = replace(self._out[fed], input=_printed_text(self._out[feeder]))
        refuse_if(stage == 0)

    def _compound(self, n: Node, sure: bool, extra: tuple[Node, ...]) -> None:
        kind = n.type
        head = self._b[n.start_byte : n.start_byte + 2]
        if kind == "compound_statement" and head == b"((":
            self._arithmetic_text(n)
            self._emit(n, Simple(()))
        elif kind == "compound_statement":
            self._block(n.children, n.start_byte, n.end_byte, sure)
        elif kind in _BLOCKS:
            self._block(n.children, n.start_byte, n.end_byte, False)
        elif kind == "subshell" and head != b"((":
            self._subshell(n.children, n.start_byte, n.end_byte)
        elif kind == "for_statement":
            self._for(n)
        elif kind == "c_style_for_statement":
            body = n.children[-1]
            refuse_if(body.type not in _BODIES)
            self._arithmetic = True
            head_end = self._b.rindex(b"))", n.start_byte, body.start_byte) + 2
            self._arithmetic_span(n, self._b.index(b"((", n.start_byte, head_end) + 2, head_end - 2, semicolons=True)
            refuse_if(re.fullmatch(rb"[ \t\n]*;?[ \t\n]*", self._b[head_end : body.start_byte]) is None)
            self._block(body.children, body.start_byte, body.end_byte, False)
        elif kind == "case_statement":
            self._case(n)
        elif kind == "function_definition":
            self._function(n, sure)
            return  # its redirections are inside
        elif kind == "test_command":
            self._test(n)
            self._emit(n, Simple(()))
        else:
            raise UnreadableText
        if extra:
            self._hang(n, extra)

    def _for(self, n: Node) -> None:
        kids = n.children
        for c in kids:
            self._same(c)
        body = kids[-1]
        refuse_if((kids[0].type, kids[1].type) != ("for", "variable_name") or body.type not in _BODIES)
        name = self._text(kids[1]).decode()
        last = kids[1].end_byte
        self._gap(kids[0].end_byte, kids[1].start_byte)
        for i, c in enumerate(kids[2:-1], 2):
            self._gap(last, c.start_byte)
            last = c.end_byte
            if c.is_named and kids[2].type == "in":
                self._word(c)
            elif not (c.type == ";" and i == len(kids) - 2) and not (c.type == "in" and i == 2):
                raise UnreadableText
        refuse_if(not self._gap(last, body.start_byte, lines=True) and kids[-2].type != ";" and len(kids) > 3)
        self._values.sets(name.encode(), self._b[kids[1].end_byte : body.start_byte])
        self._emit(n, Simple((), (name,)))
        self._block(body.children, body.start_byte, body.end_byte, False)

    def _case(self, n: Node) -> None:
        kids = [c for c in n.children if c.type != "comment"]
        refuse_if([c.type for c in kids[:1] + kids[2:3] + kids[-1:]] != ["case", "in", "esac"] or not kids[1].is_named)
        for c in n.children:
            if c.type == "comment":
                self._comment(c)
        self._word(kids[1])
        for left, right in pairwise(n.children):
            self._gap(left.end_byte, right.start_byte, lines=True)
        for item in kids[3:-1]:
            refuse_if(item.type != "case_item")
            close = next((i for i, c in enumerate(item.children) if c.type == ")"), -1)
            for c in item.children:
                self._same(c)
            for c in item.children[:close]:
                if c.is_named:
                    self._word(c)
                elif c.type not in ("(", "|"):
                    raise UnreadableText
            for left, right in pairwise(item.children[: close + 1]):
                self._gap(left.end_byte, right.start_byte)
            rest = item.children[close + 1 :]
            end = item.end_byte
            if rest and rest[-1].type in (";;", ";&", ";;&"):
                end = rest.pop().start_byte
            refuse_if(close < 0)
            self._block(rest, item.children[close].end_byte, end, False)

    def _function(self, n: Node, sure: bool) -> None:
        refuse_if(not sure)  # whether it is defined when its name is called is not known
        kids = list(n.children)
        if kids[0].type == "function":
            kids.pop(0)
        name = kids.pop(0)
        if [k.type for k in kids[:2]] == ["(", ")"]:
            del kids[:2]
        refuse_if(name.type != "word" or _FUNCTION.fullmatch(self._text(name)) is None or not kids)
        last = n.start_byte
        for c in n.children:
            self._gap(last, c.start_byte, lines=c is kids[0])
            last = c.end_byte
        self._functions.setdefault(self._text(name).decode(), n.start_byte)
        self._statement(kids[0], False)
        if kids[1:]:
            self._hang(n, kids[1:])


def _group_adjacent(nodes: Sequence[Node]) -> Iterable[list[Node]]:
    """Group nodes with nothing between them: parts of one word that the grammar may take for several ('a'\\''b')."""
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


def _printed_text(c: Simple) -> str | None:
    """What a command is sure to print: echo of literal words, or cat of a heredoc."""
    words = [w.text for w in c.words]
    if c.input is not None and words == ["cat"]:
        return c.input
    if c.redirects or c.assigns or not words or words[0] != "echo" or None in words:
        return None
    printed = [w or "" for w in words[1:]]
    if (printed and printed[0].startswith("-")) or any("\\" in w for w in printed):
        return None
    return " ".join(printed) + "\n"
