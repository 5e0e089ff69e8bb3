"""Whether commands that can each be done again can be done again together. Pure.

Each of `head -n -1 a > b` and `cp b a` writes the whole of a file; both together take another line off each time. And
what `openssl rand` prints is another text each time, so a file that is made of it is not the same again.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from wal_agent.shell.match import program_name
from wal_agent.shell.rules import Classified
from wal_agent.shell.syntax import Simple

WRITES_BACK = Classified(
    "mutation",
    "writes-back",
    "writes to a file what it made of that file; a second time it makes it of the result",
    "look at the file",
)
DRAWS = Classified(
    "mutation",
    "writes-random",
    "writes what is drawn anew each time, in the place of what was there",
    "look at the file",
)
_COPIES = frozenset({"cp", "mv", "install", "ln", "scp", "rsync"})  # read all operands but the last, and write that
_WRITES_ALL = frozenset({"tee", "sponge"})
_TO_FILE = frozenset({"-o", "--output", "-O", "--out", "-out"})
_SAYS_NOTHING_OF_IT = frozenset({"echo", "printf", "test", "[", "ls", "stat", "cd", "mkdir", "touch", "find", "rm"})
_RANDOM = frozenset({"shuf", "gshuf", "uuidgen", "pwgen", "mcookie", "apg", "makepasswd", "fortune", "jot"})
_RANDOM_OPENSSL = frozenset({"rand", "genrsa", "genpkey", "gendsa", "ecparam", "dhparam", "enc", "passwd", "req"})


def joint_effect(commands: Sequence[Simple]) -> Classified | None:
    """What the commands of one text do together that none of them does alone; None where nothing is seen."""
    writes = [set(_writes(c)) for c in commands]
    made: set[str] = set()  # files that went into something that was written, or into a pipe
    for c, written in zip(commands, writes, strict=True):
        reads = set(_reads(c))
        if reads & written and _name(c) not in _COPIES and _name(c) != "sort":
            return WRITES_BACK
        if written & made:
            return WRITES_BACK
        if written or not c.sure:
            made |= reads
    return DRAWS if any(writes) and any(_draws(c) for c in commands) else None


def _name(c: Simple) -> str:
    return (program_name(c.words[0]) or "") if c.words else ""


def _operands(c: Simple) -> list[str]:
    return [_path(w.text) for w in c.words[1:] if w.text and not w.text.startswith("-")]


def _path(text: str) -> str:
    return posixpath.normpath(text)


def _writes(c: Simple) -> Iterator[str]:
    for r in c.redirects:
        if r.op in (">", ">|", "&>", ">&") and r.to is not None and r.to.text and not r.to.text.startswith("/dev/"):
            yield _path(r.to.text)
    name, operands = _name(c), _operands(c)
    if name in _COPIES and len(operands) > 1:
        yield operands[-1]
    elif name in _WRITES_ALL:
        yield from operands
    for option, value in zip(c.words, c.words[1:], strict=False):
        if option.text in _TO_FILE and value.text:
            yield _path(value.text)
    for w in c.words[1:]:
        if w.text and w.text.startswith(("of=", "--output=")):
            yield _path(w.text.partition("=")[2])


def _reads(c: Simple) -> Iterator[str]:
    for r in c.redirects:
        if r.op == "<" and r.to is not None and r.to.text:
            yield _path(r.to.text)
    name, operands = _name(c), _operands(c)
    if name in _SAYS_NOTHING_OF_IT or name in _WRITES_ALL:
        return
    if name in _COPIES:
        yield from operands[:-1]
        return
    output = {
        _path(v.text) for o, v in zip(c.words, c.words[1:], strict=False) if o.text in _TO_FILE and v.text is not None
    }
    yield from (o for o in operands if o not in output or operands.count(o) > 1)
    yield from (_path(o.removeprefix("if=")) for o in operands if o.startswith("if="))


def _draws(c: Simple) -> bool:
    name = _name(c)
    texts = [w.text or "" for w in c.words[1:]]
    if name == "openssl":
        return bool(texts) and texts[0] in _RANDOM_OPENSSL
    if name in ("sort", "gsort"):
        return any(t in ("--random-sort", "--sort=random") or (t[:1] == "-" != t[1:2] and "R" in t) for t in texts)
    if name in ("awk", "gawk", "mawk"):
        return any("rand(" in t for t in texts)
    if name == "gpg":
        return "--gen-random" in texts
    if name == "wg":
        return bool(texts) and texts[0] in ("genkey", "genpsk")
    return name in _RANDOM
