"""Copilot's command line (clap). The table is `copilot --help` of the tested version, and what it hides."""

from __future__ import annotations

from wal_agent.agents.program import Arg, Kind, Syntax, is_given, last_value, to_words

__all__ = [
    "COMMANDS",
    "ELSEWHERE",
    "FIRST",
    "NO_SESSION",
    "PROMPT_OPTIONS",
    "SESSION_OPTIONS",
    "Arg",
    "is_given",
    "last_value",
    "parse_args",
    "to_words",
]

_VALUE = """interactive prompt model reasoning-effort context auto-tier agent name session-id log-dir log-level
    extension-sdk-path stream output-format add-dir attachment disable-mcp-server add-github-mcp-toolset
    add-github-mcp-tool plugin-dir additional-mcp-config mcp-github-auth max-autopilot-continues mode directory
    environment-host environment-compute-id dynamic-retrieval enable-mcp-server max-ai-credits usage-output-file"""
_MAYBE = "resume connect share bash-env mouse worktree"
_MANY = "allow-tool deny-tool available-tools excluded-tools secret-env-vars allow-url deny-url"

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_MAYBE.split(), "maybe"),
    **dict.fromkeys(_MANY.split(), "many"),
}
SHORT = {
    "C": "directory",
    "h": "help",
    "i": "interactive",
    "n": "name",
    "p": "prompt",
    "r": "resume",
    "s": "silent",
    "v": "version",
}
_COMMANDS = """app login help init config update version workflow sessions memories plugin mcp skill instruction lsp
    sandbox completion"""
COMMANDS = frozenset(_COMMANDS.split())
NO_SESSION = frozenset(("version", "help"))
SESSION_OPTIONS = frozenset(("resume", "continue", "session-id"))
PROMPT_OPTIONS = frozenset(("prompt", "interactive", "attachment"))
FIRST = frozenset(("name", "trust-folder"))
"""Copilot takes these only where a session begins, and then refuses `--resume` beside them."""
ELSEWHERE = ("acp", "server", "headless", "connect", "environment-host", "worktree", "directory")

parse_args = Syntax(KINDS, SHORT).read
