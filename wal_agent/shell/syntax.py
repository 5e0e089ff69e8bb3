"""Shell text as data, read by a real grammar (tree-sitter-bash): every simple command in it, however deep.

Pure. Text that does not parse without an error, or has a construct that is not known here, is None: "cannot be read".
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_TEXT = 16 << 10  # bytes; the grammar has forms whose time grows with the square of the text


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command. `text`: its value once quotes are removed; None where only the shell can know it
    (expansions, globs, substitutions). `begins`: the literal text that it begins with, "~" for
    somebody's home; all of it if known, "" also where it may be several words of which only the first begins so."""

    text: str | None
    begins: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """`op` as it stands there (>, >>, >|, &>, &>>, <, <>, <<, <<-, <<<, >&, <&); `fd` as written. `to`: None for a
    heredoc, whose text holds nothing that runs (substitutions in it are commands of the script)."""

    op: str
    fd: int | None
    to: Word | None


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command. `words` is empty for assignments or redirections alone; `assigns` are the names set in front.

    `input`: what stands on its standard input, where that is literal: a heredoc, a here-string, "" for /dev/null.
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


def parse(text: str) -> Script | None:
    """The commands of a text that bash would be given by `bash -c`, with its default options. None: cannot be read."""
    from wal_agent.shell.reader import read_script  # late: the grammar is loaded when the first shell text comes

    return read_script(text)


def literal_commands(text: str) -> tuple[Simple, ...] | None:
    """The commands of a text whose every word is literal and each of which runs for sure, wrappers taken away."""
    from wal_agent.shell.wrappers import literal_commands

    return literal_commands(text)
