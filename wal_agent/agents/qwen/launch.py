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
from wal_agent.agents.layers import effective
from wal_agent.agents.qwen import options, settings
from wal_agent.agents.qwen.line import MARKER

_BROKEN = "it fires no hooks of an extension (seen on 0.12.0; 0.15.6 is the first that is known to)."
PROGRAM = Program("qwen", "@qwen-code/qwen-code", broken=("0.15.6", _BROKEN))
ACT = "Act on the wal-agent recovery notice above."
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session (a subcommand, --version): nothing to protect."""
    given = options.read(args)
    first = next((arg for arg in given if not arg.name), None)
    command = first is not None and first.words[0] != "--" and first.value in options.COMMANDS
    return command or any(options.on(given, name) for name in options.NO_SESSION)


def session_of(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Qwen can tell (the last, a title, its list), else None."""
    given = options.read(args)
    if (chosen := options.last(given, "session-id")) is not None:
        return chosen
    if (resumed := options.last(given, "resume")) is not None:
        return resumed if _ID.fullmatch(resumed) else ""
    return "" if options.on(given, "continue") else None


def prompt_of(args: Sequence[str]) -> str | None:
    """The prompt among the arguments; the positional words are one."""
    given = options.read(args)
    words = [arg.value for arg in given if not arg.name]
    for found in (options.last(given, "prompt"), options.last(given, "prompt-interactive"), " ".join(words)):
        if found:
            return found
    return None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Qwen's own rule; `tty` says that both its stdin and its stdout will be a terminal."""
    given = options.read(args)
    if options.last(given, "prompt-interactive"):  # an empty one is none: headless, it could end with 42 for ever
        return True
    return tty and prompt_of(args) is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.read(args)
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
        given = [arg for arg in given if arg.name not in options.SESSION]
        ours += ["--resume", session.id]
        if told or session.asked:
            given = [arg for arg in given if arg.name not in options.PROMPT]
        if told:
            ours += ["--prompt-interactive" if interactive else "--prompt", ACT]
    elif not any(arg.name in options.SESSION for arg in given):
        ours += ["--session-id", session.id]
    heap = node.interpreter(cli.path, env) if _wants_heap(env) else ()
    # One process instead of two: the first would swallow signals, and the second outlive it. Its other task, starting
    # Qwen again at exit code 42, is then the supervisor's (`again`).
    argv = (*_program(cli.path, heap), *ours, *options.words(given))
    return Command(argv, {"QWEN_CODE_NO_RELAUNCH": "true"}, told and not interactive)


def _program(path: Path, heap: tuple[str, ...]) -> tuple[str, ...]:
    """Since 0.24 the program on npm is a launcher, which waits for Qwen in a second process and passes no signal on."""
    real = path.resolve()
    inner = real.with_name("cli.js")
    if real.name != "cli-entry.js" or not inner.is_file():
        return (*heap, str(path))
    return (*(heap or ("node",)), "--expose-gc", str(inner))


def _wants_heap(env: Env) -> bool:
    found = effective(settings.own_layers(env), "advanced", "autoConfigureMemory")
    return found is not None and bool(found[1])
