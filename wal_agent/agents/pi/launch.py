"""Finding pi and starting it. A new session's id is pi's own: the handshake tells it.

The recovery prompt is not given on the command line: there `@` and `-` at its beginning are pi's, and `/` may be an
extension's command. notice.py writes it into the session, as the user's last words; the command line only says to act
on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.found import Program
from wal_agent.agents.pi import cli as options
from wal_agent.agents.pi.inject import MARKER
from wal_agent.agents.program import Arg

_NO_HOOKS = "it does not tell its extensions of the session that /new begins, nor wait for them at its end."
PROGRAM = Program("pi", "@mariozechner/pi-coding-agent", ("0.65.0", _NO_HOOKS))
FLAG = "--wal-agent"  # without our extension, pi does not know it and does not start
ACT = "Act on the wal-agent recovery notice above."
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def locate(env: Env) -> Cli:
    return PROGRAM.locate(env)


def passthrough(args: Sequence[str]) -> bool:
    return (len(args) > 0 and args[0] in options.COMMANDS) or any(
        a.name in options.NO_SESSION for a in options.parse_args(args)
    )


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only pi can tell (the newest, a path, a part of an id)."""
    given = options.parse_args(args)
    if not any(arg.name in options.SESSION_OPTIONS for arg in given):
        return None
    chosen = options.last_value(given, "session") or ""
    plain = not any(arg.name == "fork" for arg in given)
    return chosen if plain and _ID.fullmatch(chosen) else ""


def prompt_from_args(args: Sequence[str]) -> str | None:
    return "\n\n".join(options.prompt_words(options.parse_args(args))) or None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    given = options.parse_args(args)
    return tty and not any(a.name == "print" for a in given) and options.output_mode(given) not in ("json", "rpc")


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.parse_args(args)
    ours: list[str] = []
    told = isinstance(session, ResumeSession) and session.prompt != ""
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in options.SESSION_OPTIONS]
        ours = ["--session", session.id]
        if told:
            given = options.without_prompt(given)
            ours.append(ACT)  # in front: behind an option of an extension's it would be taken for its value
    argv = (str(cli.path), *ours, *options.to_words(_with_hooks(given, env[MARKER])))
    return Command(argv, {}, told and not interactive)


def _with_hooks(given: list[Arg], extension: str) -> list[Arg]:
    """Behind the user's own `-e`, whose extensions may rewrite calls before they are logged; else in front of all: a
    last option without its value would swallow ours."""
    at = max((n + 1 for n, arg in enumerate(given) if arg.name == "extension"), default=0)
    ours = [Arg("?", "", (FLAG,)), Arg("extension", extension, ("-e", extension))]  # the flag takes no word that is one
    return [*given[:at], *ours, *given[at:]]
