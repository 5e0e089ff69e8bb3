"""pi's command line as pi itself reads it (0.73: cli/args.js), which is like no other's: no `--name=value` for its own
options, letters in twos and threes, `-p` takes the next word, and so does any long option that it does not know."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.agents.program import Arg

COMMANDS = ("install", "remove", "uninstall", "update", "list", "config")
NO_SESSION = ("help", "version", "export", "list-models")
SESSION_OPTIONS = ("session", "continue", "resume", "fork")
PROMPT, FILE = "", "@"  # names of words that are no options: a message; a file that becomes part of one

_SHORT = {
    "h": "help",
    "v": "version",
    "p": "print",
    "c": "continue",
    "r": "resume",
    "t": "tools",
    "e": "extension",
    "nt": "no-tools",
    "nbt": "no-builtin-tools",
    "ne": "no-extensions",
    "ns": "no-skills",
    "np": "no-prompt-templates",
    "nc": "no-context-files",
}
_VALUE = {
    *("mode", "provider", "model", "api-key", "system-prompt", "append-system-prompt", "session", "fork"),
    *("session-dir", "models", "tools", "thinking", "export", "extension", "skill", "prompt-template", "theme"),
}
_FLAG = {*_SHORT.values(), "no-session", "no-themes", "verbose", "offline"} - _VALUE - {"print"}


def parse_args(args: Sequence[str]) -> list[Arg]:
    out: list[Arg] = []
    at = 0
    while at < len(args):
        word = args[at]
        following = args[at + 1] if at + 1 < len(args) else None
        name, taken = _parse_one(word, following)
        value = word[1:] if name == FILE else word if name == PROMPT else ""
        if taken and following is not None:
            out.append(Arg(name, following, (word, following)))
        else:
            out.append(Arg(name, value, (word,)))
        at += 1 + taken
    return out


def _parse_one(word: str, following: str | None) -> tuple[str, bool]:
    """What the word is, and whether it takes the following one."""
    if word.startswith("@"):
        return FILE, False
    if not word.startswith("-"):
        return PROMPT, False
    long = word[2:] if word.startswith("--") else _SHORT.get(word[1:], "")
    if not long and not word.startswith("--"):
        return "?", False  # pi refuses to start
    if long == "print":
        takes = following is not None and following[:1] != "@" and (following[:1] != "-" or following[:3] == "---")
        return long, takes
    if long in _FLAG:
        return long, False
    if long in _VALUE and following is not None:
        return long, True
    if "=" in long:
        return "?", False  # some extension's
    takes = following is not None and following[:1] not in ("-", "@")
    return (long if long == "list-models" else "?"), takes


def last_value(given: Sequence[Arg], name: str) -> str | None:
    found = [arg.value for arg in given if arg.name == name]
    return found[-1] if found else None


def output_mode(given: Sequence[Arg]) -> str | None:
    """The last that is one: pi passes over others."""
    return next((a.value for a in reversed(given) if a.name == "mode" and a.value in ("text", "json", "rpc")), None)


def prompt_words(given: Sequence[Arg]) -> list[str]:
    """The words that make up what the user asks for, in order."""
    return [
        arg.words[0] if arg.name == FILE else arg.value
        for arg in given
        if arg.name in (PROMPT, FILE) or (arg.name == "print" and len(arg.words) > 1)
    ]


def without_prompt(given: Sequence[Arg]) -> list[Arg]:
    return [
        Arg("print", "", arg.words[:1]) if arg.name == "print" else arg
        for arg in given
        if arg.name not in (PROMPT, FILE)
    ]


def to_words(given: Sequence[Arg]) -> list[str]:
    return [word for arg in given for word in arg.words]
