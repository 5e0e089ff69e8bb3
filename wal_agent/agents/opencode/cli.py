"""OpenCode's command line: the start or resume, and its last error.

OpenCode chooses the ids of new sessions by itself; a hook reports them. `opencode run` rewrites a prompt (quotes around
blanks; a word that is a number ends it with an error), and the TUI takes one only for a new session. So the plugin
sends the recovery prompt (hooks/opencode.js); the command line only holds its place.

OpenCode exits with 1 when it gives up on its model. A rate limit with a retry time it waits for by itself, however
long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from wal_agent.agents.base import Cli, Command, Env, ExitCause, NewSession, ResumeSession
from wal_agent.agents.exit_text import cause_from_last_error
from wal_agent.agents.opencode import hooks, resume
from wal_agent.agents.opencode.hooks import subcommand
from wal_agent.agents.program import Program

PROGRAM = Program("opencode", "opencode-ai")
ACT = "Act on the wal-agent recovery notice."
SAY = "WAL_AGENT_OPENCODE_SAY"
_SESSION = frozenset(("session", "continue", "fork"))
_PROMPT = frozenset(("", "prompt", "command", "file", "title"))


def locate(env: Env) -> Cli:
    return PROGRAM.locate(env)


def passthrough(args: Sequence[str]) -> bool:
    command, given = subcommand(args)
    return command in hooks.PASS or any(hooks.is_given(given, name) for name in ("help", "version"))


def session_from_args(args: Sequence[str]) -> str | None:
    given = subcommand(args)[1]
    if hooks.is_given(given, "fork"):
        return ""
    if (chosen := hooks.last_value(given, "session")) is not None:
        return chosen
    return "" if hooks.is_given(given, "continue") else None


def prompt_from_args(args: Sequence[str]) -> str | None:
    command, given = subcommand(args)
    if command != "run":
        return hooks.last_value(given, "prompt") or None
    said = " ".join(arg.value for arg in given if not arg.name)
    if (name := hooks.last_value(given, "command")) is not None:
        said = f"/{name} {said}".strip()
    return said or None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    command, given = subcommand(args)
    if command == "run":
        return hooks.is_given(given, "interactive") or hooks.is_given(given, "mini")
    return True


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    word, given = subcommand(args)
    # It takes its folder from PWD, before the one that it is started in.
    more = {"PWD": ""} if "PWD" in env else {}
    ours: list[str] = []
    behind: list[str] = []
    told = isinstance(session, ResumeSession) and session.prompt != ""
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in _SESSION]
        known = resume.resumable(session.id, env)  # else there is only the prompt: its session had not been saved
        ours = ["--session", session.id] if known else []
        if told and word == "run":
            given = [arg for arg in given if arg.name not in _PROMPT]
            behind = ACT.split(" ")
            more[SAY] = json.dumps({"text": session.prompt}, ensure_ascii=False)
        elif told:
            given = [arg for arg in given if arg.name != "prompt"]
            if known:
                more[SAY] = json.dumps(
                    {"session": session.id, "text": session.prompt, "send": True}, ensure_ascii=False
                )
            else:
                ours = [f"--prompt={session.prompt}"]
    head = [word] if word else []
    argv = (str(cli.path), *head, *ours, *hooks.to_words(given), *behind)
    return Command(argv, more, told and word == "run")


_LAST = re.compile(rb"^(?:\x1b\[\d+m)*Error: (?:\x1b\[\d+m)*(.{1,600})$", re.MULTILINE)
_LONG = re.compile(r"context window|context length|prompt is too long", re.IGNORECASE)
_WAIT = re.compile(r"rate limit|too many requests|overloaded|usage limit", re.IGNORECASE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    return cause_from_last_error(said, now, last=_LAST, waits=_WAIT, too_long=_LONG)
