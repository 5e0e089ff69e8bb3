"""Define shell text as data: every simple command in it, however deep."""

from __future__ import annotations

from dataclasses import dataclass


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
