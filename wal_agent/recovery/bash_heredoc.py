"""Heredocs in a tree of tree-sitter-bash: where the text begins and ends is found again by bash's own rule."""

from __future__ import annotations

import re

from tree_sitter import Node

from wal_agent.shell.lexer import UnreadableText
from wal_agent.shell.syntax import Redirect

_MARK = re.compile(rb"[A-Za-z0-9_.+-]{1,64}|'[A-Za-z0-9_.+ -]{1,64}'|\"[A-Za-z0-9_.+ -]{1,64}\"|\\[A-Za-z0-9_]{1,64}")
_EXPANDS = re.compile(rb"\$|`")
_UNESCAPE = re.compile(rb"\\(?:\n|([$`\\]))")


def read_heredoc(b: bytes, n: Node) -> tuple[Redirect, str | None, list[Node], list[Node], list[Node]]:
    """The redirection, its text where that is literal, the nodes of its expansions, more redirections and words of the
    same command, and what follows the command in its line. Raises bash_words.Unread."""
    kids = list(n.children)
    fd = None
    if kids[0].type == "file_descriptor":
        fd = int(b[kids[0].start_byte : kids[0].end_byte])
        if kids[1].start_byte != kids[0].end_byte:
            raise UnreadableText
        kids.pop(0)
    if len(kids) < 4 or kids[0].type not in ("<<", "<<-") or kids[1].type != "heredoc_start":
        raise UnreadableText
    op, start, *rest, body, end = kids
    if b[op.start_byte : op.end_byte] != op.type.encode():
        raise UnreadableText  # -<< is taken for <<
    if body.type != "heredoc_body" or end.type != "heredoc_end":
        raise UnreadableText
    mark = b[start.start_byte : start.end_byte]
    if _MARK.fullmatch(mark) is None or b[op.end_byte : start.start_byte].strip(b" \t"):
        raise UnreadableText
    if start.end_byte < len(b) and b[start.end_byte] not in b" \t\n|&><;":
        raise UnreadableText
    last = start.end_byte
    for c in rest:
        if b[last : c.start_byte].strip(b" \t") or b"\n" in b[c.start_byte : c.end_byte]:
            raise UnreadableText
        last = c.end_byte
    line = b.find(b"\n", last)
    if line < 0 or b[last:line].strip(b" \t"):
        raise UnreadableText
    quoted = mark[:1] in b"'\"\\"
    first, stop = _heredoc_span(b, line + 1, mark.strip(b"'\"\\"), op.type == "<<-", not quoted)
    if stop != end.end_byte or body.start_byte < first:
        raise UnreadableText
    lines = b[first : b.rfind(b"\n", first - 1, stop) + 1]
    if op.type == "<<-":
        lines = re.sub(rb"(?m)^\t+", b"", lines)
    more = [
        c for c in rest if c.type.endswith("_redirect") or c.type in ("word", "string", "raw_string", "concatenation")
    ]
    follow = [c for c in rest if c not in more]
    if any(c.type == "heredoc_redirect" for c in more) or (follow and rest[-len(follow) :] != follow):
        raise UnreadableText
    if quoted:
        return Redirect(op.type, fd, None), _decode(lines), [], more, follow
    inside = [c for c in body.children if c.type != "heredoc_content"]
    if not inside:
        if _unescaped(b, first, stop):
            raise UnreadableText
        plain = _UNESCAPE.sub(lambda m: m[1] or b"", lines)
        return Redirect(op.type, fd, None), _decode(plain), [], more, follow
    at = first
    for c in inside:
        if _unescaped(b, at, c.start_byte):
            raise UnreadableText
        at = c.end_byte
    if _unescaped(b, at, stop):
        raise UnreadableText
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
        if joined and line.strip(b"\t") == mark:
            raise UnreadableText
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
