"""Parse the words of a command into options and operands, as GNU getopt and git do. Pure.

An option that is not listed makes the command unreadable: it may change what the command does, and no verdict may rest
on an option that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The known options by spelling, with the name that `Argv` has for them: `flags`, `valued`, and `optional` ones,
    which take a value only when it is attached."""

    flags: dict[str, str]
    valued: dict[str, str]
    optional: dict[str, str]


@dataclass(frozen=True, slots=True)
class Argv:
    """`on`: flags given. `values`: of options that take one, in order. `operands`: the words that are no options;
    `paths`: those after a "--", where these are kept apart and there is one."""

    on: frozenset[str]
    values: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]
    paths: tuple[str, ...] | None

    def every(self, name: str) -> tuple[str, ...]:
        return tuple(v for k, v in self.values if k == name)

    def last(self, name: str) -> str | None:
        return next(iter(self.every(name)[::-1]), None)

    def has(self, *names: str) -> bool:
        return any(n in self.on or any(n == k for k, _ in self.values) for n in names)


def parse_options(flags: str, valued: str = "", optional: str = "") -> Options:
    """Each word is the spellings of one option, "-m|--message"; the last one without dashes is its name."""

    def table(text: str) -> dict[str, str]:
        return {spelling: word.split("|")[-1].lstrip("-") for word in text.split() for spelling in word.split("|")}

    return Options(table(flags), table(valued), table(optional))


def parse_argv(words: Sequence[str], known: Options, paths_apart: bool = False) -> Argv | None:
    """The words behind a program or subcommand; None where it has an option that is not known."""
    on: set[str] = set()
    values: list[tuple[str, str]] = []
    operands: list[str] = []
    paths: tuple[str, ...] | None = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            paths = tuple(rest)
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if not equals and (flag := known.flags.get(name) or known.optional.get(name)):
                on.add(flag)
            elif equals and name in known.optional:
                values.append((known.optional[name], value))
            elif name in known.valued and (equals or rest):
                values.append((known.valued[name], value if equals else rest.pop(0)))
            else:
                return None
        elif word.startswith("-") and word != "-":
            if not _parse_cluster(word[1:], known, on, values, rest):
                return None
        else:
            operands.append(word)
    if not paths_apart:
        operands, paths = [*operands, *(paths or ())], None
    return Argv(frozenset(on), tuple(values), tuple(operands), paths)


def _parse_cluster(letters: str, known: Options, on: set[str], values: list[tuple[str, str]], rest: list[str]) -> bool:
    """Short options in one word; the first that takes a value takes what follows it."""
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        if name in known.flags:
            on.add(known.flags[name])
        elif name in known.optional:
            if letters:
                values.append((known.optional[name], letters))
            else:
                on.add(known.optional[name])
            return True
        elif name in known.valued and (letters or rest):
            values.append((known.valued[name], letters or rest.pop(0)))
            return True
        else:
            return False
    return True
