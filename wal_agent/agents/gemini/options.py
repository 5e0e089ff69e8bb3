"""Gemini's command line (yargs). The table is `gemini --help` of the tested version."""

from __future__ import annotations

from wal_agent.agents.program import Arg, Kind, Syntax, is_given, last_value, to_words

__all__ = [
    "COMMANDS",
    "NO_SESSION",
    "PROMPT_OPTIONS",
    "SESSION_OPTIONS",
    "Arg",
    "is_given",
    "last_value",
    "parse_args",
    "to_words",
]

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
PROMPT_OPTIONS = frozenset(("prompt", "prompt-interactive", ""))
SESSION_OPTIONS = frozenset(("resume", "session-id", "session-file"))

parse_args = Syntax(KINDS, SHORT, yargs=True).read
