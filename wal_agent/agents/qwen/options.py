"""Qwen Code's command line (yargs). The table is `qwen --help` of the tested version."""

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

_VALUE = """telemetry-target telemetry-otlp-endpoint telemetry-otlp-protocol telemetry-outfile proxy model prompt
    prompt-interactive system-prompt append-system-prompt sandbox-image approval-mode channel mcp-config
    openai-logging-dir openai-api-key openai-base-url input-format output-format json-fd json-file json-schema
    input-file resume session-id max-session-turns auth-type"""
_MANY = """allowed-mcp-server-names allowed-tools extensions include-directories add-dir core-tools exclude-tools
    disabled-slash-commands"""
_FLAG = """telemetry telemetry-log-prompts debug bare chat-recording sandbox yolo checkpointing acp experimental-acp
    experimental-lsp list-extensions openai-logging screen-reader include-partial-messages continue version help"""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_MANY.split(), "many"),
    **dict.fromkeys(_FLAG.split(), "flag"),
}
SHORT = {
    "d": "debug",
    "m": "model",
    "p": "prompt",
    "i": "prompt-interactive",
    "s": "sandbox",
    "y": "yolo",
    "e": "extensions",
    "l": "list-extensions",
    "o": "output-format",
    "c": "continue",
    "r": "resume",
    "v": "version",
    "h": "help",
}
COMMANDS = frozenset(("mcp", "extensions", "auth", "hooks", "hook", "channel", "review"))
NO_SESSION = frozenset(("version", "help", "list-extensions"))
PROMPT_OPTIONS = frozenset(("prompt", "prompt-interactive", ""))
SESSION_OPTIONS = frozenset(("resume", "session-id", "continue"))

parse_args = Syntax(KINDS, SHORT, yargs=True).read
