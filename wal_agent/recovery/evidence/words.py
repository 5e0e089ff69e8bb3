"""The words of a plain command: program, options, operands, as GNU getopt reads them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wal_agent.evidence.model import Step

_BINS = ("/bin/", "/usr/bin/", "/usr/local/bin/")


def program_name(step: Step) -> str:
    """The name of a step's program; "" where it is some file of the project's."""
    name = step.words[0] if step.words else ""
    for folder in _BINS:
        if name.startswith(folder):
            name = name[len(folder) :]
    return "" if "/" in name else name


@dataclass(frozen=True, slots=True)
class Argv:
    """`options`: short ones by letter, long ones by name, in their order; `values`: of options that take one."""

    options: tuple[str, ...]
    operands: tuple[str, ...]
    values: dict[str, str]

    def has(self, *names: str) -> bool:
        return any(n in self.options for n in names)


def parse_argv(words: tuple[str, ...], short: str, long: Collection[str] = (), valued: str = "") -> Argv | None:
    """The words behind the program. None where an option stands that is not in `short`, `long` or, with a value behind
    it, in `valued`: it may change what the command does."""
    options: list[str] = []
    operands: list[str] = []
    values: dict[str, str] = {}
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            operands += rest
            break
        if word.startswith("--"):
            if word not in long:
                return None
            options.append(word)
        elif word.startswith("-") and len(word) > 1:
            for at, letter in enumerate(word[1:], 1):
                if letter in valued:
                    value = word[at + 1 :] or (rest.pop(0) if rest else None)
                    if value is None or letter in values:
                        return None
                    values[letter] = value
                    break
                if letter not in short:
                    return None
                options.append(letter)
        else:
            operands.append(word)
    return Argv(tuple(options), tuple(operands), values)
