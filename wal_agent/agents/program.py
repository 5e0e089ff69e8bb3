"""A CLI's command line as its own parser reads it: which word is an option, which its value, which the prompt.

Each agent has its table, taken from its `--help`. What the CLI itself would refuse is passed on for it to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["flag", "value", "maybe", "many"]
"""maybe: takes the next word unless that looks like an option; many: takes all words up to the next option."""


@dataclass(frozen=True, slots=True)
class Arg:
    """One option with its value, or a positional word (`name` is empty). `words` spell it for the CLI again."""

    name: str
    value: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Syntax:
    """`kinds`: the long options that are known (others are flags). `short`: a letter's long name. `yargs`: it also
    takes --someOption for --some-option, and `true` or `false` behind a flag; else (commander, clap) a letter's value
    may stand right behind it, and an option that needs a value takes the next word whatever it looks like."""

    kinds: Mapping[str, Kind]
    short: Mapping[str, str] = field(default_factory=dict)
    yargs: bool = False

    def read(self, args: Sequence[str]) -> list[Arg]:
        out: list[Arg] = []
        at = 0
        while at < len(args):
            word = args[at]
            at += 1
            if word == "--":
                out += [Arg("", rest, ("--", rest)) for rest in args[at:]]
                break
            if word.startswith("--"):
                long, eq, value = word.partition("=")
                name = self._name(long[2:])
            elif len(word) > 1 and word[0] == "-" and word[1].isalpha():
                alone, letter, eq, value = self._letters(word)
                out += [Arg(self.short.get(c, c), "", ("-" + c,)) for c in alone]
                name = self.short.get(letter, letter)
                word = f"-{letter}{eq}{value}"
            else:
                out.append(Arg("", word, (word,)))
                continue
            taken = () if eq or value else self._taken(name, args[at:])
            at += len(taken)
            out.append(Arg(name, value if eq or value else " ".join(taken), (word, *taken)))
        return out

    def _name(self, long: str) -> str:
        if not self.yargs or long in self.kinds:
            return long
        return re.sub(r"(?<=[a-z])([A-Z])", lambda m: "-" + m[1].lower(), long)

    def _letters(self, word: str) -> tuple[str, str, str, str]:
        """Flags alone, the last letter, "=" or nothing, the value that is attached to it."""
        letters, eq, value = word[1:].partition("=")
        if not self.yargs:
            for i, c in enumerate(letters):
                if self.kinds.get(self.short.get(c, c), "flag") != "flag":
                    return letters[:i], c, eq if i + 1 == len(letters) else "", word[2 + i :].removeprefix("=")
        return letters[:-1], letters[-1], eq, value

    def _taken(self, name: str, rest: Sequence[str]) -> tuple[str, ...]:
        kind = self.kinds.get(name, "flag")
        if not rest:
            return ()
        if kind == "flag":
            return (rest[0],) if self.yargs and rest[0] in ("true", "false") else ()
        if kind == "value" and not self.yargs:
            return (rest[0],)
        if kind != "many":
            return () if _is_option(rest[0]) else (rest[0],)
        until = next((i for i, word in enumerate(rest) if _is_option(word)), len(rest))
        return tuple(rest[:until])


def _is_option(word: str) -> bool:
    return re.match(r"-[^0-9]", word) is not None


def to_words(args: Iterable[Arg]) -> list[str]:
    """Back to a command line; what stood behind `--` stands there again, once."""
    plain: list[str] = []
    behind: list[str] = []
    for arg in args:
        if arg.words[0] == "--":
            behind.append(arg.words[1])
        else:
            plain += arg.words
    return [*plain, "--", *behind] if behind else plain


def last_value(args: Iterable[Arg], name: str) -> str | None:
    """The value of an option as given last, None when it is not given."""
    found = [arg.value for arg in args if arg.name == name]
    return found[-1] if found else None


def is_given(args: Iterable[Arg], name: str) -> bool:
    return last_value(args, name) not in (None, "false")
