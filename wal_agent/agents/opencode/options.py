"""OpenCode's command line (yargs). The tables are `opencode --help` and `opencode run --help` of the tested version."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.agents.program import Arg, Kind, Syntax, is_given, last_value, to_words

__all__ = ["PASS", "SERVERS", "Arg", "is_given", "last_value", "parse_args", "subcommand", "to_words"]

_VALUE = """log-level port hostname mdns-domain model session prompt agent replay-limit command format title attach
    password username dir variant"""
_FLAG = "help version print-logs pure mdns continue fork auto mini no-replay share thinking interactive yolo"

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_FLAG.split(), "flag"),
    "file": "many",
    "cors": "many",
}
SHORT = {
    "h": "help",
    "v": "version",
    "m": "model",
    "c": "continue",
    "s": "session",
    "f": "file",
    "p": "password",
    "u": "username",
    "i": "interactive",
}
# Those of them that run no model in this folder.
PASS = frozenset(
    [
        "completion",
        "mcp",
        "debug",
        "providers",
        "auth",
        "agent",
        "upgrade",
        "uninstall",
        "models",
        "stats",
        "export",
        "import",
        "session",
        "plugin",
        "plug",
        "db",
    ]
)
# Their sessions are begun by another program, or in another folder.
SERVERS = frozenset(["acp", "attach", "serve", "web", "github", "pr"])

parse_args = Syntax(KINDS, SHORT, yargs=True).read


def subcommand(args: Sequence[str]) -> tuple[str, list[Arg]]:
    """The subcommand ("": the TUI) and all that is given beside its name."""
    given = parse_args(args)
    for i, arg in enumerate(given):
        if not arg.name:
            known = arg.words[0] != "--" and arg.value in {"run", *PASS, *SERVERS}
            return (arg.value, given[:i] + given[i + 1 :]) if known else ("", given)
    return "", given
