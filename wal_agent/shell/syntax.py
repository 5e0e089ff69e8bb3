"""Define shell text as data, and split it into words and heredocs by bash's own rules: where each ends, and its value
without quotes.

`Script` holds every simple command of a text, however deep. The grammar's own nodes are not trusted to find where words
end: it takes a line that is continued inside a word for two words, and some heredocs end elsewhere than it says. What
cannot be read for certain raises `UnreadableText`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command. `text`: its value once quotes are removed; None where only the shell can know it
    (expansions, globs, substitutions). `begins`: the literal text that it begins with, "~" for
    somebody's home; all of it if known, "" also where it may be several words of which only the first begins so."""

    text: str | None
    begins: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """`op` as written (>, >>, >|, &>, &>>, <, <>, <<, <<-, <<<, >&, <&); `fd` as written. `to`: None for a
    heredoc, whose text holds nothing that runs (substitutions in it are commands of the script)."""

    op: str
    fd: int | None
    to: Word | None


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command. `words` is empty for assignments or redirections alone; `assigns` are the names set in front.

    `input`: its standard input, where that is literal: a heredoc, a here-string, "" for /dev/null.
    `sure`: it runs exactly once, one after the other, unless an earlier one in an && list fails: no loop, no condition,
    no pipe, no background, no function, no subshell around it."""

    words: tuple[Word, ...]
    assigns: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    input: str | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """`commands`: all of the text, in its order, those in substitutions, loops, functions and subshells with them.
    `functions`: names that the text defines; a command of such a name is what the text says, not the program."""

    commands: tuple[Simple, ...]
    functions: frozenset[str] = frozenset()


_META = frozenset(b"|&;()<> \t\n")
_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789@*#?$!-({['\"")
_BRACES = re.compile(rb"\{[^\n]*(?:,|\.\.)")
_MANY = re.compile(rb"\$[@*]|[@*]\]|^\$\{[!]?[\w]*[@*]")  # expansions that are many words even in double quotes
_ESCAPE = re.compile(
    rb"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8}))"
)
_LETTERS = dict(zip(b"abeEfnrtv\\'\"?", b"\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


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
            return i, Word(None)
        return i, Word(value if known is None else None, begins)

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


def _first(known: int | None, done: bytearray) -> int:
    return len(done) if known is None else known


_MARK = re.compile(rb"[A-Za-z0-9_.+-]{1,64}|'[A-Za-z0-9_.+ -]{1,64}'|\"[A-Za-z0-9_.+ -]{1,64}\"|\\[A-Za-z0-9_]{1,64}")
_EXPANDS = re.compile(rb"\$|`")
_UNESCAPE = re.compile(rb"\\(?:\n|([$`\\]))")


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
