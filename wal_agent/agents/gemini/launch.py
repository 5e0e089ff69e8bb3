"""Finding Gemini and starting it: a new session under an id of ours, or a resume of a restored one.

The recovery prompt is not given on the command line. Gemini rewrites a prompt that it gets there (`@path` is inlined,
`/` and `?` are commands), and the prompt quotes shell commands that must arrive exactly. `notice.py` writes it into the
restored session instead, as the user's last words; the command line only says to act on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.extension import extension_name
from wal_agent.agents.found import Program
from wal_agent.agents.gemini import node, options
from wal_agent.agents.gemini.line import MARKER

PROGRAM = Program("gemini", "@google/gemini-cli")
ACT = "Act on the wal-agent recovery notice above."


def locate(env: Env) -> Cli:
    return PROGRAM.locate(env)


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session (a subcommand, --version, --list-sessions): nothing to protect."""
    given = options.parse_args(args)
    first = next((arg for arg in given if not arg.name), None)
    command = first is not None and first.words[0] != "--" and first.value in options.COMMANDS
    return command or any(options.is_given(given, name) for name in options.NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Gemini can tell (latest, an index, a file), else None."""
    given = options.parse_args(args)
    if (chosen := options.last_value(given, "session-id")) is not None:
        return chosen.strip()
    if options.last_value(given, "session-file") is not None:
        return ""
    if (resumed := options.last_value(given, "resume")) is None:
        return None
    resumed = resumed.strip()
    return "" if resumed in ("", "latest") or resumed.isdigit() else resumed


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
    """Gemini's own rule; `tty` says that both its stdin and its stdout will be a terminal."""
    given = options.parse_args(args)
    if options.last_value(given, "prompt-interactive"):
        return True
    if env.get("GEMINI_CLI_INTEGRATION_TEST") != "true" and (
        env.get("CI") == "true" or env.get("GITHUB_ACTIONS") == "true"
    ):
        return False
    return tty and options.last_value(given, "prompt") is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.parse_args(args)
    ours: list[str] = []
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
    run = env.get(MARKER)
    if run and any(arg.name == "extensions" for arg in given):
        # A list shuts out what it does not name; "none" and a name is the name.
        ours += ["--extensions", extension_name(run)]
    argv = (*node.gemini_node_command(cli.path, env), str(cli.path), *ours, *options.to_words(given))
    # One process instead of two: the first would swallow signals, and the second outlive it. Its other task, starting
    # Gemini again at exit code 199, is then the supervisor's (`again`).
    return Command(argv, {"GEMINI_CLI_NO_RELAUNCH": "true"}, told and not interactive)
