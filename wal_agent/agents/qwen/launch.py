"""Finding Qwen Code and starting it: a new session under an id of ours, or a resume of a restored one.

The recovery prompt is not given on the command line, where `@path` is inlined and `/` is a command: `notice.py` writes
it into the restored session, as the user's last words; the command line only says to act on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents import node
from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.extension import extension_name
from wal_agent.agents.found import Program
from wal_agent.agents.layers import effective_setting
from wal_agent.agents.qwen import cli as settings
from wal_agent.agents.qwen import options
from wal_agent.agents.qwen.line import MARKER

_BROKEN = "it fires no hooks of an extension (seen on 0.12.0; 0.15.6 is the first that is known to)."
PROGRAM = Program("qwen", "@qwen-code/qwen-code", broken=("0.15.6", _BROKEN))
ACT = "Act on the wal-agent recovery notice above."
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session (a subcommand, --version): nothing to protect."""
    given = options.parse_args(args)
    first = next((arg for arg in given if not arg.name), None)
    command = first is not None and first.words[0] != "--" and first.value in options.COMMANDS
    return command or any(options.is_given(given, name) for name in options.NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Qwen can tell (the last, a title, its list), else None."""
    given = options.parse_args(args)
    if (chosen := options.last_value(given, "session-id")) is not None:
        return chosen
    if (resumed := options.last_value(given, "resume")) is not None:
        return resumed if _ID.fullmatch(resumed) else ""
    return "" if options.is_given(given, "continue") else None


def prompt_from_args(args: Sequence[str]) -> str | None:
    """The prompt among the arguments; the positional words are one."""
    given = options.parse_args(args)
    words = [arg.value for arg in given if not arg.name]
    for found in (
        options.last_value(given, "prompt"),
        options.last_value(given, "prompt-interactive"),
        " ".join(words),
    ):
        if found:
            return found
    return None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Qwen's own rule; `tty` says that both its stdin and its stdout will be a terminal."""
    given = options.parse_args(args)
    if options.last_value(given, "prompt-interactive"):  # an empty one is none: headless, it could end with 42 for ever
        return True
    return tty and prompt_from_args(args) is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.parse_args(args)
    ours: list[str] = []
    run = env.get(MARKER)
    at = next((n for n, arg in enumerate(given) if arg.name == "extensions"), None)
    if run and at is not None:
        # A list shuts out what it does not name; "none" and a name is the name. Right before the user's own: it takes
        # all words up to the next option.
        name = extension_name(run)
        given.insert(at, options.Arg("extensions", name, ("--extensions", name)))
    told = isinstance(session, ResumeSession) and session.prompt != ""
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in options.SESSION_OPTIONS]
        ours += ["--resume", session.id]
        if told or session.asked:
            given = [arg for arg in given if arg.name not in options.PROMPT_OPTIONS]
        if told:
            ours += ["--prompt-interactive" if interactive else "--prompt", ACT]
    elif not any(arg.name in options.SESSION_OPTIONS for arg in given):
        ours += ["--session-id", session.id]
    heap = node.node_command(cli.path, env) if _wants_heap(env) else ()
    # One process instead of two: the first would swallow signals, and the second outlive it. Its other task, starting
    # Qwen again at exit code 42, is then the supervisor's (`again`).
    argv = (*_program(cli.path, heap), *ours, *options.to_words(given))
    return Command(argv, {"QWEN_CODE_NO_RELAUNCH": "true"}, told and not interactive)


def _program(path: Path, heap: tuple[str, ...]) -> tuple[str, ...]:
    """Since 0.24 the program on npm is a launcher, which waits for Qwen in a second process and passes no signal on."""
    real = path.resolve()
    inner = real.with_name("cli.js")
    if real.name != "cli-entry.js" or not inner.is_file():
        return (*heap, str(path))
    return (*(heap or ("node",)), "--expose-gc", str(inner))


def _wants_heap(env: Env) -> bool:
    found = effective_setting(settings.own_layers(env), "advanced", "autoConfigureMemory")
    return found is not None and bool(found[1])
