"""Reads the tree that tree-sitter-bash makes of a text, and believes it only where it can be checked.

The grammar is more lenient than bash, and reads some texts in another way. So kinds of nodes that are not known here,
places between nodes that hold more than blanks, and words that end elsewhere than bash_words says end the reading.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from wal_agent.recovery.bash_places import names
from wal_agent.recovery.bash_simple import Commands, printed_text
from wal_agent.shell.lexer import UnreadableText
from wal_agent.shell.syntax import MAX_TEXT, Script, Simple

_BUDGET = 0.25  # seconds for the grammar, whose time can grow with the square of a text that is wrong
_READ = 1024  # bytes that the lexer is given at a time; it asks anew for each word, so not all that is left
_MAX_COMMANDS = 2000
# Where a text is cut off the grammar makes a square of work of these in one step, which nothing stops.
_MOST = {"|": 1000, "`": 200}
_LANGUAGE = Language(tree_sitter_bash.language())
_LOCAL = threading.local()

_ODD = re.compile(r"[^\S \n\t]|[\0-\x08\x0e-\x1f\x7f\ufeff]")  # bash and the grammar have other ideas of these
_SPOILS = re.compile(r"['#]|<<|\\\\\n")  # a backslash at the end of a line may be text there
_FUNCTION = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:-]*")
_SIMPLE = names("command declaration_command unset_command variable_assignment variable_assignments")
_BLOCKS = names("if_statement while_statement")
_CONSTANT = {b"true": True, b":": True, b"false": False}
_NAMES_OF_CONSTANTS = {"true", ":", "false"}
_FLAT = names("elif_clause else_clause do_group")
_KEYWORDS = names("if then elif else fi while until do done { }")


def read_script(text: str) -> Script | None:
    """See bash.parse, which is the way in."""
    if (
        len(text) > MAX_TEXT
        or any(text.count(c) > n for c, n in _MOST.items())
        or _ODD.search(text)
        or text[:1] in ("-", "+")
    ):  # bash -c -x: options
        return None
    if "\\\n" in text and _SPOILS.search(text) is None:
        text = text.replace("\\\n", "")  # as bash does; the grammar does not where it stands inside a word
    try:
        source = text.encode()
        return None if len(source) > MAX_TEXT else _Reader(source).script()
    except (UnreadableText, UnicodeEncodeError):
        return None


def _parse(source: bytes) -> Node:
    parser: Parser | None = getattr(_LOCAL, "parser", None)
    if parser is None:
        parser = _LOCAL.parser = Parser(_LANGUAGE)
    until = time.perf_counter() + _BUDGET
    try:
        tree = parser.parse(
            lambda at, _point: source[at : at + _READ],
            encoding="utf8",
            progress_callback=lambda _at, _error: time.perf_counter() > until,
        )
    except ValueError:
        parser.reset()
        raise UnreadableText from None
    if tree.root_node.has_error:
        raise UnreadableText
    return tree.root_node


class _Reader(Commands):
    def __init__(self, source: bytes) -> None:
        super().__init__(source)
        self._functions: dict[str, int] = {}
        self._constants = False  # the text leans on what `true`, `false` and `:` mean

    def script(self) -> Script:
        root = _parse(self._b)
        self._block(root.children, 0, len(self._b), True)
        self._evaluates(root, self._functions)
        for at, c in zip(self._at, self._out, strict=True):
            if c.words and c.words[0].text in self._functions and at < self._functions[c.words[0].text or ""]:
                raise UnreadableText  # called before it is defined: that is the program of this name
        if self._constants and self._functions.keys() & _NAMES_OF_CONSTANTS:
            raise UnreadableText
        return Script(tuple(self._out), frozenset(self._functions))

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
                if not open_statement:
                    raise UnreadableText
                open_statement = False
            elif n.type in _KEYWORDS or n.type in ("(", ")"):
                if n.type in _KEYWORDS and (open_statement or not self._alone(n)):
                    raise UnreadableText
                open_statement = False
            elif not n.is_named or open_statement:
                raise UnreadableText
            else:
                follows = next((f for f in flat[i + 1 :] if f.type != "comment"), None)
                self._statement(n, sure and (follows is None or follows.type != "&"))
                open_statement = True
                sure = sure and not self._leaves() and (follows is None or follows.type != "&")
        self._gap(last, end, lines=True)

    def _leaves(self) -> bool:
        """Whether what was read last may end the script, or changes what ends it."""
        words = self._out[-1].words if self._out else ()
        return bool(words) and words[0].text in ("exit", "return", "exec", "set", "break", "continue")

    def _statement(self, n: Node, sure: bool, extra: tuple[Node, ...] = ()) -> None:
        """One statement. `extra`: redirections that the grammar hung on something around it."""
        self._enter()
        if len(self._out) > _MAX_COMMANDS:
            raise UnreadableText
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
            if bang.type != "!" or not self._alone(bang):
                raise UnreadableText
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
                if n.type not in ("&&", "||"):
                    raise UnreadableText
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
            self._statement(c, False, extra if i == len(n.children) - 1 else ())
            feeder, fed = fed, len(self._out) - 1 if c.type in ("command", "redirected_statement") else -1
            if feeder >= 0 and fed >= before and c.type == "command" and not self._out[fed].redirects:
                self._out[fed] = replace(self._out[fed], input=printed_text(self._out[feeder]))
        if stage == 0:
            raise UnreadableText

    def _compound(self, n: Node, sure: bool, extra: tuple[Node, ...]) -> None:
        kind = n.type
        head = self._b[n.start_byte : n.start_byte + 2]
        if kind == "compound_statement" and head == b"((":
            self._arithmetic_text(n)
            self._emit(n, Simple(()))
        elif kind == "compound_statement":
            self._block(n.children, n.start_byte, n.end_byte, sure)
        elif kind in _BLOCKS or (kind == "subshell" and head != b"(("):
            self._block(n.children, n.start_byte, n.end_byte, False)
        elif kind == "for_statement":
            self._for(n)
        elif kind == "c_style_for_statement":
            body = n.children[-1]
            if body.type not in ("do_group", "compound_statement"):
                raise UnreadableText
            self._arithmetic = True
            head_end = self._b.rindex(b"))", n.start_byte, body.start_byte) + 2
            self._arithmetic_span(n, self._b.index(b"((", n.start_byte, head_end) + 2, head_end - 2, semicolons=True)
            if re.fullmatch(rb"[ \t\n]*;?[ \t\n]*", self._b[head_end : body.start_byte]) is None:
                raise UnreadableText
            self._block(body.children, body.start_byte, body.end_byte, False)
        elif kind == "case_statement":
            self._case(n)
        elif kind == "function_definition":
            self._function(n, sure)
            return  # its redirections stand inside
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
        if (
            kids[0].type != "for"
            or kids[1].type != "variable_name"
            or body.type not in ("do_group", "compound_statement")
        ):
            raise UnreadableText
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
        if not self._gap(last, body.start_byte, lines=True) and kids[-2].type != ";" and len(kids) > 3:
            raise UnreadableText
        self._values.sets(name.encode(), self._b[kids[1].end_byte : body.start_byte])
        self._emit(n, Simple((), (name,)))
        self._block(body.children, body.start_byte, body.end_byte, False)

    def _case(self, n: Node) -> None:
        kids = [c for c in n.children if c.type != "comment"]
        if [c.type for c in kids[:1] + kids[2:3] + kids[-1:]] != ["case", "in", "esac"] or not kids[1].is_named:
            raise UnreadableText
        for c in n.children:
            if c.type == "comment":
                self._comment(c)
        self._word(kids[1])
        for left, right in pairwise(n.children):
            self._gap(left.end_byte, right.start_byte, lines=True)
        for item in kids[3:-1]:
            if item.type != "case_item":
                raise UnreadableText
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
            if close < 0:
                raise UnreadableText
            self._block(rest, item.children[close].end_byte, end, False)

    def _function(self, n: Node, sure: bool) -> None:
        if not sure:
            raise UnreadableText  # whether it is defined when its name is called cannot be told
        kids = list(n.children)
        if kids[0].type == "function":
            kids.pop(0)
        name = kids.pop(0)
        if [k.type for k in kids[:2]] == ["(", ")"]:
            del kids[:2]
        if name.type != "word" or _FUNCTION.fullmatch(self._text(name)) is None or not kids:
            raise UnreadableText
        last = n.start_byte
        for c in n.children:
            self._gap(last, c.start_byte, lines=c is kids[0])
            last = c.end_byte
        self._functions.setdefault(self._text(name).decode(), n.start_byte)
        self._statement(kids[0], False)
        if kids[1:]:
            self._hang(n, kids[1:])
