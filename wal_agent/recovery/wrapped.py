"""What a command that runs another command runs: the words behind its own options. Pure.

An option that is not known makes it unknown what runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.records import Class
from wal_agent.shell.syntax import Simple, Word

Words = Sequence[Word]
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class InnerRun:
    """What a wrapper runs: a command, or with `shell` a text (None: not known). `input`: what that reads, if known.

    `sets`: variables set for it. `away`: where it runs, if not on this machine. `least`: it is at least this bad, and
    `why`."""

    words: tuple[Word, ...] = ()
    text: str | None = None
    shell: bool = False
    input: str | None = None
    sets: tuple[str, ...] = ()
    away: str = ""
    least: Class = "read_only"
    why: str = ""
    own: tuple[Word, ...] = ()  # the command that is left of the wrapper itself, for the rules


@dataclass(frozen=True, slots=True)
class WrapperSpec:
    """A wrapper that takes options, `skip` operands, and then a command."""

    flags: str = ""
    values: str = ""
    long: frozenset[str] = frozenset()  # "--x" is a flag, "--x=" takes a value
    skip: int = 0
    sets: bool = False  # assignments may stand in front of the command
    extra: re.Pattern[str] | None = None  # more words that are options
    least: Class = "read_only"
    why: str = ""
    alone: bool = False  # without a command it only prints
    away: bool = False
    dashes: bool = False  # the command stands behind "--"


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _unknown(why: str) -> tuple[InnerRun, ...]:
    return (InnerRun(shell=True, least="unknown", why=why),)


def _read_wrapper(w: WrapperSpec, words: Words, c: Simple, away: str = "") -> tuple[InnerRun, ...]:
    i = _count_options(w, words)
    if i is None:
        return _unknown("has options that are not known here")
    sets: list[str] = []
    while w.sets and i < len(words) and (m := _ASSIGN.fullmatch(words[i].text or words[i].begins)):
        sets.append(m[1])
        i += 1
    if i < len(words) and words[i].text is None and w.skip == 0:
        return _unknown("runs a command that only the shell knows")
    skipped = words[i : i + w.skip]
    if any(s.text is None for s in skipped):
        return _unknown("runs a command that only the shell knows")
    i += w.skip
    if w.dashes:
        more = _count_options(w, words[i:])
        if more is None or words[i + more - 1].text != "--":
            return _unknown("runs a command that cannot be told from its options")
        i += more
    rest = tuple(words[i:])
    if not rest:
        return () if w.alone else _unknown("runs nothing that stands there") if not c.redirects else ()
    return (InnerRun(rest, input=c.input, sets=tuple(sets), away=away if w.away else "", least=w.least, why=w.why),)


def _count_options(w: WrapperSpec, words: Words) -> int | None:
    """How many words are options and their values; None if one is not known."""
    i = 0
    while i < len(words):
        text = words[i].text
        if text is None:
            return i if words[i].begins and not words[i].begins.startswith("-") else None
        if text == "--":
            return i + 1
        if not text.startswith("-") or text == "-":
            return i
        if text.startswith("--"):
            name, equals, _value = text.partition("=")
            if (equals and f"{name}=" in w.long) or (not equals and name in w.long):
                i += 1
            elif not equals and f"{name}=" in w.long:
                i += 2
            else:
                return None
        elif w.extra is not None and w.extra.fullmatch(text):
            i += 1
        else:
            took = _cluster(text[1:], w)
            if took is None:
                return None
            i += took
    return i


def _cluster(letters: str, w: WrapperSpec) -> int | None:
    for at, c in enumerate(letters):
        if c in w.values:
            return 2 if at == len(letters) - 1 else 1
        if c not in w.flags:
            return None
    return 1


def _class_of_text(text: str | None) -> Class:
    return "unknown" if text is None else "read_only"


def _join_words(words: Words) -> str | None:
    return None if any(w.text is None for w in words) else " ".join(w.text or "" for w in words)
