"""Claude Code's command line (commander). The table is `claude --help` of the tested version, and what it hides."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.agents.program import Arg, Kind, Syntax, is_given, last_value, to_words

__all__ = [
    "COMMANDS",
    "NO_SESSION",
    "PROMPT_OPTIONS",
    "SERVES",
    "SESSION_OPTIONS",
    "Arg",
    "is_given",
    "last_value",
    "parse_args",
    "subcommand",
    "to_words",
]

_VALUE = """agent agents append-system-prompt append-system-prompt-file debug-file effort fallback-model input-format
    json-schema max-budget-usd model name output-format permission-mode plugin-dir plugin-url session-id
    remote-control-session-name-prefix setting-sources settings system-prompt system-prompt-file
    advisor agent-color agent-id agent-name agent-type deep-link-cwd-b64 deep-link-last-fetch deep-link-repo
    managed-settings max-thinking-tokens max-turns parent-session-id permission-prompt-tool plan-mode-instructions
    plugin-dir-no-mcp prefill prefill-b64 resume-session-at rewind-files sdk-url task-budget team-name teammate-mode
    thinking thinking-display workload"""
_MAYBE = "debug from-pr prompt-suggestions remote-control resume worktree cloud rc remote teleport"
_MANY = """add-dir allowedTools allowed-tools betas disallowedTools disallowed-tools file mcp-config tools channels
    dangerously-load-development-channels"""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_MAYBE.split(), "maybe"),
    **dict.fromkeys(_MANY.split(), "many"),
}
SHORT = {
    "c": "continue",
    "d": "debug",
    "h": "help",
    "n": "name",
    "p": "print",
    "r": "resume",
    "v": "version",
    "w": "worktree",
}
_COMMANDS = "auth auto-mode doctor gateway install mcp plugin plugins project setup-token ultrareview update upgrade"
COMMANDS = frozenset(_COMMANDS.split())
SERVES = frozenset(("agents", "rc", "remote-control"))  # begin sessions of which no hook of ours would tell
NO_SESSION = frozenset(("version", "help", "init-only"))
PROMPT_OPTIONS = frozenset(("", "prefill", "prefill-b64", "input-format", "replay-user-messages"))
SESSION_OPTIONS = frozenset(
    ("resume", "continue", "session-id", "fork-session", "from-pr", "resume-session-at", "rewind-files")
)

parse_args = Syntax(KINDS, SHORT).read


def subcommand(args: Sequence[str]) -> str:
    """The subcommand, or "". With a word for printing anywhere, or behind `--`, what looks like one is a prompt."""
    given = parse_args(args)
    first = next((arg for arg in given if not arg.name), None)
    prints = is_given(given, "print") or "-p" in args or "--print" in args
    known = first is not None and first.words[0] != "--" and first.value in COMMANDS | SERVES
    return first.value if first is not None and known and not prints else ""
