"""Find what expansions in shell text run: substitutions, arithmetic and tests.

Arithmetic evaluates variables: it runs a[$(b)] where that is a variable's value, and it sets variables. Only values
that the text itself takes from a command or a file are treated as hostile; those from outside (the environment) are
taken for what they mostly are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from wal_agent.shell.syntax import Lexer, Simple, UnreadableText, Word, refuse_if

if TYPE_CHECKING:
    from tree_sitter import Node

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
_OUTPUT = b"$("  # what a command prints, used in arithmetic itself


def names_in(text: bytes) -> frozenset[bytes]:
    """List all names in a text; parameters that are numbers are one name."""
    return frozenset(POSITIONAL if m in b"0123456789@*" else m for m in _NAME.findall(text))


def assigned_names(text: bytes) -> tuple[str, ...] | None:
    """The variables that an arithmetic expression sets. None: not known."""
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
        self._from.setdefault(name, set()).update(names_in(expression))

    def fills(self, *names: bytes) -> None:
        """Something outside of the text gives them their values."""
        self._anything.update(names)

    def evaluates(self, text: bytes) -> None:
        """A text in arithmetic."""
        self._read |= names_in(text)
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


_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*")
ENDS = frozenset(b" \t\n;&|()<>`")


def split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAX_DEPTH = 40
_PLAIN_VARIABLE = re.compile(rb"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_IN_BRACES = re.compile(rb"""[^'"\\`{}$\n]*""")
_ARITHMETIC = re.compile(rb"[A-Za-z0-9_ \t\n+\-*/%<>=!&|^~?:(),.#\[\]$]*")
_EXPANSIONS = split_names("simple_expansion expansion command_substitution process_substitution arithmetic_expansion")
_INSIDE = split_names(  # what may surround an expansion inside a word, a test or an arithmetic expression
    """word concatenation string string_content raw_string ansi_c_string translated_string number command_name subscript
    variable_name special_variable_name variable_assignment array brace_expression extglob_pattern regex test_operator
    binary_expression unary_expression ternary_expression postfix_expression parenthesized_expression"""
)
_TEST_ARITHMETIC = re.compile(rb"-(?:eq|ne|lt|le|gt|ge|v)\b|\[[A-Za-z0-9_$]")


class ExpansionReader:
    """Reads the words of one text and what runs in them. Its methods raise UnreadableText for what they do not expect.

    The reader of commands (reader.py) extends it: an expansion may hold commands, and a command expansions."""

    def __init__(self, source: bytes) -> None:
        self._b = source
        self._words = Lexer(source)
        self._values = ValueSources()
        self._arithmetic = False  # something is evaluated that may run the value of a variable
        self._depth = 0

    def _block(self, children: Sequence[Node], start: int, end: int, sure: bool) -> None:
        raise NotImplementedError

    def _hang(self, n: Node, hung: Iterable[Node]) -> None:
        raise NotImplementedError

    def _emit(self, n: Node, command: Simple) -> None:
        raise NotImplementedError

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
        """Require only blanks (`lines`: and ends of lines; `apart`: at least one). Return whether a line ends."""
        if start == end and not apart:
            return False
        gap = self._b[start:end]
        refuse_if(start > end or _GAP.fullmatch(gap) is None)
        bare = gap.replace(b"\\\n", b"")
        blank = b" " in bare or b"\t" in bare
        refuse_if((len(bare) != len(gap) or apart) and not blank)
        refuse_if(b"\n" in bare and not lines)
        return b"\n" in bare

    def _same(self, n: Node) -> None:
        """Require that an operator or keyword is written as it is called (the grammar takes -<< for <<)."""
        refuse_if(not n.is_named and self._text(n) != n.type.encode())

    def _edges(self, start: int, end: int) -> None:
        refuse_if((start and self._b[start - 1] not in ENDS) or (end < len(self._b) and self._b[end] not in ENDS))

    def _comment(self, n: Node) -> None:
        at = n.start_byte
        text = self._text(n)
        refuse_if(text[:1] != b"#" or b"\n" in text or (at and self._b[at - 1] not in b" \t\n;&|()"))
        refuse_if(n.end_byte < len(self._b) and self._b[n.end_byte] != 0x0A)

    @staticmethod
    def _children(n: Node, count: int) -> list[Node]:
        refuse_if(len(n.children) != count)
        return n.children

    def _enter(self) -> None:
        self._depth += 1
        refuse_if(self._depth > _MAX_DEPTH)

    def _word(self, *nodes: Node) -> Word:
        """The one word that these nodes are."""
        start, end = nodes[0].start_byte, nodes[-1].end_byte
        self._edges(start, end)
        return self._words.one(start, end, self._inner(nodes))

    def _inner(self, nodes: Iterable[Node]) -> dict[int, int]:
        """Reads the expansions in these nodes; where they begin and end."""
        found: dict[int, int] = {}
        todo = list(nodes)[::-1]
        while todo:
            n = todo.pop()
            if n.type in _EXPANSIONS:
                self._enter()
                self._expansion(n)
                self._depth -= 1
                found[n.start_byte] = n.end_byte
            elif not n.is_named or n.type in _INSIDE:
                todo.extend(reversed(n.children))
            elif n.type != "heredoc_content":
                raise UnreadableText
        return found

    def _expansion(self, n: Node) -> None:
        text = self._text(n)
        if n.type == "simple_expansion":
            refuse_if(_PLAIN_VARIABLE.fullmatch(text) is None)
        elif n.type == "expansion":
            inner = self._inner(n.children)
            refuse_if(not self._outside(n.start_byte + 2, n.end_byte - 1, inner, _IN_BRACES) or text.endswith(b"@P}"))
            self._arithmetic |= b"[" in text or re.match(rb"\$\{\w+:[^-=?+]|\$\{!", text) is not None
            self._evaluated(text)
            if m := re.match(rb"\$\{([A-Za-z_][A-Za-z0-9_]*):?=", text):
                self._values.sets(m[1], text[m.end() :])
                self._emit(n, Simple((), (m[1].decode(),)))
        elif n.type == "arithmetic_expansion":
            refuse_if(text[:3] != b"$((" or text[-2:] != b"))")
            self._arithmetic = True
            self._arithmetic_span(n, n.start_byte + 3, n.end_byte - 2)
        elif n.type == "process_substitution":
            refuse_if(text[:2] not in (b"<(", b">("))
            self._block(n.children[1:], n.start_byte + 2, n.end_byte, False)
        elif text[:1] == b"`":
            refuse_if(b"\\" in text or b"#" in text or b"`" in text[1:-1] or b"<<" in text or text[-1:] != b"`")
            self._substituted(n.children[1:-1], n.start_byte + 1, n.end_byte - 1)
        elif text[:2] == b"$(" and text[:3] != b"$((" and text[-1:] == b")":
            self._substituted(n.children[1:-1], n.start_byte + 2, n.end_byte - 1)
        else:
            raise UnreadableText

    def _evaluated(self, text: bytes) -> None:
        """What of ${...} is arithmetic: a subscript, an offset, and all that a name leads to (${!a})."""
        m = re.match(rb"\$\{([!#]?)[A-Za-z0-9_@*]+", text)
        rest = text[m.end() :] if m else text
        if m and m[1] == b"!":
            self._values.evaluates(text)
        elif rest[:1] == b"[" or re.match(rb":[^-=?+]", rest):
            self._values.evaluates(rest)
            refuse_if(assigned_names(rest) != ())

    def _substituted(self, nodes: Sequence[Node], start: int, end: int) -> None:
        if len(nodes) == 1 and nodes[0].type == "file_redirect":
            self._hang(nodes[0], nodes)
            self._gap(start, nodes[0].start_byte)
            self._gap(nodes[0].end_byte, end)
        else:
            self._block(nodes, start, end, False)

    def _arithmetic_text(self, n: Node) -> None:
        self._arithmetic = True
        refuse_if(self._b[n.end_byte - 2 : n.end_byte] != b"))")
        self._arithmetic_span(n, n.start_byte + 2, n.end_byte - 2)

    def _arithmetic_span(self, n: Node, start: int, end: int, semicolons: bool = False) -> None:
        inner = self._inner(n.children if not semicolons else n.children[:-1])
        depth = 0
        for i in self._bare(start, end, inner):
            c = self._b[i : i + 1]
            depth += (c == b"(") - (c == b")")
            refuse_if(depth < 0 or not (_ARITHMETIC.fullmatch(c) or (semicolons and c == b";")))
            refuse_if(c == b"$" or self._b[i : i + 2] in (b"<(", b">("))
        refuse_if(depth)
        text = self._b[start:end]
        self._values.evaluates(text)
        sets = assigned_names(text)
        if sets is None:
            raise UnreadableText
        for name in sets:
            self._values.computes(name.encode(), text)
        if sets:
            self._emit(n, Simple((), sets))

    def _test(self, n: Node) -> None:
        """[[ ... ]]: words and operators; nothing in it runs but what is substituted."""
        inner = self._inner(n.children[1:-1])
        start, end = n.start_byte + 2, n.end_byte - 2
        refuse_if(self._b[end : n.end_byte] != b"]]" or self._b[start] not in b" \t" or self._b[end - 1] not in b" \t")
        self._edges(n.start_byte, n.end_byte)
        self._arithmetic |= _TEST_ARITHMETIC.search(self._b, start, end) is not None
        refuse_if(self._values.compares(self._b[start:end]))
        i = start
        while i < end:
            c = self._b[i]
            if c in b" \t()|!<>&":
                refuse_if(c in b"<>" and self._b[i + 1 : i + 2] == b"(" and i not in inner)
                if i in inner:
                    i = inner[i]
                elif c == 0x26:
                    refuse_if(self._b[i : i + 2] != b"&&")
                    i += 2
                else:
                    i += 1
                continue
            stop = self._test_word(i, end, inner)
            refuse_if(self._b[i:stop] == b"]]")
            i = stop

    def _test_word(self, start: int, end: int, inner: dict[int, int]) -> int:
        stop = start
        while stop < end and self._b[stop] not in b" \t()|<>&":
            if stop in inner:
                stop = inner[stop]
            elif self._b[stop] in b"'\"\\":
                stop = self._quote_end(stop, end, inner)
            else:
                stop += 1
        self._words.one(start, stop, inner)
        return stop

    def _quote_end(self, i: int, end: int, inner: dict[int, int]) -> int:
        quote = self._b[i]
        if quote == 0x5C:
            return i + 2
        j = i + 1
        while j < end and self._b[j] != quote:
            j = inner[j] if j in inner else j + 2 if quote == 0x22 and self._b[j] == 0x5C else j + 1
        refuse_if(j >= end or self._b[i - 1] == 0x24)  # $'..'
        return j + 1
