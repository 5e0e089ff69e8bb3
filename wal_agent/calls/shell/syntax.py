"""Define shell text as data; split it into words and heredocs by bash's own rules, and find what its expansions run.

`Script` holds every simple command of a text, however deep. The grammar's own nodes are not trusted to find where words
end: it takes a line that is continued inside a word for two words, and some heredocs end elsewhere than it says. What
cannot be read for certain raises `UnreadableText`.

Expansions run substitutions, arithmetic and tests. Arithmetic evaluates variables: it runs a[$(b)] where that is a
variable's value, and it sets variables. Only values that the text itself takes from a command or a file are treated as
hostile; those from outside (the environment) are taken for what they mostly are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tree_sitter import Node

POSITIONAL = b"1"
_OUTPUT = b"$("  # what a command prints, used in arithmetic itself
_MAX_DEPTH = 40
_META = frozenset(b"|&;()<> \t\n")
_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789@*#?$!-({['\"")
_BRACES = re.compile(rb"\{[^\n]*(?:,|\.\.)")
_MANY = re.compile(rb"\$[@*]|[@*]\]|^\$\{[!]?[\w]*[@*]")  # expansions that are many words even in double quotes
_ESCAPE = re.compile(
    rb"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8}))"
)
_LETTERS = dict(zip(b"abeEfnrtv\\'\"?", b"\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
# Of here-documents.
_MARK = re.compile(rb"[A-Za-z0-9_.+-]{1,64}|'[A-Za-z0-9_.+ -]{1,64}'|\"[A-Za-z0-9_.+ -]{1,64}\"|\\[A-Za-z0-9_]{1,64}")
_UNESCAPE = re.compile(rb"\\(?:\n|([$`\\]))")
# What a text reads, sets and compares.
_VARIABLE = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*|(?<=\$)[0-9@*]|(?<=\$\{)[0-9@*]")
_SET = re.compile(
    rb"([A-Za-z_][A-Za-z0-9_]*|[\])}])[ \t\n]*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
    rb"|(?:\+\+|--)[ \t\n]*([A-Za-z_][A-Za-z0-9_]*)"
)
_COMPARED = re.compile(rb"(?<!\S)(\S++)[ \t]++-(?:eq|ne|lt|le|gt|ge)[ \t]++(\S++)|[ \t]-[vR][ \t]++(\S++)")
_SUBSCRIPT = re.compile(rb"\[([^\]]*)\]\+?=")
_RUNS = re.compile(rb"\$\((?!\()|`|[<>]\(")
_GLUED = re.compile(rb"""[^\s=!<>~]=|['"][^'"=]*=""")
# What stands between words, and inside expansions.
_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*")
ENDS = frozenset(b" \t\n;&|()<>`")
_PLAIN_VARIABLE = re.compile(rb"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_IN_BRACES = re.compile(rb"""[^'"\\`{}$\n]*""")
_ARITHMETIC = re.compile(rb"[A-Za-z0-9_ \t\n+\-*/%<>=!&|^~?:(),.#\[\]$]*")
_TEST_ARITHMETIC = re.compile(rb"-(?:eq|ne|lt|le|gt|ge|v)\b|\[[A-Za-z0-9_$]")


class Word(msgspec.Struct, frozen=True):
    """One word of a command. `text`: its value once quotes are removed; None where only the shell can know it
    (expansions, globs, substitutions). `begins`: the literal text that it begins with, "~" for
    somebody's home; all of it if known, "" also where it may be several words of which only the first begins so.
    `source`: as it is written, where `text` is None."""

    text: str | None
    begins: str = ""
    source: str = ""


class Redirect(msgspec.Struct, frozen=True):
    """`op` as written (>, >>, >|, &>, &>>, <, <>, <<, <<-, <<<, >&, <&); `fd` as written. `to`: None for a
    heredoc, whose text holds nothing that runs (substitutions in it are commands of the script)."""

    op: str
    fd: int | None
    to: Word | None


class Simple(msgspec.Struct, frozen=True):
    """A simple command. `words` is empty for assignments or redirections alone; `assigns` are the names set in front.

    `input`: its standard input, where that is literal: a heredoc, a here-string, "" for /dev/null.
    `sure`: it runs exactly once, one after the other, unless an earlier one in an && list fails: no loop, no condition,
    no pipe, no background, no function, no subshell around it. `shells`: the subshells around it, each with its number
    (a `cd` ends with them). `fed`: the number of the command whose output it reads; -1 for none."""

    words: tuple[Word, ...]
    assigns: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    input: str | None = None
    sure: bool = False
    shells: tuple[int, ...] = ()
    fed: int = -1


class Script(msgspec.Struct, frozen=True):
    """`commands`: all of the text, in its order, those in substitutions, loops, functions and subshells with them.
    `functions`: names that the text defines; a command of such a name is what the text says, not the program. `leaves`:
    it ends while a command of it may run on in the background (`&` without a `wait` behind it)."""

    commands: tuple[Simple, ...]
    functions: frozenset[str] = frozenset()
    leaves: bool = False


class UnreadableText(Exception):
    """The text cannot be read for certain."""


def refuse_if(unclear: object) -> None:
    if unclear:
        raise UnreadableText


class Lexer:
    """Reads words of one text. `hides`: a quoted text holds what would run if something expanded it again."""

    def __init__(self, text: bytes) -> None:
        self._b = text
        self.hides = False

    def read(self, start: int, end: int, inner: Mapping[int, int]) -> list[tuple[int, int, Word]]:
        """Read the words between two places. `inner`: begin and end of each expansion, which something else has read.
        Raises UnreadableText for operators, comments and expansions that `inner` does not name."""
        words = []
        i = start
        while i < end:
            if self._b[i] in b" \t":
                i += 1
            elif self._b[i : i + 2] == b"\\\n" and self._b[i - 1 : i] in (b" ", b"\t"):
                i += 2
            else:
                stop, word = self._word(i, end, inner)
                words.append((i, stop, word))
                i = stop
        return words

    def one(self, start: int, end: int, inner: Mapping[int, int]) -> Word:
        """Read the one word between two places, and nothing else."""
        words = self.read(start, end, inner)
        refuse_if(len(words) != 1 or words[0][:2] != (start, end))
        return words[0][2]

    def _word(self, start: int, end: int, inner: Mapping[int, int]) -> tuple[int, Word]:
        b = self._b
        done = bytearray()  # its value so far; `known` is cut where the first unknown part begins
        known: int | None = None
        splits = False
        i = start
        while i < end:
            c = b[i]
            if c == 0x27:  # '
                stop = b.find(b"'", i + 1, end)
                refuse_if(stop < 0)
                done += self._quoted(b[i + 1 : stop])
                i = stop + 1
            elif c == 0x22 or b[i : i + 2] == b'$"':
                if c != 0x22:
                    known, i = _first(known, done), i + 1  # translated, if there is a translation
                i, known, many = self._double(i + 1, end, inner, done, known)
                splits |= many
            elif b[i : i + 2] == b"$'":
                i = self._ansi(i + 2, end, done)
            elif i in inner:
                known, splits = _first(known, done), splits or c in b"$`"
                i = inner[i]
            elif c == 0x5C:
                refuse_if(i + 1 >= end)
                if b[i + 1] != 0x0A:
                    self.hides |= b[i + 1] in b"$`"
                    done.append(b[i + 1])
                i += 2
            elif c in b" \t":
                break
            elif c in _META or c == 0x60 or (c == 0x23 and i == start) or self._dollar(i, end):
                raise UnreadableText
            else:
                if self._expands(i, start, end):
                    known = _first(known, done)
                done.append(c)
                i += 1
        try:
            value = done.decode()
            begins = (
                ""
                if splits
                else "~"
                if b[start] == 0x7E
                else value
                if known is None
                else done[:known].decode("utf-8", "ignore")
            )
        except UnicodeDecodeError:
            return i, Word(None, "", _written(b[start:i]))
        return i, Word(value, begins) if known is None else Word(None, begins, _written(b[start:i]))

    def _dollar(self, i: int, end: int) -> bool:
        """Whether a $ begins an expansion there."""
        b = self._b
        return b[i] == 0x24 and i + 1 < end and (b[i + 1] in _NAME or b[i + 1] >= 0x80)

    def _expands(self, i: int, start: int, end: int) -> bool:
        """Whether a character that is not quoted may make other words of its word: globs, tildes, braces."""
        b = self._b
        c = b[i]
        if c == 0x5B:
            return i + 1 < end and b[i + 1] not in b" \t" and b.find(b"]", i, end) > 0
        return (
            c in b"*?"
            or (c == 0x7E and (i == start or b[i - 1] in b"=:"))
            or (c == 0x7B and _BRACES.match(b, i, end) is not None)
        )

    def _quoted(self, piece: bytes) -> bytes:
        self.hides |= b"$" in piece or b"`" in piece
        return piece

    def _double(
        self, i: int, end: int, inner: Mapping[int, int], done: bytearray, known: int | None
    ) -> tuple[int, int | None, bool]:
        b = self._b
        many = False
        while i < end:
            c = b[i]
            if c == 0x22:
                return i + 1, known, many
            if c == 0x5C and i + 1 < end:
                n = b[i + 1]
                if n in b'$`"\\':
                    self.hides |= n in b"$`"
                    done.append(n)
                elif n != 0x0A:
                    done += b[i : i + 2]
                i += 2
            elif i in inner:
                known = _first(known, done)
                many |= _MANY.search(b[i : inner[i]]) is not None
                i = inner[i]
            elif c == 0x60 or (c == 0x24 and i + 1 < end and b[i + 1] in _NAME and b[i + 1] not in b"'\""):
                raise UnreadableText
            else:
                done.append(c)
                i += 1
        raise UnreadableText

    def _ansi(self, i: int, end: int, done: bytearray) -> int:
        b = self._b
        while i < end:
            if b[i] == 0x27:
                return i + 1
            if b[i] != 0x5C:
                self.hides |= b[i] in b"$`"
                done.append(b[i])
                i += 1
                continue
            m = _ESCAPE.match(b, i, end)
            if m is None:
                raise UnreadableText
            letter, octal, byte, short, long = m.groups()
            if letter:
                done.append(_LETTERS[letter[0]])
            elif octal or byte:
                done.append(int(octal, 8) & 0xFF if octal else int(byte, 16))
            else:
                done.append(min(int(short or long, 16), 0xFF))
                refuse_if(done[-1] >= 0x80)  # depends on the locale
            refuse_if(done[-1] == 0)  # ends the text
            self.hides |= done[-1] in b"$`"
            i = m.end()
        raise UnreadableText


def _written(word: bytes) -> str:
    return word.decode("utf-8", "replace")


def _first(known: int | None, done: bytearray) -> int:
    return len(done) if known is None else known


def read_heredoc(b: bytes, n: Node) -> tuple[Redirect, str | None, list[Node], list[Node], list[Node]]:
    """The redirection, its text where that is literal, the nodes of its expansions, more redirections and words of the
    same command, and what follows the command in its line. Raises UnreadableText."""
    kids = list(n.children)
    fd = None
    if kids[0].type == "file_descriptor":
        fd = int(b[kids[0].start_byte : kids[0].end_byte])
        refuse_if(kids[1].start_byte != kids[0].end_byte)
        kids.pop(0)
    refuse_if(len(kids) < 4 or kids[0].type not in ("<<", "<<-") or kids[1].type != "heredoc_start")
    op, start, *rest, body, end = kids
    refuse_if(b[op.start_byte : op.end_byte] != op.type.encode())  # -<< is taken for <<
    refuse_if(body.type != "heredoc_body" or end.type != "heredoc_end")
    mark = b[start.start_byte : start.end_byte]
    refuse_if(_MARK.fullmatch(mark) is None or b[op.end_byte : start.start_byte].strip(b" \t"))
    refuse_if(start.end_byte < len(b) and b[start.end_byte] not in b" \t\n|&><;")
    last = start.end_byte
    for c in rest:
        refuse_if(b[last : c.start_byte].strip(b" \t") or b"\n" in b[c.start_byte : c.end_byte])
        last = c.end_byte
    line = b.find(b"\n", last)
    refuse_if(line < 0 or b[last:line].strip(b" \t"))
    quoted = mark[:1] in b"'\"\\"
    first, stop = _heredoc_span(b, line + 1, mark.strip(b"'\"\\"), op.type == "<<-", not quoted)
    refuse_if(stop != end.end_byte or body.start_byte < first)
    lines = b[first : b.rfind(b"\n", first - 1, stop) + 1]
    if op.type == "<<-":
        lines = re.sub(rb"(?m)^\t+", b"", lines)
    more = [
        c for c in rest if c.type.endswith("_redirect") or c.type in ("word", "string", "raw_string", "concatenation")
    ]
    follow = [c for c in rest if c not in more]
    refuse_if(any(c.type == "heredoc_redirect" for c in more) or (follow and rest[-len(follow) :] != follow))
    if quoted:
        return Redirect(op.type, fd, None), _decode(lines), [], more, follow
    inside = [c for c in body.children if c.type != "heredoc_content"]
    if not inside:
        refuse_if(_unescaped(b, first, stop))
        plain = _UNESCAPE.sub(lambda m: m[1] or b"", lines)
        return Redirect(op.type, fd, None), _decode(plain), [], more, follow
    at = first
    for c in inside:
        refuse_if(_unescaped(b, at, c.start_byte))
        at = c.end_byte
    refuse_if(_unescaped(b, at, stop))
    return Redirect(op.type, fd, None), None, inside, more, follow


def _heredoc_span(b: bytes, first: int, mark: bytes, tabs: bool, joins: bool) -> tuple[int, int]:
    """Where the text begins and where the mark that ends it ends. A line that goes on with a backslash is not one."""
    at = first
    joined = False
    while at < len(b):
        stop = b.find(b"\n", at)
        stop = len(b) if stop < 0 else stop
        line = b[at:stop]
        if not joined and (line.lstrip(b"\t") if tabs else line) == mark:
            return first, stop
        refuse_if(joined and line.strip(b"\t") == mark)
        joined = joins and (len(line) - len(line.rstrip(b"\\"))) % 2 == 1
        at = stop + 1
    raise UnreadableText


def _unescaped(b: bytes, start: int, end: int) -> bool:
    """Whether something may expand there that the grammar did not see."""
    i = start
    while i < end:
        if b[i] == 0x5C:
            i += 2
        elif b[i] == 0x60 or (
            b[i] == 0x24 and i + 1 < len(b) and (chr(b[i + 1]).isalnum() or b[i + 1] in b"_({[@*#?$!-")
        ):
            return True
        else:
            i += 1
    return False


def _decode(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def names_in(text: bytes) -> frozenset[bytes]:
    """List all names in a text; parameters that are numbers are one name."""
    return frozenset(POSITIONAL if m in b"0123456789@*" else m for m in _VARIABLE.findall(text))


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


def split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EXPANSIONS = split_names("simple_expansion expansion command_substitution process_substitution arithmetic_expansion")
_INSIDE = split_names(  # what may surround an expansion inside a word, a test or an arithmetic expression
    """word concatenation string string_content raw_string ansi_c_string translated_string number command_name subscript
    variable_name special_variable_name variable_assignment array brace_expression extglob_pattern regex test_operator
    binary_expression unary_expression ternary_expression postfix_expression parenthesized_expression"""
)


class ExpansionReader:
    """Reads the words of one text and what runs in them. Its methods raise UnreadableText for what they do not expect.

    The reader of commands (reader.py) extends it: an expansion may hold commands, and a command expansions."""

    def __init__(self, source: bytes) -> None:
        self._b = source
        self._words = Lexer(source)
        self._values = ValueSources()
        self._arithmetic = False  # something is evaluated that may run the value of a variable
        self._depth = 0

    def _subshell(self, children: Sequence[Node], start: int, end: int) -> None:
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
            self._subshell(n.children[1:], n.start_byte + 2, n.end_byte)
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
            self._subshell(nodes, start, end)

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
