"""Codex's command line (clap). The table is the `--help` of the tested version and its subcommands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.agents.program import Arg, Kind, Syntax, is_given, last_value, to_words

__all__ = ["ParsedArgs", "is_given", "last_value", "parse_args", "to_words"]

_VALUE = """config enable disable remote remote-auth-token-env model local-provider profile sandbox cd add-dir
    ask-for-approval thread-source cyber-access-program output-schema color output-last-message base commit title"""
_FLAG = """strict-config oss approve-for-me dangerously-bypass-approvals-and-sandbox dangerously-bypass-hook-trust
    worktree search no-alt-screen no-daemon help version skip-git-repo-check trust ephemeral ignore-user-config
    ignore-rules json last all include-non-interactive uncommitted"""
_TOOLS = """login logout mcp plugin completion update doctor sandbox debug apply a queue archive delete
    migrate-rollouts migrate-nfs-db unarchive cloud features help"""
_PICKS = "last all include-non-interactive uncommitted base commit title"
KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_FLAG.split(), "flag"),
    "image": "many",
}
SHORT = {
    "c": "config",
    "i": "image",
    "m": "model",
    "p": "profile",
    "s": "sandbox",
    "C": "cd",
    "a": "ask-for-approval",
    "o": "output-last-message",
    "h": "help",
    "V": "version",
}
TALKS = frozenset(("resume", "fork"))  # on a terminal
WORKS = frozenset(("exec", "e", "review"))  # headless
SERVES = frozenset(("agents", "app-server", "exec-server", "remote-control", "mcp-server"))  # sessions of others
TOOLS = frozenset(_TOOLS.split())  # no session of this folder
INNER = frozenset(("resume", "fork", "review", "help"))  # of exec
PICKS = frozenset(_PICKS.split())  # which session, or what to review

_parse = Syntax(KINDS, SHORT).read


@dataclass(frozen=True, slots=True)
class ParsedArgs:
    """A command line taken apart. `options`: all of them; `before`: how many stand before the subcommand. `command` and
    `inner`: the subcommand and that of exec (empty: none); `session`: the word that names one, where there is one;
    `prompt`: the word that is it."""

    options: list[Arg]
    before: int
    command: str
    inner: str
    session: str
    prompt: str

    @property
    def headless(self) -> bool:
        return self.command in WORKS


def parse_args(args: Sequence[str]) -> ParsedArgs:
    given = _parse(args)
    said = [arg for arg in given if not arg.name]
    options = [arg for arg in given if arg.name]
    command = inner = session = ""
    before = 0
    if said and said[0].words[0] != "--" and said[0].value in TALKS | WORKS | SERVES | TOOLS:
        before = given.index(said[0])
        command = said.pop(0).value
    if command == "debug" and said and said[0].value == "app-server":  # sends messages too
        command = said.pop(0).value
    if command in ("exec", "e") and said and said[0].words[0] != "--" and said[0].value in INNER:
        inner = said.pop(0).value
    if "resume" in (command, inner) or "fork" in (command, inner):
        newest = is_given(options, "last") and len(said) < 2  # then the one word is the prompt
        session = said.pop(0).value if said and not newest else ""
    return ParsedArgs(options, before, command, inner, session, said[0].value if said else "")
