"""Gemini's command line as its parser (yargs) reads it: which word is an option, which its value, which the prompt.

The table is `gemini --help` of the tested version. What Gemini itself would refuse is passed on for it to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["flag", "value", "maybe"]  # maybe: takes the next word unless that looks like an option

_VALUE = """model prompt prompt-interactive approval-mode policy admin-policy allowed-mcp-server-names allowed-tools
    extensions session-file session-id include-directories output-format"""
_MAYBE = "worktree resume delete-session fake-responses fake-responses-non-strict record-responses"
_FLAG = """debug skip-trust sandbox yolo acp experimental-acp list-extensions list-sessions screen-reader raw-output
    accept-raw-output-risk version help"""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_MAYBE.split(), "maybe"),
    **dict.fromkeys(_FLAG.split(), "flag"),
}
SHORT = {
    "d": "debug",
    "m": "model",
    "p": "prompt",
    "i": "prompt-interactive",
    "w": "worktree",
    "s": "sandbox",
    "y": "yolo",
    "e": "extensions",
    "l": "list-extensions",
    "r": "resume",
    "o": "output-format",
    "v": "version",
    "h": "help",
}
COMMANDS = frozenset(("mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"))
NO_SESSION = frozenset(("version", "help", "list-sessions", "delete-session", "list-extensions"))
PROMPT = frozenset(("prompt", "prompt-interactive", ""))
SESSION = frozenset(("resume", "session-id", "session-file"))


@dataclass(frozen=True, slots=True)
class Arg:
    """One option with its value, or a positional word (`name` is empty). `words` spell it for Gemini again."""

    name: str
    value: str
    words: tuple[str, ...]


def read(args: Sequence[str]) -> list[Arg]:
    out: list[Arg] = []
    at = 0
    while at < len(args):
        word = args[at]
        after = args[at + 1] if at + 1 < len(args) else None
        at += 1
        if word == "--":
            out += [Arg("", rest, ("--", rest)) for rest in args[at:]]
            break
        if word.startswith("--"):
            long, eq, value = word.partition("=")
            name = _kebab(long[2:])
            taken = after if not eq and _takes(name, after) else None
            at += taken is not None
            out.append(Arg(name, value if eq else taken or "", (word,) if taken is None else (word, taken)))
        elif len(word) > 1 and word[0] == "-" and word[1].isalpha():
            letters, eq, value = word[1:].partition("=")
            out += [Arg(SHORT.get(c, c), "", ("-" + c,)) for c in letters[:-1]]
            name = SHORT.get(letters[-1], letters[-1])
            taken = after if not eq and _takes(name, after) else None
            at += taken is not None
            last = f"-{letters[-1]}{eq}{value}"
            out.append(Arg(name, value if eq else taken or "", (last,) if taken is None else (last, taken)))
        else:
            out.append(Arg("", word, (word,)))
    return out


def _kebab(name: str) -> str:
    """yargs takes --promptInteractive for --prompt-interactive."""
    return name if name in KINDS else re.sub(r"(?<=[a-z])([A-Z])", lambda m: "-" + m[1].lower(), name)


def _takes(name: str, after: str | None) -> bool:
    if after is None:
        return False
    if KINDS.get(name, "flag") == "flag":
        return after in ("true", "false")
    return re.match(r"-[^0-9]", after) is None


def words(args: Iterable[Arg]) -> list[str]:
    """Back to a command line; what stood behind `--` stands there again, once."""
    plain: list[str] = []
    behind: list[str] = []
    for arg in args:
        if arg.words[0] == "--":
            behind.append(arg.words[1])
        else:
            plain += arg.words
    return [*plain, "--", *behind] if behind else plain


def last(args: Iterable[Arg], name: str) -> str | None:
    """The value of an option as given last, None when it is not given."""
    found = [arg.value for arg in args if arg.name == name]
    return found[-1] if found else None


def on(args: Iterable[Arg], name: str) -> bool:
    return last(args, name) not in (None, "false")
